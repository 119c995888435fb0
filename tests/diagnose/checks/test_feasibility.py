"""What the check of feasibility says of a source task."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regraft.diagnose.checks.check import Case, Labelled
from regraft.diagnose.checks.feasibility import FEASIBILITY
from regraft.heads import Response


def test_numbers_far_from_zero_do_not_make_a_source_of_noise_help() -> None:
    rng = np.random.default_rng(0)
    tasks = [(rng.normal(size=(80, 6)), rng.normal(size=80)) for _ in range(2)]
    found = []
    for offset in (0.0, 100.0):
        target, source = (
            Labelled(torch.from_numpy(x), Response.of("regression", ("y",), y + offset)) for x, y in tasks
        )
        found.append(FEASIBILITY.run(Case((), target, 80, origin=source), lambda done, total: None).findings[0])
    assert found[1].value == pytest.approx(found[0].value, rel=1e-6)
    assert found[1].high > 1
