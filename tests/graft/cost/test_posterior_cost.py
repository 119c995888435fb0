"""What error bars are said to cost before they run, against what the run counts and keeps."""

from __future__ import annotations

import pytest
from tests.graft.gradient.test_gradient import LAST, arrays, network, rows_of

import regraft
from regraft.graft.cost.estimate import estimate
from regraft.graft.gradient.recipe import with_gradients
from regraft.graft.options import Options
from regraft.graft.preparation import prepare
from regraft.record import Ledger


def test_kernels_are_predicted_and_counted(tmp_path):
    x, y = arrays(90, "regression")
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
