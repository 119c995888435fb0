"""What error bars are said to cost before they run, against what the run counts and keeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.features.toy import toy_manifest, toy_network
from tests.graft.gradient.test_gradient import LAST, arrays, network, rows_of

import regraft
from regraft.graft.cost import posterior
from regraft.graft.cost.estimate import estimate
from regraft.graft.cost.posterior import with_posterior_cost
from regraft.graft.cost.row import RowCost
from regraft.graft.gradient.recipe import with_gradients
from regraft.graft.options import Options
from regraft.graft.preparation import prepare
from regraft.record import Cost, Ledger


def told_by_derivatives() -> tuple[np.ndarray, np.ndarray]:
    """Rows, and two numbers that the network would give with other weights in its last convolution."""
    x, _ = arrays(90, "regression")
    net, generator = network(), torch.Generator().manual_seed(0)
    own = net.params["4.weight"]
    moved = net.with_params({"4.weight": own + 0.5 * own.std() * torch.randn(own.shape, generator=generator)})
    with torch.no_grad():
        return x, moved.forward(torch.from_numpy(x)).numpy()[:, :2]


def test_kernels_are_predicted_and_counted(tmp_path):
    x, y = told_by_derivatives()  # so that the model keeps them
    manifest, options = rows_of(x, y, tested=30), Options(cache=tmp_path, folds=3, batch_size=16)
    recipe = with_gradients("tangent-gp", None, LAST)
    ready = prepare(manifest, network(), method=recipe, options=options, ledger=Ledger())
    for passes in (
        0,
        1,
    ):  # it keeps what comes before θ₂: the pass for the features, or, where they are stored, its own
        said = estimate(ready, options)
        run = regraft.adapt(manifest, network(), method=recipe, options=options)
        predicted, counted = ({cost.stage: cost for cost in each.costs}["solve"] for each in (said, run.record))
        assert predicted.backbone_passes == passes
        assert counted.backbone_passes == pytest.approx(passes, abs=0.1)  # the tape looks at three rows
    assert 1 / 3 < predicted.flops / counted.flops < 3
    saved = run.save(tmp_path / "run")
    assert 0.3 < said.artifact_bytes / (tmp_path / "run" / "model.safetensors").stat().st_size < 3
    kept = saved.record.figures["price"]["rows"][0]["stored_bytes"]
    assert 0.8 < kept / (tmp_path / "run" / "model.safetensors").stat().st_size < 1.2


def test_an_eigendecomposition_grows_with_the_cube_of_its_rows(tmp_path, monkeypatch):
    clock, eigh = [0.0], torch.linalg.eigh

    def slow(matrix):
        clock[0] += 1.0
        return eigh(matrix)

    monkeypatch.setattr(posterior.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(torch.linalg, "eigh", slow)
    took = {}
    for rows in (32, 64):
        options = Options(cache=tmp_path, folds=3, batch_size=16)
        recipe = with_gradients("tangent-gp", "activation", None)
        manifest = replace(toy_manifest(rows + 20), split=("train",) * rows + ("test",) * 20)
        found = prepare(manifest, toy_network(), method=recipe, options=options)
        spent, _ = with_posterior_cost(Cost("solve", 0.0), found, options, 1, RowCost(0.0, 0.0, 0.0, 0), 0.0)
        took[rows] = spent.seconds
    assert took[64] == pytest.approx(8 * took[32])
