"""What training is said to cost: an epoch of head probing, and what looks on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.features.toy import toy_manifest, toy_network
from tests.graft.cost.test_estimate import ready

from regraft.graft.cost import training
from regraft.graft.options import Options
from regraft.graft.preparation import prepare
from regraft.graft.problem import Task
from regraft.graft.recipe import METHODS
from regraft.graft.training.instruments import Instruments


def test_an_epoch_of_probing_on_some_rows_stands_for_all(tmp_path, monkeypatch):
    clock = [0.0]

    def ticking(head, rows, config, *, objective, on_epoch):
        for epoch in range(2):
            clock[0] += 1
            on_epoch(epoch, head)

    monkeypatch.setattr(training, "_PROBED", 10)
    monkeypatch.setattr(training, "train", ticking)
    monkeypatch.setattr(training.time, "perf_counter", lambda: clock[0])
    found, _ = ready(tmp_path, METHODS["finetune"].altered(tau=3, steps=2))
    assert training._probing_epoch(found, Task(found.fit.labels, None, found.metric)) == 40 / 10


@pytest.mark.parametrize(("parts", "kept"), [(("test",), 1), (("validation",), 2)])
def test_what_looks_on_is_priced_for_each_network_that_is_kept(tmp_path, monkeypatch, parts, kept):
    monkeypatch.setattr(Instruments, "foreseen", lambda *_: (5.0, 60))
    recipe = METHODS["lp-ft"].altered(steps=2, lr=1e-2)
    manifest = replace(toy_manifest(60), split=("train",) * 40 + parts * 20)
    found = prepare(manifest, toy_network(), method=recipe, options=Options(cache=tmp_path))
    *_, cost = training.training_cost(found, Options(cache=tmp_path))
    assert (cost.stage, cost.seconds, cost.backbone_passes) == ("instruments", 5.0 * kept, kept)
    forward = found.network.flops(torch.zeros(1, 3, 6, 6))
    assert cost.flops == pytest.approx(kept * 60 * forward, rel=0.25)
