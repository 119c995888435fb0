"""What the check of feasibility says of a source task."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from regraft.diagnose.checks.check import Case, Labelled
from regraft.diagnose.checks.feasibility import FEASIBILITY
from regraft.errors import DataError
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


def test_groups_are_not_torn_apart() -> None:
    """Sixteen groups of eight rows that are all but alike, with one label: the interval is as wide as sixteen rows'."""
    rng = np.random.default_rng(0)
    centres, noise = rng.normal(size=(16, 6)), 0.05 * rng.normal(size=(128, 6))
    x, y = np.repeat(centres, 8, 0) + noise, np.repeat(np.arange(16) % 2, 8)
    names = tuple(f"g{group}" for group in np.repeat(np.arange(16), 8))
    origin = Labelled(torch.from_numpy(rng.normal(size=(80, 6))), Response.of("binary", ("no", "yes"), y[:80]))
    widths = []
    for groups in (None, names):
        target = Labelled(torch.from_numpy(x), Response.of("binary", ("no", "yes"), y), groups=groups)
        found = FEASIBILITY.run(Case((), target, 80, origin=origin), lambda done, total: None).figure["gradient"]
        widths.append(found["high"] - found["low"])
    assert widths[1] > 2 * widths[0]


def test_classes_of_unlike_shares_do_not_make_a_source_of_noise_help() -> None:
    rng = np.random.default_rng(0)
    tasks = [(np.abs(rng.normal(size=(80, 6))), (rng.random(80) < 0.1).astype(int)) for _ in range(2)]
    found = []
    for kind, names in (("binary", ("no", "yes")), ("regression", ("yes",))):
        target, source = (Labelled(torch.from_numpy(x), Response.of(kind, names, y)) for x, y in tasks)
        (said,) = FEASIBILITY.run(Case((), target, 80, origin=source), lambda done, total: None).findings
        found.append(said)
    assert found[0].value == pytest.approx(found[1].value)  # two classes are one number
    assert found[0].low < 1 < found[0].high
    assert found[0].title.endswith("these rows do not tell whether nearer to the target")
    one = Response.of("binary", ("no", "yes"), np.zeros(80, dtype=int))
    with pytest.raises(DataError, match="the target's labels are the same in every row"):
        FEASIBILITY.run(Case((), replace(target, response=one), 80, origin=source), lambda done, total: None)


def test_columns_are_compared_by_their_place_and_in_their_own_unit() -> None:
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(2, 80, 6))
    targets, sources = (np.stack([y[:, 0], y[:, 1] ** 2], 1) for y in (x, z))

    def found(target, source):
        names = ("a", "b")[: target.shape[1]]
        labelled, origin = (
            Labelled(torch.from_numpy(rows), Response.of("regression", names, y))
            for rows, y in ((x, target), (z, source))
        )
        return FEASIBILITY.run(Case((), labelled, 80, origin=origin), lambda done, total: None).findings[0].value

    one = found(targets, sources)
    assert found(targets * (1.0, 1e4), sources * (1.0, 1e4)) == pytest.approx(one)
    still = np.zeros_like(targets)
    still[:, 0] = targets[:, 0]  # of the target the first varies alone, of the source the second
    moved = sources * (0.0, 1.0)
    assert found(still, moved) == pytest.approx(found(targets[:, :1], moved[:, :1]))
    assert found(still, moved) == pytest.approx(1.0, abs=0.01)  # the source says nothing of it


def test_so_few_rows_that_no_spread_is_known_have_none() -> None:
    rng = np.random.default_rng(0)
    target, source = (
        Labelled(torch.from_numpy(rng.normal(size=(n, 6))), Response.of("regression", ("y",), rng.normal(size=n)))
        for n in (3, 20)
    )
    outcome = FEASIBILITY.run(Case((), target, 3, origin=source), lambda done, total: None)
    (said,) = outcome.findings
    assert (said.low, said.high, outcome.figure["distance"]["low"]) == (None, None, None)
    assert "nan" not in said.detail
