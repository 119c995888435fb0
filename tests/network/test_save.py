"""A saved network is the one that is loaded again, or it is not saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.network.texts import make_bert, make_tokenizer
from torch import Tensor, nn

from regraft.errors import ModelError
from regraft.network import About, ArrayPreprocess, Network, fold, load, save

Folders = Callable[[str], Path]
BUNDLED = "regraft/fashion-resnet"


def named(name: str, folders: Folders) -> str:
    return name if name == BUNDLED else str(folders(name))


@pytest.mark.parametrize("name", [BUNDLED, "resnet"])
def test_without_its_head_or_reading_other_images_it_is_saved_as_it_is(
    name: str, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    whole = load(named(name, folders))
    headless = load(named(name, folders), head=False)
    for network in (
        headless,
        whole.reading(replace(whole.preprocess, resize=(24, 24), crop=None)),
        headless.reading(ArrayPreprocess((3, 24, 24))),
        headless,  # what said how the one before read is gone
    ):
        save(network, tmp_path / "copy")
        again = load("~/copy")
        assert again.fingerprint == network.fingerprint
        assert again.preprocess == network.preprocess
        assert again.has_logits == network.has_logits
    save(again, tmp_path / "copy of the copy")
    assert load("~/copy", random=3).head == ""  # drawn anew without its head, too


@pytest.mark.parametrize("name", [BUNDLED, "resnet"])
def test_a_network_whose_copy_would_be_another_is_refused_and_nothing_is_left(
    name: str, folders: Folders, tmp_path: Path
) -> None:
    network = load(named(name, folders))
    width = network.without_head().sites[-1].shape[0]
    for changed in (network.with_head(torch.ones(2, width)), fold(network).network):
        with pytest.raises(ModelError, match="cannot be saved as it is now; expected a folder that gives the same"):
            save(changed, tmp_path / "copy")
        assert list((tmp_path / "copy").iterdir()) == []
    count = len(network.params[f"{network.head}.weight"])
    other = network.with_head(torch.ones(count, width), torch.ones(count), [f"new {i}" for i in range(count)])
    if name == BUNDLED:  # a last layer of the same shape is what the folder holds
        save(other, tmp_path / "copy")
        assert load(str(tmp_path / "copy")).about.classes == other.about.classes
    else:
        with pytest.raises(ModelError, match="got the names of other classes"):
            save(other, tmp_path / "copy")


def test_a_text_classifier_without_its_head_keeps_its_pooler(tmp_path: Path) -> None:
    folder = make_bert(tmp_path / "classifier", make_tokenizer(), "BertForSequenceClassification")
    network = load(str(folder), head=False)
    save(network, tmp_path / "copy")
    again, batch = load(str(tmp_path / "copy")), network.example(3)
    assert again.fingerprint == network.fingerprint
    with torch.no_grad():
        assert torch.equal(again.forward(batch), network.forward(batch))


def test_torchvisions_builders_are_told_what_they_take_from_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a folder's tensors go into another architecture: of another size, with other heads, or of other colours."""
    asked: list[dict[str, object]] = []

    def get_model(name: str, weights: object, **options: object) -> nn.Module:
        asked.append(options)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))

    transforms = SimpleNamespace(
        resize_size=[9], crop_size=[9], mean=[0.5] * 3, std=[0.5] * 3, interpolation=SimpleNamespace(value="bilinear")
    )
    weights = SimpleNamespace(meta={"min_size": (518, 518)}, transforms=lambda: transforms)
    models = SimpleNamespace(
        list_models=lambda module: ["googlenet", "inception_v3", "vit_h_14", "resnet18"],
        get_model_weights=lambda name: SimpleNamespace(DEFAULT=weights),
        get_model=get_model,
    )
    monkeypatch.setattr("regraft.network.loaders.torchvision._models", lambda: models)
    for name in models.list_models(None):
        load(f"torchvision/{name}", random=0)
    colours = {"transform_input": True}
    assert asked == [{**colours, "aux_logits": False}, colours, {"image_size": 518}, {}]
    load("torchvision/vit_h_14")
    assert asked[-1] == {}  # which the weights then say


class TwoHeads(nn.Module):
    """As networks of timm that were distilled: the mean of two heads' logits."""

    def __init__(self, heads: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
        self.head, self.head_dist = (nn.Linear(6, 3) if heads else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return (self.head(x) + self.head_dist(x)) / 2


def _of_timm(name: str, architecture: str, head: bool, seed: int | None) -> Network:
    torch.manual_seed(0 if seed is None else seed)
    return Network(name, TwoHeads(head), ArrayPreprocess((4,)), About("timm"))


def test_a_folder_of_a_librarys_architecture_goes_by_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regraft.network.loaders.timm.load", _of_timm)
    network = load("timm/toy")
    trained = network.with_params({name: value + 1 for name, value in network.params.items()})
    save(trained, tmp_path / "first")
    again = load(str(tmp_path / "first"))
    assert again.name == str(tmp_path / "first")
    (tmp_path / "first").rename(tmp_path / "moved")
    save(again.reading(ArrayPreprocess((4,), (1.0,), (2.0,))), tmp_path / "second")
    second = load(str(tmp_path / "second"))
    assert second.preprocess == ArrayPreprocess((4,), (1.0,), (2.0,))
    assert torch.equal(second.params["head.bias"], network.params["head.bias"] + 1)
    headless = load(str(tmp_path / "moved"), head=False)
    assert headless.sites[-1].shape == (6,)
    assert not headless.has_logits
    assert torch.equal(headless.params["body.0.bias"], network.params["body.0.bias"] + 1)
