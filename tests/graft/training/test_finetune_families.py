"""Every family of networks can be fine-tuned, stored whole, and predict the same again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from tests.network.zoo import FAMILIES, build, save

from regraft.data import scan
from regraft.errors import ModelError
from regraft.features import Taps, plan, pool_batch
from regraft.graft import Adapted, load_artifact, save_artifact
from regraft.graft.adapted.model import with_own_head
from regraft.graft.adapted.view import View
from regraft.graft.stages.config import Optimiser, TrainConfig
from regraft.graft.training.finetune import finetune
from regraft.graft.training.grafted import Grafted
from regraft.graft.training.start import start
from regraft.heads import Readout
from regraft.linear import Blocks, Dense
from regraft.network import from_module, load, reinitialised

CONFIG = TrainConfig(steps=4, batch_size=6, optimiser=Optimiser(lr=1e-2, weight_decay=0.0, layer_decay=0.8))


@pytest.fixture(scope="module", params=FAMILIES)
def network(request, tmp_path_factory):
    pytest.importorskip("transformers")
    return load(str(save(tmp_path_factory.mktemp(request.param), *build(request.param))))


@pytest.fixture(scope="module")
def rows(network, tmp_path_factory):
    random = np.random.default_rng(0)
    if network.preprocess.modality == "text":
        table = tmp_path_factory.mktemp("rows") / "rows.csv"
        words = ["good", "bad"]
        lines = [f"{'it is ' * (i % 3)}a {words[i % 2]} film,{words[i % 2]}" for i in range(12)]
        table.write_text("\n".join(["text,label", *lines]) + "\n")
        return scan(table)
    pictures = [Image.fromarray(random.integers(0, 255, (36, 40, 3), dtype=np.uint8)) for _ in range(12)]
    return scan((np.stack([np.asarray(p) for p in pictures]), np.array(["a", "b"] * 6)))


def test_it_is_fine_tuned_and_kept_whole(network, rows, tmp_path):
    tuned = finetune(start(network, rows), rows, CONFIG).adapted
    moved = {n for n, v in network.params.items() if not torch.equal(v, tuned.network.params[n])}
    assert len(moved) > len(network.params) / 4  # gradients of the smallest random networks nearly vanish
    assert all(torch.equal(v, tuned.network.buffers[n]) for n, v in network.buffers.items())
    save_artifact(tuned, tmp_path, provenance={})
    loaded = load_artifact(tmp_path, model=network, device="cpu")
    live = tuned.predict_proba(rows).probabilities
    assert np.array_equal(loaded.predict_proba(rows).probabilities, live)
    own = with_own_head(tuned)
    refitted = replace(tuned, network=own, own_head=(2, tuned.plan.blocks[0].width))
    save_artifact(refitted, tmp_path / "refit", provenance={})
    again = load_artifact(tmp_path / "refit", model=network, device="cpu")
    assert again.network.fingerprint == own.fingerprint
    np.testing.assert_allclose(again.predict_proba(rows).probabilities, live, atol=1e-6)
    save_artifact(refitted, tmp_path / "embedded", provenance={}, embed=True)
    whole = load_artifact(tmp_path / "embedded", device="cpu")
    np.testing.assert_allclose(whole.predict_proba(rows).probabilities, live, atol=1e-6)


def test_all_its_layers_can_be_trained_through(network):
    wanted = plan(network, [Taps(sizes=(16,))])
    random = torch.Generator().manual_seed(0)
    weights = Blocks({b.name: torch.randn(b.width, 2, generator=random) for b in wanted.blocks})
    adapted = Adapted(network, wanted, View("unit"), Readout(weights, torch.zeros(2), "softmax"), "binary", ("a", "b"))
    batch = network.example(3)
    values = pool_batch(network, wanted.blocks, batch)
    expected = adapted.readout.logits(adapted.view.design({n: Dense(v) for n, v in values.items()}, 2))
    module = Grafted(adapted)
    module.train()
    out = module(batch)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
    out.square().sum().backward()
    reached = [p for name, p in module.backbone.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0]
    assert len(reached) > len(network.params) / 2


def test_weights_can_be_drawn_anew(network):
    """Class tokens, position tables and layer scales too, which no module of their own draws."""
    fresh = reinitialised(network, 3)
    assert fresh.fingerprint == reinitialised(network, 3).fingerprint != reinitialised(network, 4).fingerprint
    assert fresh.forward(fresh.example(2)).isfinite().all()
    top = network.blocks[-1]
    part = reinitialised(network, 3, [top])
    for name, value in network.params.items():
        if not name.startswith(f"{top}."):
            assert torch.equal(part.params[name], value)
    assert any(not torch.equal(part.params[name], value) for name, value in network.params.items())


def test_weights_that_nothing_draws_are_refused(network):
    lacking = [
        part for part in network.module.modules()
        if list(part.parameters(recurse=False)) and not hasattr(part, "reset_parameters")
    ]  # fmt: skip
    alone = from_module(network.module, network.preprocess, name="mine")
    if lacking:
        with pytest.raises(ModelError, match="has no reset_parameters, and mine leads to no such architecture"):
            reinitialised(alone, 3)
    else:
        assert reinitialised(alone, 3).fingerprint != alone.fingerprint
