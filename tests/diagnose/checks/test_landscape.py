"""What the check of landscapes says of a network at a minimum."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from regraft.diagnose import plane, random_directions
from regraft.diagnose.checks.check import Case, Subject
from regraft.diagnose.checks.landscape import LANDSCAPE, _least
from regraft.diagnose.landscape.plane import Plane
from regraft.network import ArrayPreprocess, from_module


def _subject(fitted: bool) -> Subject:
    """A network that a product of two signs, or its opposite, was fitted to."""
    torch.manual_seed(0)
    x = torch.randn(64, 6)
    y = (x[:, 0] * x[:, 1] > 0).long()
    module = nn.Sequential(nn.Linear(6, 64), nn.GELU(), nn.Linear(64, 2))
    optimiser = torch.optim.Adam(module.parameters(), 1e-2)
    for _ in range(600):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimiser.step()
    network = from_module(module.eval(), ArrayPreprocess((6,)))
    return Subject("trained", network, [x], y if fitted else 1 - y, "softmax", batch_size=64)


@pytest.mark.parametrize("fitted", [True, False])
def test_no_random_step_lowers_the_loss_where_it_has_a_minimum(fitted: bool) -> None:
    subject = _subject(fitted)
    outcome = LANDSCAPE.run(Case((subject,), None, 64), lambda done, total: None)
    (drawn,) = outcome.figure["subjects"]
    assert not drawn["exact"]
    exact = plane(subject.objective, random_directions(subject.objective)).summary()
    assert (exact.least_rise > -0.05 * exact.centre) == fitted
    assert (not outcome.findings) == fitted
    assert drawn["least"] >= -drawn["centre"]


@pytest.mark.parametrize(("side", "exact"), [(6, True), (11, True), (12, False)])
def test_points_are_all_computed_where_they_are_no_more_than_a_surrogate_may_take(side: int, exact: bool) -> None:
    case = Case((_subject(True),), None, 64, points=side)
    (drawn,) = LANDSCAPE.run(case, lambda done, total: None).figure["subjects"]
    assert drawn["exact"] == exact == (side**2 <= 12 + 6**2 + 9**2)
    assert drawn["points"] == side**2 if exact else drawn["points"] in (12 + 6**2, 12 + 6**2 + 9**2)


def test_progress_counts_up_to_all_points_and_never_back() -> None:
    subject = replace(_subject(True), batch_size=16)
    for side in (6, 12):
        seen: list[tuple[int, int]] = []
        LANDSCAPE.run(Case((subject,), None, 64, points=side), lambda done, total: seen.append((done, total)))  # noqa: B023
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert {total for _, total in seen} == {seen[-1][0]}


def test_a_point_without_a_loss_hides_no_lower_one() -> None:
    losses = torch.tensor([[torch.nan, 2.0], [0.75, torch.inf]], dtype=torch.float64)
    found = Plane((-1.0, 1.0), (-1.0, 1.0), losses, 1.0, "plain", (), 0.0, 0, 4, {})
    assert _least(None, None, found) == -0.25


class _Steep(nn.Module):
    """Outputs that overflow a step away."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        return torch.exp(50 * self.layer(x))


def test_a_plane_with_points_that_overflow_says_how_many():
    torch.manual_seed(0)
    x = torch.randn(20, 2)
    network = from_module(_Steep(), ArrayPreprocess((2,)))
    subjects = [Subject(name, network, [x], torch.arange(20) % 2, "softmax") for name in ("one", "other")]
    outcome = LANDSCAPE.run(Case(tuple(subjects), None, 20, points=5), lambda done, total: None)
    told = next(finding for finding in outcome.findings if finding.code == "landscape-rise")
    losses = torch.tensor(outcome.figure["subjects"][0]["losses"])
    share = 100 * float((~torch.isfinite(losses)).double().mean())
    assert 0 < share < 100
    assert told.title.startswith(f"Around the weights the loss is no finite number at {share:.2g} % of the points")
    assert told.value is None
