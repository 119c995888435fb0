"""Checkpoints as backbones: which folders they are, in which order, and what is said of their curve."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.features.toy import toy_network

from regraft.diagnose.transfer.ranking import Difference, Place, Ranking
from regraft.errors import RecipeError
from regraft.graft.diagnosis.course import Course, checkpoints
from regraft.graft.diagnosis.rank import _findings


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
    assert checkpoints([folders(tmp_path / "two", "a1-epoch-02", "b2-epoch-10")])[1] == Course((2, 10), "checkpoint")


@pytest.mark.parametrize("names", [("small", "large"), ("net-1", "other-1")])
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
