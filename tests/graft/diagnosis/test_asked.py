"""What is asked of a diagnosis or a ranking reaches it: sizes, seeds, groups, and the order of classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.features.toy import toy_arrays, toy_manifest, toy_network

import regraft
from regraft.data import scan
from regraft.diagnose.transfer.ranking import rank_models
from regraft.errors import DataError
from regraft.graft import Options, Scope, diagnose, rank
from regraft.graft.diagnosis.case import unit_of
from regraft.graft.diagnosis.of_model import case_of_model
from regraft.graft.diagnosis.of_run import _trained_on, case_of_run
from regraft.record import Ledger, Record


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    return Options(folds=3, cache=tmp_path_factory.mktemp("cache"), batch_size=8)


def test_the_seed_and_the_sizes_reach_the_case(options):
    scope = Scope(rows=24, top=3, points=7)  # so many eigenvalues and points that neither stands for the other
    one, two = (
        case_of_model(toy_manifest(60), toy_network(7), scope, replace(options, seed=seed), Ledger()).case
        for seed in (0, 1)
    )
    assert (two.top, two.points, two.seed) == (3, 7, 1)
    assert one.subjects[0].inputs.ids != two.subjects[0].inputs.ids
    first, second = (case.subjects[1].network.params["conv1.weight"] for case in (one, two))
    assert not torch.equal(first, second)


def test_the_same_classes_in_another_order_are_refused(options, tmp_path):
    data, other = toy_manifest(60), toy_manifest(60, seed=1)
    target = replace(other.target, classes=other.target.classes[::-1], values=2 - other.target.values)
    turned = replace(other, target=target)
    regraft.adapt(data, toy_network(), method="lp-ft", steps=1, lr=0.01, cache=options.cache).save(tmp_path / "run")
    scope = Scope(rows=24, top=3, points=7)
    case = case_of_run(data, tmp_path / "run", scope, replace(options, seed=1), Ledger(), model=toy_network()).case
    assert (case.top, case.points, case.seed) == (3, 7, 1)
    with pytest.raises(DataError, match=r"labels are not those.*in the order"):
        diagnose(turned, toy_network(), run=tmp_path / "run", scope=scope, options=options)
    with pytest.raises(DataError, match=r"source's labels are not the target's.*in the order"):
        diagnose(data, toy_network(), source=turned, checks="feasibility", options=options)


def test_a_run_that_does_not_say_its_rows_was_trained_on_all_but_the_test_split():
    task = {"rows": {"train": 40, "validation": 8, "test": 12}}
    assert _trained_on(Record("adapt", "done", "finetune", task, {}, {}, {})) == 48


def test_the_unit_of_numbers_is_that_of_those_which_are_known():
    x, y = toy_arrays(60)[0], np.random.default_rng(0).normal(1000.0, 10.0, (60, 2))
    y[:40, 1] = np.nan
    shift, spread = unit_of(scan((x, y)).target)
    np.testing.assert_allclose(shift, np.nanmean(y, 0), rtol=1e-6)
    np.testing.assert_allclose(spread, np.nanstd(y, 0), rtol=1e-3)


def test_copies_of_a_row_do_not_tell_backbones_apart(options, monkeypatch):
    asked = {}

    def spied(*arguments, **given):
        asked.update(given)
        return rank_models(*arguments, **given)

    monkeypatch.setattr("regraft.graft.diagnosis.rank.rank_models", spied)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 3, 6, 6)).astype(np.float32), rng.integers(0, 2, 20)
    rank(scan((np.tile(x, (6, 1, 1, 1)), np.tile(y, 6))), [toy_network(), toy_network(1)], options=options)
    assert len(asked["groups"]) == 120
    assert len(set(asked["groups"])) == 20


def test_intervals_are_by_the_seed(options):
    models, found = [toy_network(), toy_network(1)], []
    for seed in (0, 1):
        record = rank(toy_manifest(60), models, score="logme", options=replace(options, seed=seed))
        figure = record.figures["ranking"]
        found.append((figure["differences"][0]["low"], figure["models"][0]["low"]))
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]
