"""Numbers such as days since an epoch lie far from zero and vary little: what is told of them does not depend on it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import regraft
from regraft.graft import load_artifact
from regraft.graft.loop.rows import place
from regraft.network import ArrayPreprocess, from_module

ROWS, SHIFT, UNIT = 120, 1e6, 1e-3
RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.normal(size=(ROWS, 4)).astype(np.float32)
TARGETS = np.sin(INPUTS[:, 0]) + INPUTS[:, 1] / 2 + RANDOM.normal(size=ROWS) / 10


def network():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 20), nn.LayerNorm(20), nn.GELU())
    return from_module(body.eval(), ArrayPreprocess((4,)), name="small")


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("probe", {}),
        ("all-layers", {}),
        ("head2toe", {}),
        ("head2toe", {"solver": "exact"}),
        ("gradient", {"theta2": ["*"]}),
        ("tangent-gp", {"theta2": ["*"]}),
        ("lp-ft", {"steps": 20}),
        ("finetune", {"steps": 20}),
        ("finetune-refit", {"steps": 20}),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(map(str, value)),
)
def test_the_unit_of_the_targets_and_their_mean_change_no_score(tmp_path, method, settings):
    """R²(a + b y) = R²(y), of the evaluation and of the artifact, where a is 10⁹ times what the targets vary by."""
    told = {}
    for shift, unit in ((0.0, 1.0), (SHIFT, UNIT)):
        targets = shift + unit * TARGETS
        run = regraft.adapt(
            (INPUTS, targets), network(), method=method, kind="regression", folds=2, cache=tmp_path, **settings
        )
        run.save(tmp_path / "run")
        values = load_artifact(tmp_path / "run", model=network()).predict_proba(INPUTS).probabilities[:, 0]
        told[shift] = run.score.value, (values - shift) / unit
    # 1e6 + 1e-3 y keeps y to 1e-7; a search may then choose between equals the other way
    assert told[SHIFT][0] == pytest.approx(told[0.0][0], abs=0.02)
    assert told[0.0][0] > 0.3
    rest = TARGETS.var()
    assert np.mean((told[SHIFT][1] - told[0.0][1]) ** 2) < 0.02 * rest


def test_a_refitted_head_reads_tuned_numbers_in_their_own_unit(tmp_path):
    """Two numbers a row, one of them far from zero: as features they would be one constant and one zero."""
    two = np.stack([TARGETS, np.cos(INPUTS[:, 2]) * INPUTS[:, 3]], axis=1)
    found = []
    for targets in (two, two * [1.0, 1e-3] + [1e5, 0.0]):
        run = regraft.adapt((INPUTS, targets), network(), method="finetune-refit", cache=tmp_path, steps=60)
        found.append(run.score.value)
    assert found[1] == pytest.approx(found[0], abs=0.02)


@pytest.mark.parametrize("method", ["finetune-refit", "finetune-refit-head2toe"])
def test_a_refitted_head_reads_how_large_a_tuned_number_is(tmp_path, method):
    """Divided by its row's length it would be a sign, and the head on all layers worse than the tuned one."""
    inputs = np.random.default_rng(1).normal(size=(250, 4)).astype(np.float32)
    targets = inputs[:, 0] * 3 + np.sin(3 * inputs[:, 1])
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU())
    plain = from_module(body.eval(), ArrayPreprocess((4,)), name="plain")
    runs = {
        name: regraft.adapt((inputs, targets), plain, method=name, cache=tmp_path, steps=150)
        for name in ("finetune", method)
    }
    assert runs[method].score.value > runs["finetune"].score.value - 0.01
    runs[method].save(tmp_path / "run")
    model = load_artifact(tmp_path / "run", model=plain)
    assert model.view.unscaled == ("logits",)
    told = runs[method].predict(inputs[:9])
    np.testing.assert_allclose(model.predict(inputs[:9]), told, rtol=1e-5)


def test_the_energy_that_training_begins_with_is_that_of_the_gaps(tmp_path):
    """‖y − f‖ is the same wherever y lies; of values near 1e8 float32 keeps no digit behind the point."""
    found = []
    for shift in (0.0, 1e8):
        data = (INPUTS, shift + TARGETS)
        run = regraft.adapt(data, network(), method="finetune", kind="regression", cache=tmp_path, tau=0, steps=2)
        found.append(run.record.figures["training"]["instruments"]["energy"]["mean"])
    assert found[1] == pytest.approx(found[0], rel=1e-4)


def test_a_device_without_float64_gets_float32(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "to", lambda value, device: value)  # there is no such device here
    exact = torch.ones(2, dtype=torch.float64)
    assert place(exact, "mps").dtype == torch.float32
    assert place({"x": exact}, torch.device("mps"))["x"].dtype == torch.float32
    assert place(exact, "cuda").dtype == torch.float64
    assert place(torch.ones(2, dtype=torch.int64), "mps").dtype == torch.int64
