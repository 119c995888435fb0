"""What the section on the instruments says, computed from the Record, and what it does with odd values."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from tests.app.report import chosen_samples, samples

from regraft.app.report.instruments import instruments
from regraft.app.report.page import page
from regraft.app.report.render import render


def with_seen(**changes):
    """A trained record whose instruments saw something else."""
    record = chosen_samples.finetuned(samples.multiclass())
    trained = copy.deepcopy(record.figures["training"])
    trained["instruments"].update(changes)
    return replace(record, figures={**record.figures, "training": trained})


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


def test_the_section_stands_where_a_training_was_watched() -> None:
    assert "instruments" in [section.key for section in page(with_seen()).sections]
    assert "instruments" not in [section.key for section in page(samples.multiclass()).sections]
    text = render(with_seen())
    for words in ("What did training change?", "k_gap / k_norm", "first axis of the features", "layer3.<wbr>conv"):
        assert words in text


def test_numbers_are_those_of_the_figure() -> None:
    view = instruments(with_seen())
    values = {row.name: (plain(row.value), plain(row.seconds)) for row in view.measures}
    assert values["Energy"] == ("0.310", "400 ms")
    assert values["‖∇_v L‖"][0] == "1.55"
    assert values["cos(z_T, z₀)"][0] == "0.930"
    assert [(row.tau, row.chosen) for row in view.prepared] == [("0", False), ("4", False), ("16", True), ("64", False)]
    heights = [bar.height for bar in view.histogram]
    assert (len(heights), max(heights), heights[-1]) == (20, 100.0, 100.0)
    assert heights == sorted(heights)
    assert [layer.width for layer in view.layers][-1] == 100.0
    drift, kernel, tracks = view.graphs
    assert plain(drift.paths[0].dots[0].tip) == "epoch 1: 0.725"
    assert len(drift.paths[0].dots) == 6
    assert len(kernel.paths[0].dots) == 6  # the first note has none before it
    assert len(tracks.paths) == 40
    assert {path.style for path in tracks.paths} == {0, 1, 2}
    assert len(tracks.paths[0].points.split()) == 7


def test_tracks_are_thinned_evenly() -> None:
    seen = chosen_samples.instruments(rows=100)
    assert len(instruments(with_seen(tracks=seen["tracks"])).graphs[-1].paths) == 50


@pytest.mark.parametrize("odd", [None, {}, [], "text", {"notes": [{"epoch": 0, "points": [[1.0]]}] * 3}])
def test_odd_values_leave_a_picture_out_and_stop_nothing(odd) -> None:
    for name in ("energy", "direction", "weights", "kernel", "tracks"):
        record = with_seen(**{name: odd})
        assert render(record)
        assert "nan" not in " ".join(row.value for row in instruments(record).measures)
    assert instruments(with_seen(drift=odd)) is None


def test_cheap_instruments_draw_no_kernel_and_no_tracks() -> None:
    record = with_seen()
    for name in ("kernel", "tracks"):
        del record.figures["training"]["instruments"][name]
    assert [graph.title for graph in instruments(record).graphs] == ["How far the features moved"]
