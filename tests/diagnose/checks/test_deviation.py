"""What the check of deviation says of trainings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from regraft.diagnose.checks.check import Case, Subject
from regraft.diagnose.checks.deviation import DEVIATION
from regraft.network import ArrayPreprocess, Network, from_module


def small() -> Network:
    """Two layers, the second a head that has no start."""
    return from_module(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)), ArrayPreprocess((4,)))


@pytest.fixture
def subject() -> Callable[[str, Network | None], Subject]:
    torch.manual_seed(0)
    network = small()

    def made(name: str, start: Network | None) -> Subject:
        return Subject(name, network, torch.zeros(5, 4), torch.zeros(5, dtype=torch.long), "softmax", start=start)

    return made


def test_it_says_whose_weights_moved(subject) -> None:
    start = small()
    for own, said in ((start, "the weights by"), (None, "the weights of other by")):
        subjects = (subject("trained", own), subject("other", start))
        finding, *others = DEVIATION.run(Case(subjects, None, 5), lambda done, total: None).findings
        assert said in finding.title
        left_out = [] if own else ["Deviation of trained not measured"]
        assert [other.title for other in others if other.severity == "not-applicable"] == left_out


def test_each_training_is_divided_by_its_own_rows(subject) -> None:
    start = small()
    subjects = (replace(subject("trained", start), rows=4), subject("other", start))
    figure = DEVIATION.run(Case(subjects, None, 16), lambda done, total: None).figure
    one, other = figure["subjects"]
    assert (one["rows"], other["rows"]) == (4, 16)
    assert one["total"] == pytest.approx(2 * other["total"])
