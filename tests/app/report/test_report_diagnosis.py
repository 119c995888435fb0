"""The sections of a diagnosis and of a ranking: what they show of a Record, and what they do with odd values."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
from tests.app.report import samples

from regraft.app.report.cost import costs
from regraft.app.report.diagnosis.curvature import curvature
from regraft.app.report.diagnosis.deviation import deviation
from regraft.app.report.diagnosis.gradients import gradients
from regraft.app.report.diagnosis.landscape import landscape
from regraft.app.report.diagnosis.ranking import ranking
from regraft.app.report.diagnosis.transfer import transfer
from regraft.app.report.facts import notes
from regraft.app.report.page import page
from regraft.app.report.render import render
from regraft.record import Cost, Finding, Record

NAMES = ("pretrained", "random weights")
AT = [-1.0, -0.5, 0.0, 0.5, 1.0]


def bowl(steep: float) -> list[list[float]]:
    return [[0.25 + steep * (a * a + b * b) for b in AT] for a in AT]


def figures() -> dict[str, Any]:
    return {
        "transfer": {
            "scores": [{"name": "logme", "value": 0.31, "low": 0.28, "high": 0.35, "meaning": "evidence a row"}],
            "skipped": [{"name": "leep", "why": "no source."}],
        },
        "curvature": {
            "matrix": "hessian", "parameters": 81_234, "rows": 256,
            "subjects": [
                {
                    "name": name, "loss": 0.3, "eigenvalues": [8.0 * s, 2.0 * s], "bounds": [0.01, 0.02],
                    "trace": {"value": 50.0, "error": 2.0}, "products": 61, "seconds": 12.0,
                    "above": {"at": [0.1, 1.0, 10.0], "share": [0.3, 0.2, 0.0], "low": [0.2, 0.1, 0.0],
                              "high": [0.4, 0.3, 0.0]},
                }
                for name, s in zip(NAMES, (1.0, 3.0))
            ],
        },
        "landscape": {
            "what": "81,234 weights", "rows": 256, "error": 0.004,
            "subjects": [
                {
                    "name": name, "alphas": AT, "betas": AT, "losses": bowl(s), "centre": 0.25, "rise": s,
                    "profile": {"at": AT, "losses": [0.25 + s * a * a for a in AT]},
                }
                for name, s in zip(NAMES, (1.0, 2.0))
            ],
        },
        "gradients": {
            "subjects": [
                {
                    "name": name, "norm": 0.5, "slope": {"value": -0.1, "error": 0.01}, "decile": 0.02,
                    "layers": [{"name": f"l{i}", "relative": 0.01 * (i + 1)} for i in range(4)],
                    "flow": [{"site": f"s{i}", "norm": math.exp(-i)} for i in range(4)],
                    "variation": {"changes": [0.1, 0.3], "largest": 0.3},
                }
                for name in NAMES
            ]
        },
        "deviation": {
            "subjects": [
                {"name": "trained", "rows": 1000, "total": 1.3, "relative": 0.12,
                 "layers": [{"name": "conv1", "value": 0.3}, {"name": "conv2", "value": 1.0}]}
            ],
        },
        "ranking": {
            "lead": "By logme.", "note": "", "names": ["logme", "leep"],
            "models": [
                {"place": i + 1.0, "standing": f"{i + 1}", "parameters": 1234 + i, "name": f"org/{n}",
                 "value": 0.8 - i, "low": 0.7 - i, "high": 0.9 - i,
                 "tied": ["b"] if n == "c" else [], "scores": {"logme": 0.8 - i}, "seconds": 3.0}
                for i, n in enumerate("abc")
            ],
        },
    }  # fmt: skip


def record(**changes: Any) -> Record:
    found = (
        Finding("features-fit", "Right on 90 %", "info", 0.9),
        Finding("deviation", "Deviation not measured", "not-applicable", detail="nothing was trained"),
        Finding("flatness", "The loss is flatter", "info", 3.0, "×"),
    )
    base = replace(samples.multiclass(), verb="diagnose", method="", scores={}, other_scores={}, findings=found)
    return replace(base, figures={**figures(), **changes})


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


def test_a_diagnosis_begins_with_what_was_found_and_ends_with_its_cost() -> None:
    shown = page(record())
    keys = [section.key for section in shown.sections]
    assert keys[:2] == ["ranking", "findings"]
    assert keys[-1] == "cost"
    assert {"transfer", "curvature", "landscape", "gradients", "deviation"} <= set(keys)
    assert "".join(piece.text for piece in shown.verdict) == "Right on 90 %. The loss is flatter. "
    text = render(record())
    for words in ("How sharp is the loss?", "8.00 ± 0.01", "Share of all eigenvalues above", "org/<wbr>a"):
        assert words in text


def test_numbers_are_those_of_the_figures() -> None:
    shown = curvature(record())
    assert [(row.name, plain(row.top), row.total) for row in shown.rows] == [
        ("pretrained", "8.00 ± 0.010", "10.0"),
        ("random weights", "24.0 ± 0.010", "30.0"),
    ]
    assert len(shown.graphs) == 2
    assert shown.graphs[1].paths[0].points.count(",") == 2  # a share of zero has no place on a logarithmic axis
    assert plain(transfer(record()).rows[0].spread) == "0.280 to 0.350"
    assert transfer(record()).skipped == (("leep", "no source"),)
    (moved,) = deviation(record()).rows
    assert (moved.rows, moved.most, plain(moved.relative)) == ("1,000", "conv2", "12.0 %")
    first, _, third = ranking(record()).places
    assert (first.place, first.others, first.seconds) == ("1", (("0.800", 0.8), ("", "")), 3.0)
    assert first.low < first.at < first.high
    assert plain(first.size) == "1,234 parameters"
    assert third.tied == "b"
    assert [row.slope for row in gradients(record()).rows] == ["−0.100 ± 0.010"] * 2
    figure = copy.deepcopy(figures()["gradients"])
    figure["subjects"][0]["variation"]["changes"] = [None, 0.3, 0.4]  # an infinite change, as JSON has it
    dots = gradients(record(gradients=figure)).graphs[2].paths[0].dots
    assert [dot.tip for dot in dots] == ["pretrained: 0.300 at 2.00", "pretrained: 0.400 at 3.00"]


def test_a_course_over_checkpoints_is_drawn_with_its_band() -> None:
    points = [{"at": 4**i, "name": f"epoch-{i}", "value": 0.5 + 0.1 * i, "low": 0.4, "high": 0.9} for i in range(3)]
    kept = figures()["ranking"]
    shown = ranking(record(ranking={**kept, "score": "logme", "course": {"word": "epoch", "points": points}}))
    (path,) = shown.course.paths
    assert (shown.course.label, shown.course.label_x) == ("logme", "epoch")
    assert len(path.band.split()) == 6
    assert [dot.tip for dot in path.dots] == ["epoch-0: 0.500", "epoch-1: 0.600", "epoch-2: 0.700"]
    assert ranking(record(ranking={**kept, "course": {"word": "epoch", "points": points[:1]}})).course is None


def test_planes_share_one_scale_and_their_middle_lies_low() -> None:
    shown = landscape(record())
    one, two = shown.planes
    assert one.centre == two.centre == (50.0, 50.0)

    def shade(plane, x: float, y: float) -> float:
        return next(c.shade for c in plane.cells if c.x <= x < c.x + c.width and c.y <= y < c.y + c.height)

    assert shade(one, 50, 50) == shade(two, 50, 50) == 0.0
    assert shade(one, 5, 5) < shade(two, 5, 5)
    areas = [sum(c.width * c.height for c in plane.cells) for plane in shown.planes]
    assert all(area == pytest.approx(10_000, rel=0.01) for area in areas)
    assert "off by at most 0.4 % of the range" in plain(shown.note)


def test_the_band_of_shares_lies_within_the_picture() -> None:
    figure = copy.deepcopy(figures()["curvature"])
    figure["subjects"][0]["above"]["high"] = [0.95, 0.3, 0.0]
    shares = curvature(record(curvature=figure)).graphs[1].paths[0]
    highest = float(shares.band.split()[0].split(",")[1])
    assert 0 < highest < float(shares.points.split()[0].split(",")[1])


def test_points_without_a_finite_loss_are_drawn_as_the_highest_and_told() -> None:
    losses: list[list[float | None]] = [[*row] for row in bowl(1.0)]
    losses[0][0] = None  # as JSON has it
    line = {"at": AT, "losses": [None, *(0.25 + a * a for a in AT[1:])]}
    shown = landscape(record(landscape={"subjects": [{**_flat(), "losses": losses, "profile": line}]}))
    (plane,), (graph,) = shown.planes, shown.graphs
    assert next(c for c in plane.cells if c.x == 0 and c.y == 80).shade == 1.0
    assert shown.high.endswith("and above")
    assert "no finite number" in shown.note
    assert len(graph.paths[0].dots) == len(AT) - 1
    assert landscape(record(landscape={"subjects": [{**_flat(), "losses": [[None] * 5] * 5}]})) is None


def test_contours_are_where_the_loss_is() -> None:
    fine = [-1 + 2 * i / 40 for i in range(41)]
    disc = [[a * a + b * b for b in fine] for a in fine]
    one = {"name": "a", "alphas": fine, "betas": fine, "losses": disc, "centre": 0.0, "rise": 0.6}
    (plane,) = landscape(record(landscape={"subjects": [one]})).planes
    shown = sorted(v for row in disc for v in row)
    top = shown[int(0.98 * len(shown))]
    levels = [(k + 0.5) / 8 * top for k in range(8)]
    ends = [part.split() for piece in plane.contours.split("M")[1:] for part in piece.split("L")]
    for x, y in ends:
        b, a = (float(x) / 100 * 41 - 0.5) / 20 - 1, (1 - float(y) / 100) * 41 / 20 - 0.5 / 20 - 1
        assert min(abs(a * a + b * b - level) for level in levels) < 0.02


def test_surfaces_are_drawn_from_the_back_to_the_front() -> None:
    faces = landscape(record()).planes[0].faces
    assert len(faces) == 16
    flat = landscape(record(landscape={"subjects": [_flat()]})).planes[0].faces
    depths = [sum(float(p.split(",")[1]) for p in face.points.split()) for face in flat]
    assert depths == sorted(depths)


def _flat() -> dict[str, Any]:
    return {"name": "flat", "alphas": AT, "betas": AT, "losses": [[0.5] * 5] * 5, "centre": 0.5, "rise": 0.0}


@pytest.mark.parametrize("name", sorted(figures()))
def test_odd_values_leave_things_out_and_never_stop_the_page(name: str) -> None:
    for odd in (None, [], "x", float("nan"), {"subjects": [None, 3, {}]}, {"models": [{"value": None}]}, {"scores": 3}):
        keys = [section.key for section in page(record(**{name: odd})).sections]
        assert name not in keys
        render(record(**{name: odd}))


def test_a_value_that_is_no_number_is_never_shown() -> None:
    for name, value in itertools.product(("curvature", "landscape", "gradients"), (None, float("nan"), float("inf"))):
        figure = copy.deepcopy(figures()[name])
        subject = figure["subjects"][0]
        for key in ("loss", "centre", "rise", "norm", "products"):
            if key in subject:
                subject[key] = value
        text = render(record(**{name: figure}))
        assert "nan" not in text.lower().replace("nano", "")
        assert ">None" not in text


def test_every_part_of_a_surface_lies_in_its_box() -> None:
    tilted = [[a + 2 * b for b in AT] for a in AT]
    for losses in (bowl(1.0), tilted, [row[::-1] for row in tilted[::-1]], [[0.5] * 5] * 5):
        one = {**_flat(), "losses": losses}
        shown = landscape(record(landscape={"subjects": [one, _flat()]}))
        left, top, width, height = map(float, shown.box.split())
        points = [
            tuple(map(float, p.split(","))) for plane in shown.planes for f in plane.faces for p in f.points.split()
        ]
        assert all(left < x < left + width and top < y < top + height for x, y in points)
        assert f'viewBox="{shown.box}"' in render(record(landscape={"subjects": [one, _flat()]}))
        assert height < max(y for _, y in points) - min(y for _, y in points) + 2.5  # and it holds nothing else


def test_ticks_stand_at_the_middles_of_cells() -> None:
    (plane,) = landscape(record(landscape={"subjects": [{**_flat(), "losses": bowl(1.0)}]})).planes
    across = {tick.label: tick.at for tick in plane.ticks}
    upwards = {tick.label: tick.at for tick in plane.ticks_y}
    for index, label in enumerate(("−1", "−0.5", "0", "0.5", "1")):
        assert across[label] == pytest.approx(100 * (index + 0.5) / 5, abs=0.01)
        assert upwards[label] == pytest.approx(100 - 100 * (index + 0.5) / 5, abs=0.01)


def test_a_plane_of_nearly_equal_losses_is_drawn_flat_and_its_range_is_told() -> None:
    noise = [[1.1 + 0.001 * ((3 * i + j) % 4) for j in range(5)] for i in range(5)]
    shown = landscape(record(landscape={"subjects": [{**_flat(), "losses": noise}]}))
    assert (shown.low, shown.high) == ("1.100", "1.155")
    assert "The losses are nearly equal, 1.1000 to 1.1030: the scale spans 5 % of them" in plain(shown.note)
    assert max(c.shade for c in shown.planes[0].cells) == pytest.approx(0.003 / 0.055, abs=0.5 / 11)
    steep = landscape(record(landscape={"subjects": [{**_flat(), "losses": bowl(1.0)}]}))
    assert "nearly" not in steep.note
    assert max(c.shade for c in steep.planes[0].cells) == 1.0
    assert landscape(record(landscape={"subjects": [_flat()]})).note == "The loss is 0.500 everywhere."


def test_a_profile_of_nearly_equal_losses_has_ticks_that_differ() -> None:
    line = {"at": AT, "losses": [1.092, 1.095, 1.1, 1.105, 1.108]}
    (profile,) = landscape(record(landscape={"subjects": [{**_flat(), "profile": line}]})).graphs
    labels = [tick.label for tick in profile.ticks_y]
    assert len(labels) == len(set(labels)) == 3
    assert "1.095" in labels


def sentence(**changes: Any) -> str:
    return plain("".join(piece.text for piece in page(replace(record(), **changes)).verdict)).strip()


def test_a_diagnosis_is_led_by_a_result_and_the_most_telling_one() -> None:
    unlike = Finding("flatness", "Curvature does not compare", "info", detail="the losses differ")
    rate = Finding("stable-rate", "Stable below 0.1", "info", 0.1, "2/λ")
    moved = Finding("deviation", "Training moved the weights by 0.3", "info", 0.3)
    rise = Finding("landscape-rise", "The loss rises by 1", "info", 1.0)
    poor = Finding("features-fit", "Right on 20 % of rows", "warning", 0.2)
    none = Finding("transfer", "Scores not measured", "not-applicable", 1.0)
    new = Finding("new", "Something new", "info", 1.0)
    assert sentence(findings=(none, unlike, rate, rise, moved)) == (
        "Training moved the weights by 0.3. The loss rises by 1."
    )
    assert sentence(findings=(new, unlike, rate)) == "Stable below 0.1. Something new."
    assert sentence(findings=(rise, moved, replace(rate, severity="warning"))).startswith("Stable below 0.1.")
    assert sentence(findings=(moved, poor)).startswith("Right on 20 % of rows.")
    shown = sentence(findings=(none, unlike))
    assert shown.startswith("Measured, and drawn below: ")
    assert "compare" not in shown
    assert sentence(findings=(none, unlike), figures={}) == "Nothing could be measured."


def test_a_ranking_is_led_by_its_first_and_its_lead() -> None:
    kept = figures()["ranking"]
    pair = {"better": "org/a", "worse": "org/b", "value": 1.0, "low": -0.1, "high": 2.1}
    other = {"better": "org/a", "worse": "org/c", "value": 2.0, "low": 1.5, "high": 2.5}
    track = Finding("track-record", "logme can be trusted", "info", 0.4, "τ")
    first = Finding("first", "org/a is first by logme, but the rows do not tell it from org/b", "advice", 1.0)
    gain = Finding("pretraining-gain", "Transfer rises from a to c", "info", 0.2)
    ranked = {"verb": "rank", "figures": {"ranking": {**kept, "score": "logme", "differences": [other, pair]}}}
    assert sentence(**ranked, findings=(track, gain, first)) == (
        "org/a is first by logme, but the rows do not tell it from org/b: 0.800 beside −0.200, a lead of 1.00 "
        "(95 % interval −0.100 to 2.10). Transfer rises from a to c."
    )
    assert sentence(**ranked, findings=(track,)) == (
        "org/a is first by logme: 0.800 beside −0.200 of org/b, a lead of 1.00 (95 % interval −0.100 to 2.10)."
    )
    near = replace(first, title="org/b2 is first by logme, but the rows do not tell it from org/c")
    models = [{"name": name, "value": value} for name, value in (("org/b2", 0.8), ("org/b", 0.7), ("org/c", 0.6))]
    named = {"verb": "rank", "figures": {"ranking": {**kept, "models": models}}}
    assert "from org/c: 0.800 beside 0.600, a lead" in sentence(**named, findings=(near,))
    assert "0.800 beside 0.700 of org/b, a lead" in sentence(**named, findings=())
    alone = {"verb": "rank", "figures": {"ranking": kept}}
    assert sentence(**alone, findings=()).endswith(
        "is first by its score: 0.800 beside −0.200 of org/b, a lead of 1.00."
    )
    assert sentence(verb="rank", figures={}, findings=(track,)) == "Nothing could be measured."


def test_what_is_no_unit_stands_before_its_number() -> None:
    def shown(unit: str, value: float = 0.041, **ends: float) -> str:
        (note,) = notes(replace(record(), findings=(Finding("x", "X", "info", value, unit, **ends),))).found
        return plain(note.value)

    assert shown("2/λ") == "2/λ = 0.041"
    assert shown("2 / λ") == "2 / λ = 0.041"
    assert shown("(1/√n) Σ ‖W − W⁰‖") == "(1/√n) Σ ‖W − W⁰‖ = 0.041"
    assert shown("τ", 0.43, low=0.2, high=0.6) == "τ = 0.430 (95 % interval 0.200 to 0.600)"
    assert shown("R²") == "R² = 0.041"
    assert shown("×") == "0.041 ×"
    assert shown("pairs", 3) == "3 pairs"
    assert shown("per place", -0.2) == "−0.200 per place"
    assert shown("of the training rows", 1.0) == "100 % of the training rows"
    assert shown("of the depth", 0.4, low=0.0, high=1.0) == "40.0 % of the depth (95 % interval 0 to 100)"


def test_passes_and_operations_are_called_those_of_the_features() -> None:
    costs_of = (
        Cost("sweep", 2.0, backbone_passes=1.0, flops=10**9),
        Cost("random weights", 2.0, backbone_passes=1.0),
        Cost("curvature", 5.0),
    )
    shown = {verb: costs(replace(record(), verb=verb, costs=costs_of)) for verb in ("adapt", "diagnose", "rank")}
    by = {verb: {fact.label: fact.note for fact in section.facts} for verb, section in shown.items()}
    assert by["adapt"]["Arithmetic"] == "floating-point operations of the backbone, counted"
    assert by["adapt"]["Backbone passes"].startswith("rows through the backbone")
    for verb in ("diagnose", "rank"):
        assert "seconds alone" in shown[verb].lead
        assert by[verb]["Backbone passes"] == "rows passed for features ÷ rows of the run"
        assert by[verb]["Arithmetic"].endswith("of the passes for features, without those of random weights")
    assert "seconds alone" not in shown["adapt"].lead
