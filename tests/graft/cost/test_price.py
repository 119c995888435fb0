"""Costs against the paper's Table 3 and against counts by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from regraft.graft.cost.counts import (
    Workload,
    alternatives,
    finetune_flops,
    gram_search_flops,
    head_flops,
    head_parts,
    paper_search_flops,
    paper_stored_words,
)
from regraft.graft.cost.row import RowCost
from regraft.heads.selection.packing import head_bytes, stored_bytes

# Head2Toe, Table 3 with the steps of Table 2: F, N, C, steps, FLOPs / fine-tuning, size / fine-tuning, size / linear
TABLE_3 = {
    "Caltech101": (0.010, 467688, 102, 5000, 0.009675, 0.020750, 2.353167),
    "CIFAR-100": (0.200, 30440, 100, 500, 0.005792, 0.025743, 2.977301),
    "Clevr-Dist": (0.001, 467688, 6, 500, 0.005747, 0.000741, 1.417419),
    "Clevr-Count": (0.005, 30440, 8, 5000, 0.000568, 0.000092, 0.132278),
    "Retinopathy": (0.200, 467688, 5, 500, 0.005657, 0.020531, 47.099634),
    "DMLab": (0.020, 467688, 6, 500, 0.005747, 0.003011, 5.756287),
    "dSpr-Orient": (0.200, 30440, 16, 500, 0.005302, 0.004183, 3.001686),
    "dSpr-Loc": (0.005, 467688, 16, 500, 0.006644, 0.002212, 1.587624),
    "DTD": (0.005, 1696552, 47, 5000, 0.015823, 0.019157, 4.692396),
    "EuroSAT": (0.100, 30440, 10, 500, 0.005267, 0.001336, 1.532776),
    "KITTI-Dist": (0.020, 467688, 4, 500, 0.005567, 0.002215, 6.350983),
    "Flowers102": (0.100, 30440, 102, 5000, 0.001117, 0.013146, 1.490882),
    "Pets": (0.002, 467688, 37, 5000, 0.003842, 0.002089, 0.649417),
    "Camelyon": (0.020, 30440, 2, 500, 0.005220, 0.000092, 0.529114),
    "Resisc45": (0.020, 467688, 45, 500, 0.009247, 0.018474, 4.725480),
    "sNORB-Azim": (0.002, 1696552, 18, 500, 0.011069, 0.004851, 3.094923),
    "sNORB-Elev": (0.050, 467688, 9, 500, 0.006016, 0.009578, 12.210897),
    "Sun397": (0.100, 30440, 397, 5000, 0.002839, 0.049781, 1.487498),
    "SVHN": (0.005, 1696552, 10, 500, 0.008464, 0.005865, 6.730334),
}
BODY = 23.484e6  # weights of a ResNet-50 without its head, which follow from the column of sizes


@pytest.mark.parametrize("task", TABLE_3)
def test_sizes_of_the_paper(task):
    fraction, width, outputs, _, _, of_tuned, of_linear = TABLE_3[task]
    words = paper_stored_words(fraction, width, outputs)
    assert words / (2048 * outputs) == pytest.approx(of_linear, rel=1e-3)
    assert words / (BODY + 2048 * outputs) == pytest.approx(of_tuned, rel=5e-3)


def test_the_search_of_the_paper_by_hand():
    one = 4 * 100 * 3 * 128 * 500 * 1.5
    assert paper_search_flops(
        [100], 3, folds=1, steps=(500,), rates=1, strengths=1, fractions=(0.2, 0.3)
    ) == pytest.approx(one)
    whole = paper_search_flops([100, 200], 3, fractions=(0.2, 0.3))
    assert whole == pytest.approx(one * (1 + 10) * (1 + 2) * 5 * 2 * 2)


def test_a_training_step_is_three_forward_passes():
    """Counted by PyTorch on a deep chain, where the first layer's missing input gradient hardly shows."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(40)))
    x = torch.randn(8, 32)
    with FlopCounterMode(display=False) as forward:
        layers(x)
    with FlopCounterMode(display=False) as step:
        layers(x).sum().backward()
    row = forward.get_total_flops() / 8
    assert step.get_total_flops() == pytest.approx(finetune_flops(row, 1, 8), rel=0.01)


def test_gram_search_by_hand():
    """One size, one fold, one penalty, one fraction: ten rows, 40 features, 3 outputs, 8 of them kept."""
    found = gram_search_flops([40], 10, 3, folds=1, strengths=1, fractions=(0.2,))
    cubed = 1000
    scores = cubed / 3 + 2 * 10 * 40 * 3
    assert found["score"] == pytest.approx(100 * 40 + scores)
    assert found["fractions"] == pytest.approx(100 * (8 + 8) + 2 * cubed / 3)
    assert found["gram"] == pytest.approx(scores + 100 * (8 + 8))
    assert (found["eigen"], found["paths"]) == (2 * 10 * cubed, 2 * 40 * 4 * 100 * 3)


def test_gram_search_grows_with_its_grid_and_stops_at_its_samples():
    base = gram_search_flops([1000], 100, 10, folds=5)
    double = gram_search_flops([1000], 100, 10, folds=5, solves=2)
    assert double == {name: 2 * value for name, value in base.items()}
    more = gram_search_flops([1000, 1000], 100, 10, folds=5)
    one = gram_search_flops([1000], 100, 10, folds=5, strengths=1)  # the second size tries one penalty
    assert more["score"] == pytest.approx(base["score"] + one["score"])
    assert more["fractions"] == pytest.approx(base["fractions"] + one["fractions"])
    assert all(more[name] == base[name] for name in ("gram", "eigen", "paths"))
    wide = [gram_search_flops([size], 100, 10, folds=5)["fractions"] for size in (10**7, 10**8)]
    assert wide[0] == pytest.approx(wide[1], rel=0.25)  # nested Grams are sampled


def test_a_search_over_many_rows_compares_cells_on_some_and_solves_on_all():
    """All rows' part by hand: scores in two passes, heads on 20 of 100 kept features by their normal equations."""
    few, many = (gram_search_flops([100], rows, 2, folds=5, fractions=(0.2,)) for rows in (4000, 9000))
    more = {name: many[name] - few[name] for name in few}
    assert more["score"] == pytest.approx(3 * (9000 * 100**2 + 2 * 9000 * 100 * 2))  # two folds choose
    heads = head_parts(9000, 20, 2, folds=1, solves=3)
    on_the_draw = {name: few[name] * 4 / 6 for name in ("eigen", "paths")}  # three folds of 4,000 rows hold 2,000
    on_the_draw["gram"] = few["gram"] - 2 * 4000**2 * 20
    assert {name: many[name] for name in heads} == pytest.approx({n: on_the_draw[n] + heads[n] for n in heads})
    assert more["fractions"] == 0
    few, many = (gram_search_flops([10**5], rows, 2, folds=5, fractions=(0.2,)) for rows in (4000, 50_000))
    assert many["paths"] - few["paths"] * 4 / 6 == pytest.approx(130 * 4 * 50_000 * 20_000 * 2)  # one fold chooses
    sampled = 2**28 // 50_000
    scores = 2 * (50_000 * sampled**2 + 2 * 50_000 * 10**5 * 2)  # without that fold, and with all rows
    assert many["score"] - few["score"] == pytest.approx(scores)
    assert many["eigen"] == pytest.approx(few["eigen"] * 4 / 6)


def test_many_rows_try_another_scaling_and_a_wider_fraction():
    """Two more heads of each fold that chooses, and the other scaling's scores."""
    plain, more = (
        gram_search_flops([100], 9000, 2, folds=5, fractions=(0.2,), **settings)
        for settings in ({}, {"wider": (0.5, 1.0), "scalings": 2})
    )
    assert more["score"] - plain["score"] == pytest.approx(3 * (9000 * 100**2 + 2 * 9000 * 100 * 2))
    heads = [head_parts(9000, kept, 2, folds=1, solves=2) for kept in (20, 50)]
    for name in heads[0]:
        assert more[name] - plain[name] == pytest.approx(sum(head[name] for head in heads))
    sizes = {"rows": 50_000, "outputs": 2, "folds": 5, "fractions": (0.2,)}  # half of 100,000 features do not fit
    assert gram_search_flops([10**5], **sizes, wider=(0.5,)) == gram_search_flops([10**5], **sizes)


def test_a_head_by_hand():
    assert head_flops(10, 4, 3, folds=2) == pytest.approx(2 * 10 * 4 * 4 + 10 * 64 + 40 * 4 * 10 * 4 * 3 * 2)
    assert head_flops(10, 4, 3, folds=2, solves=6) == 6 * head_flops(10, 4, 3, folds=2)
    assert head_bytes(5, 3) == 4 * 3 * 7
    assert stored_bytes(5, 3, 64) == head_bytes(5, 3) + 64 // 8


def test_alternatives_by_hand():
    work = Workload(2000, 1600, 4, 5, 1, RowCost(0.02, 0.01, 0.004, 10**6), 500_000, 64, {"512": 9000, "2048": 30_000})
    probe, whole, tuned = alternatives(work)
    assert [row["name"] for row in (probe, whole, tuned)] == ["probe", "all-layers", "finetune"]
    assert probe["backbone_flops"] == whole["backbone_flops"] == 2e9
    assert probe["seconds"] == pytest.approx(20)
    assert (probe["stored_bytes"], whole["stored_bytes"]) == (4 * 4 * 66, 4 * 4 * 9002)
    assert tuned["passes"] == 500 * 64 / 2000
    assert tuned["backbone_flops"] == pytest.approx(9.6e10)
    assert tuned["seconds"] == pytest.approx(2000 * 0.004 + 3 * 32_000 * 0.006)  # every row is read once
    assert tuned["stored_bytes"] == 4 * 500_000 + 4 * 4 * 66
    assert probe["head_flops"] == head_flops(1600, 64, 4, folds=5, solves=2)


def test_other_layers_are_not_priced_where_they_are_not_known():
    work = Workload(100, 80, 2, 5, 1, RowCost(0.02, 0.01, 0.0, 10**6), 1000, 8, {"None": 8})
    assert [row["name"] for row in alternatives(work)] == ["probe", "finetune"]


def test_an_unknown_pace_gives_no_seconds():
    rows = alternatives(Workload(100, 80, 2, 5, 1, RowCost(0.0, 0.0, 0.0, 10**6), 1000, 8, {"512": 90}))
    assert [row["seconds"] for row in rows] == [None] * 3


def test_a_streamed_head_is_that_of_a_draw_and_its_passes_by_hand():
    drawn = head_parts(3000, 13_000, 10, folds=5)
    many = head_parts(10_000, 13_000, 10, folds=5, solves=2)
    assert many["gram"] == 2 * drawn["gram"]
    assert many["eigen"] == 2 * drawn["eigen"]
    assert many["paths"] == pytest.approx(2 * (drawn["paths"] + 130 * 4 * 10_000 * 13_000 * 10 * 1))  # one fold chooses
    few = head_parts(6500, 13_000, 10, folds=5)
    assert few["paths"] == pytest.approx(drawn["paths"] + 130 * 4 * 6500 * 13_000 * 10 * 2)
    assert head_parts(6000, 13_000, 10, folds=5)["eigen"] == 10 * 6000**3  # as many as are factorised


def test_the_pace_of_two_passes_is_that_of_all_their_rows():
    """10 s of 100 rows and 15 s of 300; a pass that does not know its own says nothing."""
    passes = [(100, 0.1), (300, 0.05), (50, 0.0)]
    names = ("seconds_per_row", "forward_seconds_per_row", "reading_seconds_per_row")
    stores = [
        SimpleNamespace(rows=rows, flops_per_row=rows, **dict(zip(names, (pace, pace / 2, pace / 5))))
        for rows, pace in passes
    ]
    row = RowCost.of(stores)
    assert (row.seconds, row.forward_seconds, row.reading_seconds) == pytest.approx((25 / 400, 25 / 800, 25 / 2000))
    assert row.flops == 300
    assert RowCost.of(stores[2:]) == RowCost(0.0, 0.0, 0.0, 50)
    assert RowCost.of([]) == RowCost(0.0, 0.0, 0.0, 0)
