"""What the check of gradients says of a slope."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import linregress, t
from torch import nn

from regraft.diagnose.checks.check import Case, Subject
from regraft.diagnose.checks.gradients import GRADIENTS, _findings
from regraft.network import ArrayPreprocess, from_module


def test_a_slope_has_the_interval_of_a_line_through_so_few_places() -> None:
    logs = [0.0, 0.9, 0.8, 2.4, 1.6]
    line = linregress(range(5), logs)
    own = {"slope": {"value": line.slope, "error": line.stderr}, "flow": [{"norm": 1.0}] * 5, "skipped": []}
    (said,) = _findings([own], True)
    half = t.ppf(0.975, 3) * line.stderr
    assert (said.low, said.high) == (pytest.approx(line.slope - half), pytest.approx(line.slope + half))
    assert said.low < 0 < line.slope - 2 * line.stderr
    assert (said.severity, said.value) == ("info", None)  # the interval holds no slope at all
    assert said.title.startswith("Whether the gradient grows or fades")
    assert f"± {line.stderr:.2g} (95 % interval {said.low:.3g} to {said.high:.3g})" in said.detail


class _Steep(nn.Module):
    """Outputs that overflow a step down the gradient."""

    def __init__(self, power: float) -> None:
        super().__init__()
        self.power, self.layer = power, nn.Linear(2, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(self.power * self.layer(x))


@pytest.mark.parametrize("powers", [(30.0, 1.0), (1.0, 30.0)])
def test_a_loss_that_overflows_along_its_gradient_is_no_finite_number(powers: tuple[float, float]) -> None:
    subjects = []
    for name, power in zip(("pretrained", "random weights"), powers):
        torch.manual_seed(0)
        network, x = from_module(_Steep(power), ArrayPreprocess((2,))), torch.randn(20, 2)
        subjects.append(Subject(name, network, [x], torch.arange(20) % 2, "softmax"))
    outcome = GRADIENTS.run(Case(tuple(subjects), None, 20), lambda done, total: None)
    said = next(finding for finding in outcome.findings if finding.code == "variation")
    assert "inf" not in said.title + said.detail
    assert said.title.startswith("10 steps along the gradient lead to no finite loss") == (powers[0] == 30)
    assert (said.value is None) == (powers[0] == 30)
    assert ("random weights: to no finite loss" in said.detail) == (powers[1] == 30)
    assert [subject["variation"]["largest"] is None for subject in outcome.figure["subjects"]] == [
        p == 30 for p in powers
    ]


@pytest.mark.parametrize(("slope", "severity"), [(-0.8, "advice"), (0.8, "info")])
def test_advice_is_for_gradients_that_grow_on_their_way_down(slope: float, severity: str) -> None:
    own = {"slope": {"value": slope, "error": 0.01}, "flow": [{"norm": 1.0}] * 7, "skipped": []}
    (said,) = _findings([own], True)
    assert (said.severity, bool(said.advice)) == (severity, severity == "advice")
    assert f"the gradient {'grows' if slope < 0 else 'fades'}" in said.title
    assert said.value == slope
    (few,) = _findings([{**own, "flow": own["flow"][:4]}], True)
    assert (few.value, few.advice) == (slope, "")
    (unsaid,) = _findings([{**own, "flow": own["flow"][:3], "slope": {"value": slope, "error": 0.2}}], True)
    assert (unsaid.value, unsaid.advice) == (None, "")
    assert "is not told by 3 places" in unsaid.title
