"""Copies of an input stay in one fold, and say so; groups that were given come first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.features.toy import toy_manifest, toy_network
from torch import nn

from regraft import adapt
from regraft.data import scan
from regraft.errors import DataError
from regraft.graft import Options, rank
from regraft.graft.alike import together
from regraft.network import ArrayPreprocess, from_module


def copied(rows=60, copies=15):
    """The first rows stand a second time at the end."""
    plain = toy_manifest(rows)
    return plain.take(np.concatenate([np.arange(rows), np.arange(copies)]))


def test_copies_of_a_row_are_scored_by_the_fold_of_the_row(tmp_path):
    manifest = copied()
    done = adapt(manifest, toy_network(), method="probe", options=Options(cache=tmp_path, folds=3))
    header, *lines = done.rows
    fold = {id_: [] for id_ in manifest.ids}
    for line in lines:
        told = dict(zip(header, line))
        fold[told["id"]].append(told["fold"])
    assert sum(len(found) == 2 for found in fold.values()) == 15
    assert all(len(set(found)) == 1 for found in fold.values())
    (found,) = [f for f in done.record.findings if f.code == "rows-kept-together"]
    assert (found.severity, found.value) == ("info", 15)
    assert done.score.interval == "wilson, by a bootstrap over 60 groups"
    assert "groups-across-splits" not in {f.code for f in done.record.findings}


def test_copies_of_too_few_inputs_are_refused_by_name(tmp_path):
    x = np.zeros((12, 3, 6, 6), np.float32)
    x[6:] = 1
    with pytest.raises(
        DataError,
        match=r"copies of an input.*got 2 groups of 2 different inputs in 12.*bring rows of other inputs",
    ):
        adapt((x, [0, 1] * 6), toy_network(), method="probe", options=Options(cache=tmp_path, folds=3))
    x[4:8] = 2
    with pytest.raises(
        DataError, match=r"3 groups are too few .*at least 4 groups.*: bring rows of other inputs, or use"
    ):
        adapt((x, [0, 1] * 6), toy_network(), method="finetune", options=Options(cache=tmp_path))


def test_groups_that_a_common_input_joins_to_one_are_refused_by_what_joins_them(tmp_path):
    common = replace(copied(30, 3), groups=("a",) * 10 + ("b",) * 10 + ("c",) * 10 + ("b", "c", "a"))
    rows = common.take(np.r_[0, 1:33])
    with pytest.raises(DataError, match=r"groups that share an input are one.*got 1 group of 30 different inputs"):
        adapt(rows, toy_network(), method="probe", options=Options(cache=tmp_path, folds=3))


def test_rows_without_copies_and_groups_that_part_none_stay_as_they_are():
    network = toy_network()
    assert together(network.preprocess, toy_manifest(20)).groups is None
    named = replace(copied(20, 5), groups=tuple("abcde" * 5))
    assert together(network.preprocess, named) is named


def test_groups_that_share_an_input_are_joined():
    network = toy_network()
    alone = replace(copied(20, 5), groups=tuple(f"g{row:02d}" for row in range(25)))
    assert together(network.preprocess, alone).groups == (*alone.groups[:20], *alone.groups[:5])
    chain = replace(copied(6, 2), groups=("a", "b", "b", "c", "d", "d", "e", "c"))  # a = e, b = c; d by itself
    assert together(network.preprocess, chain).groups == ("a", "b", "b", "b", "d", "d", "a", "b")


def test_copies_in_groups_of_their_own_are_not_scored_by_each_other(tmp_path):
    manifest = copied(60, 60)
    parted = replace(manifest, groups=tuple(f"photo {row}" for row in range(120)))
    options = Options(cache=tmp_path, folds=3)
    joined, plain = (adapt(m, toy_network(), method="probe", options=options) for m in (parted, manifest))
    assert joined.score.value == plain.score.value
    assert joined.score.interval == "wilson, by a bootstrap over 60 groups"
    assert "rows-kept-together" in {found.code for found in joined.record.findings}


def few_valued(repeats=20):
    """Rows of three columns of zeros and ones, whose labels follow the first in nine rows of ten."""
    rng = np.random.default_rng(0)
    x = np.tile([[i & 1, i >> 1 & 1, i >> 2] for i in range(8)], (repeats, 1)).astype(np.float32)
    return x, np.where(rng.random(len(x)) < 0.9, x[:, 0], 1 - x[:, 0]).astype(int)


def columns_network(seed=0):
    torch.manual_seed(seed)
    return from_module(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)), ArrayPreprocess((3,)))


def test_rows_of_few_numbers_are_cases_and_no_copies(tmp_path):
    x, y = few_valued()
    network, options = columns_network(), Options(cache=tmp_path, folds=4)
    rows = scan((x, y))
    assert together(network.preprocess, rows).groups is None
    named = replace(rows, groups=tuple("ab" * 80))  # nor do equal numbers join the groups that the data names
    assert together(network.preprocess, named) is named
    done = adapt(rows, network, method="probe", options=options)
    codes = {finding.code: finding for finding in done.record.findings}
    assert not {"rows-kept-together", "label-conflict"} & set(codes)
    assert (codes["equal-rows"].severity, codes["equal-rows"].value) == ("info", 152)
    assert done.score.value > 0.8
    ranked = rank(rows, [network, columns_network(1)], options=options)
    assert [f.code for f in ranked.findings if f.code in ("repeated-rows", "equal-rows")] == ["equal-rows"]


def test_rows_of_numbers_that_seldom_recur_are_copies():
    x = np.array([[i >> bit & 1 for bit in range(8)] for i in range(90)], np.float32)
    for count, copies in ((10, True), (11, False)):  # 90 of 100 rows differ, of 101 fewer than nine in ten
        rows = scan((np.concatenate([x, x[:count]]), np.arange(90 + count) % 2))
        assert (together(None, rows).groups is not None) == copies


def test_rows_of_a_measured_quantity_that_were_drawn_often_are_copies():
    rng = np.random.default_rng(0)
    for different, values, copies in ((40, 40, True), (40, 20, True), (40, 19, False), (20, 20, False)):
        i = np.arange(different)
        x = np.stack([np.minimum(i, values - 1), i % 7, i // 7], 1).astype(np.float32)
        rows = scan((rng.permutation(np.tile(x, (3, 1))), np.arange(3 * different) % 2))
        assert (together(None, rows).groups is not None) == copies
