"""The small vision transformer: its formula, its taps as regraft sees them, and its class token."""

from __future__ import annotations

import math

import pytest
import torch
from tests.network.zoo import capture
from torch.nn import functional

from regraft.errors import ModelError, TapError
from regraft.features import Taps, plan
from regraft.features.pooling import choose_pooling
from regraft.network import ImagePreprocess, Network, from_module, load
from regraft.network.architectures import build
from regraft.network.loaders import bundled
from regraft.network.vit import TAPS, Attention, TinyViT, tiny_vit

VIEW = ImagePreprocess(resize=(8, 8), crop=None)
SMALL = {"classes": 5, "size": 8, "patch": 4, "depth": 2, "width": 12, "heads": 3}


def _small(seed: int = 0) -> TinyViT:
    torch.manual_seed(seed)
    module = tiny_vit(**SMALL)
    for value in module.parameters():
        value.data += 0.05 * torch.randn_like(value)
    return module


@pytest.fixture
def network() -> Network:
    return from_module(_small(), VIEW)


def test_the_page_s_network_has_its_numbers() -> None:
    module = tiny_vit(200)
    assert len(module.blocks) == 6
    assert module.positions.shape == (1, 65, 96)
    assert module.patches.weight.shape == (96, 3, 4, 4)
    assert sum(p.numel() for p in module.parameters()) == 701_672


def test_attention_is_the_papers_formula() -> None:
    torch.manual_seed(0)
    layer = Attention(6, 2).double()
    x = torch.randn(3, 4, 6, dtype=torch.float64)
    query, key, value = (x @ w.T + b for w, b in zip(layer.qkv.weight.split(6), layer.qkv.bias.split(6)))
    heads = []
    for part in (slice(0, 3), slice(3, 6)):
        weights = torch.softmax(query[..., part] @ key[..., part].transpose(1, 2) / math.sqrt(3), -1)
        heads.append(weights @ value[..., part])
    expected = torch.cat(heads, -1) @ layer.projection.weight.T + layer.projection.bias
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)


def test_the_whole_is_the_papers_equations() -> None:
    module = _small().double().eval()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    patches = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(2, 4, 48)  # row by row
    tokens = patches @ module.patches.weight.reshape(12, 48).T + module.patches.bias
    tokens = torch.cat([module.cls_token.expand(2, 1, 12), tokens], 1) + module.positions
    for block in module.blocks:
        tokens = tokens + block.attention(
            functional.layer_norm(tokens, (12,), block.norm1.weight, block.norm1.bias, 1e-6)
        )
        inner = functional.layer_norm(tokens, (12,), block.norm2.weight, block.norm2.bias, 1e-6)
        hidden = inner @ block.mlp.fc1.weight.T + block.mlp.fc1.bias
        hidden = 0.5 * hidden * (1 + torch.erf(hidden / math.sqrt(2)))
        tokens = tokens + hidden @ block.mlp.fc2.weight.T + block.mlp.fc2.bias
    last = functional.layer_norm(tokens, (12,), module.norm.weight, module.norm.bias, 1e-6)[:, 0]
    torch.testing.assert_close(module(x), last @ module.head.weight.T + module.head.bias, rtol=1e-10, atol=1e-10)


def test_head2toes_taps_are_found_in_order_with_their_class_token(network: Network) -> None:
    names = network.match(TAPS)
    inner = ("norm1", "attention", "mlp.act", "mlp")
    expected = ["module:embedded"]
    for block in (0, 1):
        expected += [("" if part == "mlp.act" else "module:") + f"blocks.{block}.{part}" for part in inner]
    assert list(names) == [*expected, "embedding"]
    sites = {site.name: site for site in network.all_sites}
    assert {sites[name].prefix_tokens for name in names if name != "embedding"} == {1}
    assert {sites[name].shape for name in names} == {(5, 12), (5, 48), (12,)}
    assert [site.name for site in network.sites] == [
        "blocks.0.mlp.act", "blocks.0", "blocks.1.mlp.act", "blocks.1", "embedding", "logits",
    ]  # fmt: skip


def test_the_taps_hold_the_values_of_their_places(network: Network) -> None:
    module, batch = network.module, network.example(3)
    values, _ = capture(network, network.match([*TAPS, "input"]), batch)
    with torch.no_grad():
        start = torch.cat([module.cls_token.expand(3, 1, 12), module.patches(batch).flatten(2).transpose(1, 2)], 1)
        start = start + module.positions
        first = module.blocks[0]
        mixed = first.attention(first.norm1(start))
        hidden = first.mlp.act(first.mlp.fc1(first.norm2(start + mixed)))
    expected = {
        "input": batch, "module:embedded": start, "module:blocks.0.norm1": first.norm1(start),
        "module:blocks.0.attention": mixed, "blocks.0.mlp.act": hidden, "module:blocks.0.mlp": first.mlp.fc2(hidden),
    }  # fmt: skip
    for name, value in expected.items():
        torch.testing.assert_close(values[name], value.detach(), rtol=0, atol=1e-6)


def test_class_tokens_are_pooled_apart_or_alone(network: Network) -> None:
    widths = {
        cls: [block.width for block in plan(network, [Taps(TAPS, (24,), cls)]).blocks]
        for cls in ("pooled", "only", "apart")
    }
    # 5 tokens of 12 features to about 24 numbers: 2 windows of 2; the hidden layer, 48 wide, has one window
    assert widths["pooled"] == [24, *(24, 24, 48, 24) * 2, 12]
    assert widths["only"] == [12, *(12, 12, 48, 12) * 2, 12]
    assert widths["apart"] == [36, *(36, 36, 96, 36) * 2, 12]
    value = torch.randn(2, 5, 12)
    only = choose_pooling((5, 12), "tokens", 24, cls="only", prefix_tokens=1)(value)
    assert torch.equal(only, value[:, 0])
    apart = choose_pooling((5, 12), "tokens", 24, cls="apart", prefix_tokens=1)(value)
    torch.testing.assert_close(apart, torch.cat([value[:, 0], value[:, 1:3].mean(1), value[:, 3:].mean(1)], 1))


def test_it_is_differentiable_forwards_and_twice(network: Network) -> None:
    module = _small().double().eval()
    batch = network.example(2).double()
    params = {name: value.detach().clone() for name, value in module.named_parameters()}
    step = {name: torch.randn_like(value) for name, value in params.items()}

    def outputs(tensors):
        return torch.func.functional_call(module, tensors, (batch,))

    with network.policy.differentiable():
        _, slope = torch.func.jvp(outputs, (params,), (step,))
        nearby = [outputs({n: v + s * 1e-6 * step[n] for n, v in params.items()}) for s in (1, -1)]
    torch.testing.assert_close(slope, (nearby[0] - nearby[1]) / 2e-6, rtol=1e-5, atol=1e-7)


def test_dropped_patches_are_drawn_in_training_alone() -> None:
    module = tiny_vit(**SMALL, keep=0.5)
    x = torch.randn(3, 3, 8, 8)
    lengths: list[int] = []
    module.blocks[0].register_forward_hook(lambda _m, _i, out: lengths.append(out.shape[1]))
    module.eval()
    assert torch.equal(module(x), module(x))
    module.train()
    torch.manual_seed(0)
    one = module(x)
    torch.manual_seed(0)
    again = module(x)
    assert torch.equal(one, again)
    assert not torch.equal(one, module(x))
    assert lengths == [5, 5, 3, 3, 3]
    tokens = torch.arange(4.0).reshape(1, 4, 1).expand(6, 4, 2)
    kept = module._some(tokens)[..., 0]
    assert all(len(set(row.tolist())) == 2 for row in kept)  # two different patches of each row


def test_it_is_saved_and_loaded_like_any_backbone(tmp_path) -> None:
    module = build("tiny_vit", SMALL)
    bundled.save_folder(tmp_path / "vit", module, arch="tiny_vit", options=SMALL, preprocess=VIEW, classes="abcde")
    network = load(str(tmp_path / "vit"))
    assert torch.equal(network.params["positions"], module.positions)
    assert network.head == "head"
    assert network.match(TAPS)[0] == "module:embedded"


@pytest.mark.parametrize(
    ("options", "told"), [({"size": 10}, "a size that patch divides"), ({"heads": 5}, "heads"), ({"keep": 0.0}, "keep")]
)
def test_what_cannot_be_built_is_said(options, told) -> None:
    with pytest.raises(ModelError, match=told):
        tiny_vit(**{**SMALL, **options})


def test_modules_are_tapped_by_path_and_wildcards_leave_them_alone(network: Network) -> None:
    assert network.match(["blocks.*"]) == ("blocks.0.mlp.act", "blocks.0", "blocks.1.mlp.act", "blocks.1")
    assert "module:norm" not in network.match(["*"])
    assert "input" not in network.match(["*"])
    assert network.match(["module:norm", "input"]) == ("input", "module:norm")
    # a module whose output is an activation that was asked for is not taken twice
    assert network.match(["module:blocks.0.mlp.act", "activation"]) == ("blocks.0.mlp.act", "blocks.1.mlp.act")
    with pytest.raises(TapError, match=r"no tap matches 'module:blocks\.0\.norn1'.*did you mean module:blocks"):
        network.match(["module:blocks.0.norn1"])


def test_module_taps_leave_the_plan_of_the_others_as_it_is(network: Network) -> None:
    plain = plan(network, [Taps()])
    mixed = plan(network, [Taps(), Taps(("module:blocks.*.norm1", "input"), (None,))])
    assert mixed.only([block.name for block in plain.blocks]) == plain
    depth = {block.name: block.depth for block in mixed.blocks}
    assert depth["input"] == 0
    assert list(depth)[:2] == ["input", "module:blocks.0.norm1"]
    assert depth["module:blocks.0.norm1"] == pytest.approx(1 / 6)
    assert depth["module:blocks.1.norm1"] == pytest.approx(3 / 6)
