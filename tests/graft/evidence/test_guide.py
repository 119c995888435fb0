"""The user guide as a function of a record's figures: each phenomenon by itself, at its edges, and its silence."""

from __future__ import annotations

import copy

import pytest

from regraft.graft.evidence.guide import guide
from regraft.graft.evidence.instruments import instrument_findings


def trained(curve=(0.5, 0.7, 0.8, 0.85, 0.91, 0.93, 0.94, 0.945, 0.948, 0.95), *, start=None, chosen=None, taus=None,
            smoothing=0.0, training=0.0):  # fmt: skip
    curve = list(curve)
    chosen = len(curve) if chosen is None else chosen
    rows = [{"tau": tau, "accuracy": curve[tau - 1] if tau else None} for tau in taus or (chosen,)]
    start = (curve[-1] if curve else None) if start is None else start
    energy = {"accuracy": start, "truth": start}
    probing = {"taus": rows, "chosen": chosen, "curve": curve, "smoothing": smoothing}
    return {"training": {"probing": probing, "smoothing": training, "instruments": {"energy": energy}}}


def solved(start):
    """A training from a solved head."""
    energy = {"accuracy": start, "truth": start}
    return {"training": {"probing": None, "smoothing": 0.0, "instruments": {"energy": energy}}}


def codes(figures):
    return [finding.code for finding in guide(figures)]


SLOW = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
WEAK = (0.2, 0.3, 0.38, 0.41, 0.43, 0.44, 0.445, 0.45, 0.45, 0.45)


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({}, []),
        (trained(), []),
        (trained(SLOW), ["energy-exhausted"]),
        (trained((*SLOW[:-1], 0.994)), []),
        (trained(SLOW, taus=(1, 4, 10)), []),  # tau was chosen among several: the held-out rows have spoken
        (trained(SLOW, start=0.7), []),  # what counts is the head that training began with
        (solved(1.0), ["energy-exhausted"]),
        (solved(0.9), []),
        (trained(WEAK), ["head-too-weak"]),
        (trained(WEAK[:4]), []),  # too short a probing to be called settled
        (trained(WEAK[:7]), []),
        (trained(WEAK[:8]), ["head-too-weak"]),  # after eight epochs it may be
        (trained([0.04 * i for i in range(1, 11)]), []),  # still rising
        (solved(0.45), ["head-too-weak"]),
        (solved(0.5), []),
        (trained([], start=0.1, chosen=0), []),  # a random head is no weak one
        (trained((0.6, 0.8, 0.85, 0.9, 0.95, 0.96, 0.96, 0.96)), ["probing-fast"]),
        (trained((0.6, 0.8, 0.85, 0.89, 0.9, 0.96, 0.96, 0.96)), []),
        (trained((0.6, 0.95, 0.96, 0.97), smoothing=0.1), []),  # it is smoothed already
        (trained(smoothing=0.0, training=0.1), ["smoothing-opposes"]),
        (trained(smoothing=0.1, training=0.1), []),
        (trained([], start=0.5, chosen=0, training=0.1), []),  # a head that was not probed
        (trained((0.95, 1.0)), ["energy-exhausted", "probing-fast"]),  # two phenomena, two pieces of advice
    ],
)
def test_trainings(figures, expected):
    assert codes(figures) == expected


@pytest.mark.parametrize(
    ("curve", "commonest", "expected"),
    [
        ((0.43, 0.951, 0.951, 0.951), 0.95, []),  # one class for every row
        ((0.43, 0.951, 0.976, 0.99), 0.95, ["probing-fast"]),
        ((0.6, 0.8, 0.85, 0.9, 0.95), 0.5, ["probing-fast"]),
        ((0.9, 0.997, 0.997), 0.996, []),
        ((0.9, 0.997, 0.999), 0.996, ["energy-exhausted", "probing-fast"]),
    ],
)
def test_a_head_that_names_the_commonest_class_has_fitted_nothing(curve, commonest, expected):
    figures = trained(curve)
    figures["training"]["commonest"] = commonest
    assert codes(figures) == expected


def test_the_title_says_which_share_was_fitted():
    figures = trained((0.43, 0.951, 0.976, 0.99))
    figures["training"]["commonest"] = 0.95
    assert next(iter(guide(figures))).title == "Head probing fitted 98 % of the training rows in its first 3 epochs."
    assert next(iter(guide(trained((0.8, 0.92, 0.93, 0.94))))).title.startswith("Head probing fitted 90 %")


def test_low_levels_need_every_fold():
    low = {"depth": 0.4, "folds": {"depths": [0.3, 0.45]}}
    assert codes({"selection": low}) == ["low-level-target"]
    assert codes({"selection": {**low, "folds": {"depths": [0.3, 0.55]}}}) == []
    assert codes({"selection": {**low, "folds": None}}) == ["low-level-target"]
    (over,), (alone,) = (list(guide({"selection": figure})) for figure in (low, {**low, "folds": None}))
    assert (over.value, over.low, over.high) == (0.4, None, None)  # the folds' extremes are no interval
    assert over.detail.startswith("Of the folds 30 to 45 %.")
    assert alone.detail.startswith("Lower layers")  # one depth has no range
    assert "edges and textures of images" in alone.detail  # of texts, molecules and numbers there are none


def test_low_levels_that_noise_or_no_label_chose_say_nothing():
    low = {"depth": 0.4, "folds": {"depths": [0.3, 0.45]}}
    for score, expected in (("relevance", ["low-level-target"]), ("random", []), ("variance", [])):
        assert codes({"selection": {**low, "scorer": {"score": score}}}) == expected
    assert list(guide({"selection": low}, guesses=True)) == []


def test_low_levels_by_the_shares_of_a_head_on_frozen_layers():
    layers = [{"depth": 0.1, "share": 0.8}, {"depth": 1.0, "share": 0.2}]
    assert codes({"layers": layers}) == ["low-level-target"]
    assert codes({"layers": [{**layers[0], "share": 0.4}, {**layers[1], "share": 0.6}]}) == []
    assert codes({"layers": layers, **trained()}) == []  # of the tuned network
    assert codes({"layers": [{"depth": 0.0, "share": 1.0}]}) == []  # a probe: there was no choice


def test_a_head_that_is_right_by_a_hair_has_energy_left():
    """Three classes with p[y] = .44 in every row: all are right, and ‖e_y − p‖ is .69 of the .82 of a random head."""
    for truth, expected in ((0.44, []), (0.89, []), (0.9, ["energy-exhausted"])):
        figures = trained(SLOW)
        figures["training"]["instruments"]["energy"]["truth"] = truth
        assert codes(figures) == expected
    (said,) = guide(figures)
    assert said.detail.startswith("It gave the right class at least 90 % on average")


def test_without_instruments_the_probing_says_where_training_began():
    """By its energy, which bounds p[y] from below: ‖e_y − p‖ ≥ 1 − p[y]."""
    figures = trained(SLOW)
    del figures["training"]["instruments"]
    assert codes(figures) == []  # nobody measured an energy
    for energy, expected in ((0.69, []), (0.09, ["energy-exhausted"])):
        figures["training"]["probing"]["taus"][0]["energy"] = energy
        assert codes(figures) == expected


def test_a_head_that_names_one_class_is_not_called_too_weak():
    """The rows right stay at the share of one class until the head begins to tell classes apart: a rest before it."""
    plateau = (0.33, 0.33, 0.33, 0.33, 0.33, 0.34, 0.34, 0.34)
    for commonest, expected in ((0.33, []), (0.1, ["head-too-weak"]), (None, ["head-too-weak"])):
        figures = trained(plateau)
        figures["training"]["commonest"] = commonest
        assert codes(figures) == expected


def test_a_probing_whose_energy_goes_on_to_fall_is_not_at_rest():
    for energies, expected in (((0.9, 0.8, 0.7), []), ((0.9, 0.8, 0.79), ["head-too-weak"])):
        figures = trained(WEAK, taus=(1, 5, 10))
        for row, energy in zip(figures["training"]["probing"]["taus"], energies, strict=True):
            row["energy"] = energy
        assert codes(figures) == expected


def test_too_weak_is_said_of_the_head_that_training_began_from():
    """Not of the rows that were right while the head of the twin moved."""
    assert codes(trained(WEAK, start=0.67)) == []
    (said,) = guide(trained(WEAK, start=0.42))
    assert (said.value, said.title) == (0.42, "The prepared head fits 42 % of the training rows.")
    assert codes(trained(WEAK, start=0.1, chosen=0, taus=(0, 10))) == []  # a random head is not prepared


def test_advice_names_what_to_type():
    said = {f.code: f for f in (*guide(trained(SLOW)), *guide(trained(WEAK)))}
    assert "--tau" in said["energy-exhausted"].advice
    assert "try a head with a hidden layer (--head mlp) and a long --tau" in said["head-too-weak"].advice
    (solved_head,) = guide(solved(0.4))  # whose method takes neither
    assert "try --method finetune with --head mlp and a long --tau" in solved_head.advice
    (exhausted,) = guide(solved(1.0))
    assert "--method finetune" in exhausted.advice
    assert "--tau" not in exhausted.advice  # which a method without a probed head refuses
    masks, layered = trained(WEAK), trained(WEAK)
    masks["training"]["probing"]["stronger"], layered["training"]["probing"]["stronger"] = "aspp", None
    (on_masks,) = guide(masks)
    assert "look around each position (--head aspp)" in on_masks.advice
    assert "mlp" not in on_masks.advice
    assert codes(layered) == []  # there is no stronger head to try
    assert next(iter(guide(trained(SLOW)))).value == 1.0


# ----------------------------------------------------------------------------------- what instruments saw

SEEN = {
    "level": "all",
    "energy": {"mean": 0.4, "accuracy": 0.8, "truth": 0.7, "histogram": [], "rows": 900, "seconds": 0.5},
    "drift": {"epoch": 4, "change": 2.0, "norm": 9.0, "dot": 7.5, "cosine": 0.9, "norm_before": 8.0, "distance": 1.3,
              "rows": 200, "course": [], "seconds": 0.25},
    "direction": {"norms": [3.0, 1.0], "seconds": 0.1},
    "weights": {"relative": 0.05, "layers": [{"name": "a", "relative": 0.1, "size": 3},
                                             {"name": "b", "relative": None, "size": 2}], "seconds": 0.2},
    "kernel": {"notes": [{"epoch": 0, "norm": 10.0, "gap": None}, {"epoch": 1, "norm": 8.0, "gap": 2.0}], "rows": 50,
               "directions": 8, "reason": "", "seconds": 7.0},
}  # fmt: skip


def test_every_instrument_gives_its_number_and_its_cost():
    found = {f.code: f for f in instrument_findings(SEEN)}
    assert {code: (f.value, f.cost_seconds) for code, f in found.items()} == {
        "initial-energy": (0.4, 0.5),
        "feature-drift": (2.0, 0.25),
        "feature-direction": (2.0, 0.1),
        "weight-deviation": (0.05, 0.2),
        "kernel-drift": (0.25, 7.0),
    }
    assert "25 %" in found["feature-drift"].title
    assert "a: 10 %" in found["weight-deviation"].detail


def test_what_was_not_seen_is_not_said():
    seen = copy.deepcopy(SEEN)
    seen["energy"] |= {"mean": None, "reason": "there are masks"}
    seen["direction"]["norms"] = []
    seen["drift"]["cosine"] = None
    seen["kernel"] = {"notes": [], "rows": 50, "directions": 8, "reason": "the head reads other taps", "seconds": 0.0}
    found = {f.code: f for f in instrument_findings(seen)}
    assert set(found) == {"initial-energy", "feature-drift", "weight-deviation", "kernel-drift"}
    assert (found["initial-energy"].severity, found["initial-energy"].value) == ("not-applicable", None)
    assert found["initial-energy"].detail == "there are masks"
    assert found["kernel-drift"].severity == "not-applicable"
    assert found["kernel-drift"].detail == "the head reads other taps"
    del seen["kernel"]
    assert "kernel-drift" not in {f.code for f in instrument_findings(seen)}
