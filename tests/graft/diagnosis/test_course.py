"""Checkpoints as backbones: which folders they are, in which order, and what is said of their curve."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.features.toy import toy_network
from torch import nn

from regraft.diagnose.transfer.ranking import Difference, Place, Ranking
from regraft.errors import RecipeError
from regraft.graft import Options, rank
from regraft.graft.diagnosis.course import Course, checkpoints
from regraft.graft.diagnosis.rank import _findings, _guessing, _smallest
from regraft.network import ArrayPreprocess, from_module


def folders(root: Path, *names: str) -> str:
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "config.json").write_text("{}")
    return str(root)


def order(values: dict[str, float], *, margin: float, rank_low: dict[str, float]) -> Ranking:
    """An order whose differences all have the same interval about them."""
    names = sorted(values, key=lambda name: -values[name])
    places = tuple(
        Place(name, values[name], values[name] - 0.1, values[name] + 0.1, i + 1.0, rank_low[name], 9.0)
        for i, name in enumerate(names)
    )
    pairs = [(a, b, values[a] - values[b]) for i, a in enumerate(names) for b in names[i + 1 :]]
    return Ranking("logme", places, tuple(Difference(a, b, gap, gap - margin, gap + margin) for a, b, gap in pairs))


def test_a_folder_stands_for_its_checkpoints_by_number(tmp_path) -> None:
    found, course = checkpoints([folders(tmp_path, "checkpoint-1000", "checkpoint-50", "checkpoint-200")])
    assert [Path(str(path)).name for path in found] == ["checkpoint-50", "checkpoint-200", "checkpoint-1000"]
    assert course == Course((50, 200, 1000), "checkpoint")
    assert checkpoints([folders(tmp_path / "two", "a1-epoch-02", "b2-epoch-10")])[1] == Course((2, 10), "epoch")
    assert checkpoints([folders(tmp_path / "three", "global_step500", "Global_Step90")])[1] == Course((90, 500), "step")


@pytest.mark.parametrize("names", [
    ("small", "large"), ("net-1", "other-1"), ("seed-0", "seed-1"), ("epoch-9-fold-0", "epoch-9-fold-1"),
    ("net-128", "net-224"), ("epoch-1", "step-500"), ("misstep-1", "misstep-2"), ("0", "1"),
])  # fmt: skip
def test_backbones_that_do_not_count_have_no_course(tmp_path, names) -> None:
    found, course = checkpoints([folders(tmp_path, *names)])
    assert [Path(str(path)).name for path in found] == sorted(names)
    assert course is None


def test_other_backbones_are_left_as_they_are(tmp_path) -> None:
    network = toy_network()
    one = folders(tmp_path, "epoch-1", "epoch-2") + "/epoch-1"
    for models in ([one], [network], ["org/name"], ["a", "b"]):
        assert checkpoints(models) == (tuple(models), None)


def test_a_folder_without_backbones_is_refused(tmp_path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(RecipeError, match="no folder of checkpoints"):
        checkpoints([str(tmp_path)])


NAMES = ("epoch-0", "epoch-1", "epoch-2")
AT = Course((0, 1, 2), "epoch")


def test_a_tie_has_no_first() -> None:
    places = tuple(Place(name, 0.7, 0.6, 0.8, 1.5, 1.0, 2.0) for name in ("a", "b"))
    tied = Ranking("logme", places, (Difference("a", "b", 0.0, -0.1, 0.1),))
    (first, _) = _findings(tied, smallest="b", same=False, known=None)
    assert first.title == "a and b tie by LogME"
    assert first.advice == "Take b, the smallest of them, or adapt and compare."
    assert _findings(tied, smallest=None, same=False, known=None)[0].advice == ""
    apart = order({"a": 0.9, "b": 0.1}, margin=0.1, rank_low=dict.fromkeys("ab", 1.0))
    assert _findings(apart, smallest="b", same=False, known=None)[0].title == "a is first by LogME"


def test_equal_scores_at_both_ends_are_called_the_same() -> None:
    values = dict(zip(NAMES, (0.5, 0.9, 0.5)))
    gain, _ = AT.findings(NAMES, order(values, margin=0.1, rank_low=dict.fromkeys(NAMES, 2.0)))
    assert gain.title == "Transfer is the same at epoch-0 and epoch-2"
    assert str(gain.value) == "0.0"


def test_a_stage_as_good_as_the_end_is_no_better_one() -> None:
    values = dict(zip(NAMES, (0.1, 0.9, 0.9)))
    _, peak = AT.findings(NAMES, order(values, margin=0.1, rank_low=dict.fromkeys(NAMES, 1.0)))
    assert peak.title == "Transfer is best at the end, epoch-2, and as good at epoch-1"


def test_a_first_is_sure_of_all_others_and_not_of_the_second_alone() -> None:
    places = tuple(Place(n, v, v - 0.1, v + 0.1, i + 1.0, 1.0, 3.0) for i, (n, v) in enumerate(zip("abc", (9, 8, 7))))
    pairs = (
        Difference("a", "b", 1.0, 0.5, 1.5),
        Difference("a", "c", 2.0, -0.1, 4.1),
        Difference("b", "c", 1.0, 0.0, 2),
    )
    first = _findings(Ranking("logme", places, pairs), smallest="c", same=False, known=None)[0]
    assert first.title == "a is first by LogME, but the rows do not tell it from c"
    assert (first.value, first.low, first.high, first.severity) == (2.0, -0.1, 4.1, "advice")
    assert first.detail.startswith("9 beside 7: +2 ")
    assert first.advice == "Take c, the smallest of them, or adapt and compare."


def test_one_backbone_that_is_better_than_guessing_is_enough() -> None:
    places = (Place("a", 0.7, 0.45, 0.95, 1, 1, 2), Place("b", 0.68, 0.6, 0.76, 2, 1, 2))
    assert _guessing(Ranking("loo-accuracy", places, ()), 0.5) == ()
    (said,) = _guessing(Ranking("loo-accuracy", places, ()), 0.6)
    assert said.title.startswith("Not even a is surely better")


@pytest.mark.parametrize("widths", [(3, 3), (3, 4)])
def test_networks_of_other_sizes_are_no_pretraining(widths, tmp_path, monkeypatch) -> None:
    torch.manual_seed(0)
    networks = [from_module(nn.Linear(5, width), ArrayPreprocess((5,)), name=f"epoch-{width}") for width in widths]
    monkeypatch.setattr("regraft.graft.diagnosis.rank.checkpoints", lambda models: (networks, Course((1, 2), "epoch")))
    data = (np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32), np.arange(40) % 2)
    record = rank(data, str(tmp_path), options=Options(cache=tmp_path, folds=3))
    alike = widths[0] == widths[1]
    assert ("course" in record.figures["ranking"]) == alike
    assert ("pretraining-gain" in [finding.code for finding in record.findings]) == alike


def test_a_fall_is_real_when_the_end_is_never_first() -> None:
    values = dict(zip(NAMES, (0.1, 0.9, 0.5)))
    gain, peak = AT.findings(NAMES, order(values, margin=0.1, rank_low=dict.fromkeys(NAMES, 2.0)))
    assert (gain.value, gain.low, gain.high) == pytest.approx((0.4, 0.3, 0.5))
    assert "rises" in gain.title
    assert (peak.severity, peak.value) == ("advice", pytest.approx(0.4))
    assert "Take epoch-1" in peak.advice


@pytest.mark.parametrize(("margin", "rank_low"), [(0.6, 2.0), (0.1, 1.0)])
def test_a_fall_that_chance_explains_is_none(margin: float, rank_low: float) -> None:
    values = dict(zip(NAMES, (0.1, 0.9, 0.5)))
    gain, peak = AT.findings(NAMES, order(values, margin=margin, rank_low=dict.fromkeys(NAMES, rank_low)))
    assert ("do not bear it out" in gain.title) == (margin > 0.4)
    assert (peak.severity, peak.advice) == ("info", "")
    assert "do not tell it from the end" in peak.title


def test_a_pretraining_that_is_best_at_its_end_or_harms() -> None:
    rising = dict(zip(NAMES, (0.1, 0.5, 0.9)))
    assert (
        "best at the end" in AT.findings(NAMES, order(rising, margin=0.1, rank_low=dict.fromkeys(NAMES, 1.0)))[1].title
    )
    falling = dict(zip(NAMES, (0.9, 0.5, 0.1)))
    gain, _ = AT.findings(NAMES, order(falling, margin=0.1, rank_low=dict.fromkeys(NAMES, 2.0)))
    assert "falls" in gain.title
    assert gain.high < 0


def test_the_curve_goes_by_epochs_not_by_places() -> None:
    values = dict(zip(NAMES, (0.1, 0.9, 0.5)))
    figure = AT.figure(NAMES, order(values, margin=0.1, rank_low=dict.fromkeys(NAMES, 1.0)))
    assert [(p["at"], p["value"]) for p in figure["points"]] == [(0, 0.1), (1, 0.9), (2, 0.5)]
    assert figure["word"] == "epoch"


def test_the_smallest_is_of_those_that_are_not_told_from_the_first() -> None:
    found = {name: SimpleNamespace(parameters=size) for name, size in (("a", 30), ("b", 20), ("c", 25), ("d", 10))}
    near = order({"a": 0.9, "b": 0.8, "c": 0.7, "d": 0.1}, margin=0.3, rank_low=dict.fromkeys("abcd", 1.0))
    assert _smallest(near, found) == "b"  # d is smaller, and surely worse
