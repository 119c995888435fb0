"""Loading by name: every door, and one clear line for every closed one."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.network.zoo import PUBLISHED, build, published
from tests.network.zoo import save as save_model
from torch import nn

from regraft.errors import ArtifactError, MissingDependencyError, MissingPathError, ModelError
from regraft.network import (
    About,
    ArrayPreprocess,
    ImagePreprocess,
    Network,
    check_weights,
    from_module,
    load,
    preprocess_from_json,
    save,
)
from regraft.network.loaders import weights

Folders = Callable[[str], Path]

CODE = """
import torch
from torch import nn
from regraft.network import About, ArrayPreprocess, from_module
def plain():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
def image():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
def told():
    return image(), ArrayPreprocess((3, 9, 9))
def whole():
    return from_module(image(), ArrayPreprocess((3, 9, 9)))
def known():
    return from_module(image(), ArrayPreprocess((3, 9, 9)), about=About("module", "MIT", ("a", "b")))
def parallel():
    return nn.DataParallel(plain())
def compiled():
    return torch.compile(plain())
def scripted():
    return torch.jit.script(plain())
def half():
    return plain().bfloat16()
def lazy():
    return nn.Sequential(nn.LazyLinear(6), nn.ReLU(), nn.Linear(6, 3)), ArrayPreprocess((4,))
def breaks():
    raise ZeroDivisionError("oh")
class Hiding(nn.Sequential):
    def preprocess(self, x):
        return x
def hiding():
    return Hiding(*image())
def late():
    import beside_BESIDE
    return plain()
number = 3
def text():
    return "no module"
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the working folder, under a name of its own."""
    name = f"mine_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(CODE.replace("BESIDE", name))
    (tmp_path / f"beside_{name}.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return name


def test_a_local_folder_needs_no_network_and_says_nothing(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import transformers

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was used")

    folder = folders("bert")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    settings = transformers.utils.logging
    before = settings.get_verbosity(), settings.is_progress_bar_enabled()
    capfd.readouterr()
    network = load(str(folder))
    assert capfd.readouterr() == ("", "")
    assert (settings.get_verbosity(), settings.is_progress_bar_enabled()) == before
    assert network.about.source == "transformers"
    assert network.about.parameters == sum(p.numel() for p in network.module.parameters())
    assert not network.module.training
    assert {p.dtype for p in network.module.parameters()} == {torch.float32}


def test_weights_stay_as_they_were_read_when_their_file_is_written_to(folders: Folders, tmp_path: Path) -> None:
    """The fingerprint speaks of what was read; a file that stays mapped would change it, or end the process."""
    folder = shutil.copytree(folders("resnet"), tmp_path / "net")
    network, file = load(str(folder)), folder / "model.safetensors"
    x, size = network.example(2), file.stat().st_size
    with torch.no_grad():
        before = network.forward(x)
        with file.open("r+b") as opened:  # in place, as cp and rsync --inplace do
            opened.seek(size // 2)
            opened.write(b"\x3e" * (size // 2))
        assert torch.equal(network.forward(x), before)
    own = save_timm_like(tmp_path / "own")
    name, tensors, _ = weights.read(own)
    kept = {key: value.clone() for key, value in tensors.items()}
    with (own / "model.safetensors").open("r+b") as opened:
        opened.write(b"\0" * (own / "model.safetensors").stat().st_size)
    assert name == "timm/resnet18"
    assert all(torch.equal(value, kept[key]) for key, value in tensors.items())


def save_timm_like(folder: Path) -> Path:
    """A folder of tensors beside the name of their architecture."""
    folder.mkdir()
    save_file({"fc.weight": torch.randn(4, 4)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"format": weights.FORMAT, "name": "timm/resnet18"}))
    return folder


def test_the_classifier_can_be_left_out(folders: Folders) -> None:
    with_head, without = load(str(folders("resnet"))), load(str(folders("resnet")), head=False)
    assert with_head.head == "classifier.1"
    assert not without.has_logits
    x = with_head.example(2)
    with torch.no_grad():
        assert torch.equal(without.forward(x), with_head.without_head().forward(x))


def test_a_pooler_that_was_never_trained_is_not_used(tmp_path: Path) -> None:
    for family in ("bert", "vit"):
        model, processor = build(family)
        folder = tmp_path / family
        base = model if family == "bert" else model.vit
        base.save_pretrained(folder)
        processor.save_pretrained(folder)
        weights = load_file(folder / "model.safetensors")
        kept = {key: value for key, value in weights.items() if "pooler" not in key}
        save_file(kept, folder / "model.safetensors", {"format": "pt"})
        network = load(str(folder))
        assert load(str(folder)).fingerprint == network.fingerprint
        batch = network.example(2)
        arguments = batch if isinstance(batch, dict) else {"pixel_values": batch}
        with torch.no_grad():
            hidden = network.module(**arguments).last_hidden_state
            expected = hidden.mean(1) if family == "bert" else hidden[:, 0]
            torch.testing.assert_close(network.forward(batch), expected)
        assert not any("pooler" in site.name for site in network.sites)


def test_weights_in_half_precision_leave_what_is_computed_in_float32(tmp_path: Path) -> None:
    """Swin V2 computes a table of relative positions as it is built, which no file holds."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Swinv2Config(
        image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    model = transformers.Swinv2Model(config).to(torch.bfloat16)
    network = load(str(save_model(tmp_path, model, build("vit")[1])))
    expected = transformers.Swinv2Model.from_pretrained(tmp_path, dtype=torch.float32)
    tables = {name: value for name, value in expected.named_buffers() if "relative_coords_table" in name}
    assert len(tables) == 2
    found = dict(network.module.named_buffers())
    assert all(torch.equal(found[name], value) for name, value in tables.items())


def test_an_image_classifier_with_a_text_half_beside_it_is_loaded_without_its_head(tmp_path: Path) -> None:
    import transformers as hub

    model, processor = published("CLIPModel")
    model.config.num_labels = 5
    folder = save_model(tmp_path, hub.CLIPForImageClassification(model.config), processor)
    whole, bare = load(str(folder)), load(str(folder), head=False)
    assert (whole.has_logits, bare.has_logits) == (True, False)
    assert type(bare.module).__name__ == "CLIPVisionModel"
    for name, value in bare.params.items():
        assert torch.equal(value, whole.params[f"vision_model.{name}"])


@pytest.mark.parametrize("library", ["regraft", "timm", "torchvision"])
def test_a_folder_that_is_there_is_read_whatever_it_is_called(
    library: str, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folders("convnext"), tmp_path / library / "mine")
    assert load(f"{library}/mine").fingerprint == load(str(folders("convnext"))).fingerprint


def test_saved_weights_are_put_into_what_the_library_builds_whatever_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where their folder has the very name of the architecture."""

    def tiny(name: str, _architecture: str, _head: bool, seed: int | None) -> Network:
        torch.manual_seed(seed or 0)
        return Network(name, nn.Sequential(nn.Linear(4, 3)), ArrayPreprocess((4,)), About("timm"))

    monkeypatch.setattr("regraft.network.loaders.timm.load", tiny)
    monkeypatch.chdir(tmp_path)
    trained = tiny("timm/tiny", "tiny", True, 5)
    (tmp_path / "timm" / "tiny").mkdir(parents=True)
    weights.save(trained, tmp_path / "timm" / "tiny")
    assert load("timm/tiny").fingerprint == trained.fingerprint != tiny("timm/tiny", "tiny", True, 0).fingerprint


class _Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("code ran",)


def test_weights_that_torchvision_fetches_run_no_code_and_print_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The builders fetch and unpickle as here, with the words on stdout that torch has for that."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    layer = nn.Linear(4, 2)
    torch.save(layer.state_dict(), tmp_path / "tensors.pth")
    torch.save({**layer.state_dict(), "more": _Code()}, tmp_path / "code.pth")

    def get_model(name: str, weights: Any) -> nn.Module:
        read = torch.hub.load_state_dict_from_url((tmp_path / f"{name}.pth").as_uri(), progress=False)
        module = nn.Sequential(nn.AdaptiveAvgPool2d((1, 4)), nn.Flatten(), nn.Linear(12, 4), nn.Linear(4, 2))
        module[3].load_state_dict({key: read[key] for key in ("weight", "bias")})
        return module

    sizes = {"resize_size": [9], "crop_size": [9], "mean": [0.5] * 3, "std": [0.5] * 3}
    transforms = SimpleNamespace(**sizes, interpolation=SimpleNamespace(value="bilinear"))
    weights = SimpleNamespace(meta={}, transforms=lambda: transforms)
    models = SimpleNamespace(
        list_models=lambda module: ["tensors", "code"],
        get_model_weights=lambda name: SimpleNamespace(DEFAULT=weights),
        get_model=get_model,
    )
    monkeypatch.setattr("regraft.network.loaders.torchvision._models", lambda: models)
    before = dict(os.environ)
    assert torch.equal(load("torchvision/tensors").params["3.weight"], layer.weight)
    with pytest.raises(ModelError, match=r"torchvision/code cannot be loaded; got UnpicklingError"):
        load("torchvision/code")
    assert capsys.readouterr().out == ""
    assert dict(os.environ) == before


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("seed", [None, 3])
def test_the_part_that_gives_features_is_read_and_saved_as_itself(name: str, seed: int | None, tmp_path: Path) -> None:
    """No decoder, no random masking of patches; and a saved copy has the same fingerprint."""
    network = load(str(save_model(tmp_path / "whole", *published(name))), random=seed)
    assert not any("decoder" in parameter for parameter in network.params)
    save(network, tmp_path / "copy")
    again = load(str(tmp_path / "copy"))
    assert again.fingerprint == network.fingerprint
    batch = network.example(3)
    with torch.no_grad():
        found = network.forward(batch)
        assert torch.equal(again.forward(batch), found)
        assert torch.equal(network.forward(batch), found)


def test_the_encoder_of_a_masked_autoencoder_sees_every_patch(tmp_path: Path) -> None:
    """The library's own ViTMAEModel, told to hide nothing: it shuffles patches, which the class token does not see."""
    model, processor = published("ViTMAEForPreTraining")
    network = load(str(save_model(tmp_path, model, processor)))
    model.vit.config.mask_ratio = 0.0
    batch = network.example(3)
    with torch.no_grad():
        expected = model.vit.eval()(pixel_values=batch).last_hidden_state[:, 0]
        torch.testing.assert_close(network.forward(batch), expected, rtol=1e-4, atol=1e-5)


def test_classes_and_licence_are_read(folders: Folders, tmp_path: Path) -> None:
    folder = shutil.copytree(folders("convnext"), tmp_path / "named")
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {str(i): word for i, word in enumerate(["ant", "bee", "cat", "dog", "elk"])}
    config["label2id"] = {word: int(i) for i, word in config["id2label"].items()}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n")
    network = load(str(folder))
    assert network.about.classes == ("ant", "bee", "cat", "dog", "elk")
    assert network.about.licence == "apache-2.0"
    for said, licence in (
        ("license:\n- mit\n- other", "mit"), ("license:\ntags: x", ""), ('license: "bsd-3-clause"', "bsd-3-clause"),
        ("tags: x\n---\nlicense: see the file", ""),
    ):  # fmt: skip
        (folder / "README.md").write_text(f"---\n{said}\n---\n")
        assert load(str(folder)).about.licence == licence, said
    assert load(str(folders("convnext"))).about.classes == ()
    assert network.fingerprint == load(str(folders("convnext"))).fingerprint  # names change no number


def test_own_callable(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = load(f"{package}:plain")
    assert network.preprocess == ArrayPreprocess((4,))
    assert load(f"{package}:plain").fingerprint == network.fingerprint
    assert load(f"{package}:plain", random=3).fingerprint != network.fingerprint
    tensors = {name: torch.ones_like(value) for name, value in network.params.items()}
    save_file(tensors, tmp_path / "w.safetensors")
    loaded = load(f"{package}:plain", weights=str(tmp_path / "w.safetensors"))
    assert all(bool((value == 1).all()) for value in loaded.params.values())
    assert load(f"{package}:plain", head=False).sites[-1].shape == (6,)
    assert load(f"{package}:told").preprocess == ArrayPreprocess((3, 9, 9))
    assert load(f"{package}:whole").fingerprint == load(f"{package}:told").fingerprint
    known = load(f"{package}:known").about
    assert (known.classes, known.licence) == (("a", "b"), "MIT")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", os.getcwd())])  # as a script has it
    assert load(f"{package}:late").fingerprint == network.fingerprint
    assert os.getcwd() not in sys.path
    for wrapped in ("parallel", "compiled"):
        assert load(f"{package}:{wrapped}").fingerprint == network.fingerprint


def test_modules_of_any_precision_run_in_float32(package: str) -> None:
    plain = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        module = copy.deepcopy(plain).to(dtype)
        network = from_module(module, ArrayPreprocess((4,)))
        assert {value.dtype for value in network.params.values()} == {torch.float32}
        assert torch.equal(network.params["0.weight"], module[0].weight.float())
        assert module[0].weight.dtype == dtype
        assert network.example(2).dtype == torch.float32
        assert network.sites[-1].shape == (3,)
    assert {value.dtype for value in load(f"{package}:half").params.values()} == {torch.float32}


class Cast(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.half())


def test_a_module_whose_forward_pass_names_a_dtype_is_told_so() -> None:
    with pytest.raises(ModelError, match=r"must have the same dtype.*let its forward pass name no dtype"):
        _ = from_module(Cast(4, 3).half(), ArrayPreprocess((4,))).sites


def test_a_module_that_cannot_be_copied_says_what_to_do() -> None:
    module = nn.Linear(4, 3)
    module.kept = module(torch.zeros(1, 4))
    with pytest.raises(ModelError, match=r"^wn cannot be copied; got Only Tensors.*deepcopy.*detach.*parametrizations"):
        from_module(module, ArrayPreprocess((4,)), name="wn")


def test_own_callable_with_a_description_beside_its_weights(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load(f"{package}:told").module
    save_file(module.state_dict(), tmp_path / "model.safetensors")
    described = {"input": {"size": [3, 9, 9], "mean": [0.5] * 3, "std": [0.25] * 3}, "classes": ["a", "b"]}
    (tmp_path / "config.json").write_text(json.dumps({**described, "licence": "MIT"}))
    monkeypatch.setenv("HOME", str(tmp_path))
    network = load(f"{package}:image", weights="~/model.safetensors")
    assert network.preprocess == ImagePreprocess((9, 9), None, 2, (0.5,) * 3, (0.25,) * 3)
    assert (network.about.classes, network.about.licence) == (("a", "b"), "MIT")
    for wrong in ({"size": 32}, {"size": [3, "a", 9]}, {"mean": 0.5}, {"std": None}):
        (tmp_path / "config.json").write_text(json.dumps({"input": {**described["input"], **wrong}}))
        with pytest.raises(ModelError, match=r"config\.json beside model\.safetensors cannot be read; got .*callable"):
            load(f"{package}:image", weights="model.safetensors")
    for left in ("mean", "std"):
        (tmp_path / "config.json").write_text(json.dumps({"input": {"size": [3, 9, 9], left: [0.5] * 3}}))
        with pytest.raises(ModelError, match=f"expected mean and std, or neither; got {left} alone"):
            load(f"{package}:image", weights="model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(described))
    assert load(f"{package}:hiding", weights="model.safetensors").preprocess == network.preprocess
    (tmp_path / "config.json").write_text(json.dumps({**described, "classes": 3}))
    with pytest.raises(ModelError, match=r"config\.json beside model\.safetensors cannot be read; got 'int'"):
        load(f"{package}:told", weights="model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**described, "classes": None, "licence": None}))
    network = load(f"{package}:image", weights="model.safetensors")
    assert (network.about.classes, network.about.licence) == ((), "")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{}:image", "preprocessing of .* is not known.*let the callable return"),
        ("{}:breaks", r"breaks\(\) fails; got ZeroDivisionError: oh"),
        ("{}:lazy", r"lazy layer that has no size yet \(0.weight\).*run the module once"),
        ("{}:number", "cannot be called"),
        ("{}:scripted", r"is no module that can be looked into.*give the module that it was made from"),
        ("{}:text", "gives no module.*let the callable return"),
        ("{}:plane", "has no 'plane'.*did you mean plain"),
        ("{}_x:plain", "cannot be imported"),
    ],
)
def test_own_callables_that_cannot_be_used(name: str, message: str, package: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(name.format(package))


def test_weights_that_do_not_fit(package: str, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    good = {name: value.clone() for name, value in load(f"{package}:plain").params.items()}
    for change, message in (
        ({"0.weight": None}, r"1 missing \(0\.weight\)"),
        ({"9.weight": torch.zeros(1)}, r"1 left over \(9\.weight\)"),
        ({"0.bias": torch.zeros(9)}, r"1 of another shape \(0\.bias\)"),
    ):
        save_file({key: value for key, value in {**good, **change}.items() if value is not None}, path)
        with pytest.raises(ModelError, match=message):
            load(f"{package}:plain", weights=str(path))
    path.write_bytes(b"\x80\x04 not safetensors")
    with pytest.raises(ModelError, match="is no safetensors file"):
        load(f"{package}:plain", weights=str(path))
    with pytest.raises(MissingPathError, match="not there"):
        load(f"{package}:plain", weights=str(tmp_path / "none.safetensors"))
    with pytest.raises(ModelError, match="weights belong to package"):
        load("./folder", weights=str(path))


def test_weights_beside_a_network_that_has_its_own_are_refused(package: str) -> None:
    network = load(f"{package}:plain")
    check_weights(network, None)
    check_weights("a name", "w.safetensors")
    with pytest.raises(ModelError, match=r"beside .*:plain.*got w\.safetensors.*load it with them"):
        check_weights(network, "w.safetensors")


class Tied(nn.Module):
    """Two layers of one weight, and a buffer that is no part of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("factor", torch.full((4,), 2.0), persistent=False)
        self.preprocess = ArrayPreprocess((4,))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) * self.factor)


def test_what_is_saved_of_an_own_module_is_loaded_again(tmp_path: Path) -> None:
    name = f"{__name__}:Tied"
    network = load(name, random=3)
    save(network, tmp_path)
    weights = str(tmp_path / "model.safetensors")
    assert load(name).fingerprint != network.fingerprint
    assert load(name, weights=weights).fingerprint == network.fingerprint
    assert load(name, weights=weights, random=5).fingerprint == load(name, random=5).fingerprint
    left = {key: value for key, value in network.params.items() if key != "first.weight"}
    save_file(left, weights)
    with pytest.raises(ModelError, match=r"2 missing \(first\.weight\)"):
        load(name, weights=weights)


@pytest.mark.parametrize("name", ["plain", "image"])
def test_a_saved_own_module_is_loaded_by_its_name_and_its_weights(name: str, package: str, tmp_path: Path) -> None:
    """As the refusal of the folder says: with the preprocessing, whether it was guessed or stood beside the weights."""
    weights: str | None = None
    if name == "image":
        save_file(load(f"{package}:told").module.state_dict(), tmp_path / "w.safetensors")
        described = {
            "input": {"size": [3, 9, 9], "mean": [0.5] * 3, "std": [0.5] * 3},
            "classes": ["a", "b"],
            "licence": "MIT",
        }
        (tmp_path / "config.json").write_text(json.dumps(described))
        weights = "w.safetensors"
    network = load(f"{package}:{name}", weights=weights)
    save(network, tmp_path / "saved")
    file = tmp_path / "saved/model.safetensors"
    with pytest.raises(ModelError, match=f"--model {package}:{name} --weights {file}"):
        load(str(tmp_path / "saved"))
    again = load(f"{package}:{name}", weights=str(file))
    assert (again.fingerprint, again.preprocess) == (network.fingerprint, network.preprocess)
    assert (again.about.classes, again.about.licence) == (network.about.classes, network.about.licence)


def _as_timm(name: str, architecture: str, head: bool, seed: int | None) -> Network:
    """What timm's loader gives: an architecture with its own switch for the head."""
    torch.manual_seed(0 if seed is None else seed)
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3) if head else nn.Identity())
    return Network(name, module, ArrayPreprocess((4,)), About("timm"))


@pytest.mark.parametrize("head", [True, False])
def test_a_saved_architecture_of_a_library(head: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regraft.network.loaders.timm.load", _as_timm)
    network = load("timm/toy", head=head)
    save(network.with_params({name: value + 1 for name, value in network.params.items()}), tmp_path)
    again = load(str(tmp_path))
    assert again.has_logits == head
    assert all(bool((again.params[name] == value + 1).all()) for name, value in network.params.items())
    without = load(str(tmp_path), head=False)
    assert not without.has_logits
    assert torch.equal(without.params["0.weight"], again.params["0.weight"])
    drawn = load(str(tmp_path), random=3)
    assert drawn.fingerprint == load("timm/toy", head=head, random=3).fingerprint != again.fingerprint
    save_file({"0.weight": torch.zeros(6, 4)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"not those of timm/toy; got 1 missing, such as 0\.bias"):
        load(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ArtifactError, match=r"model\.safetensors cannot be read"):
        load(str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"model\.safetensors cannot be read"):
        load(str(tmp_path))


def test_a_folder_whose_weights_do_not_fit(folders: Folders, tmp_path: Path) -> None:
    folder = shutil.copytree(folders("vit"), tmp_path / "torn")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": config["intermediate_size"] + 1}))
    with pytest.raises(ModelError, match=r"\.bias of shape \(\d+,\), where it says .*from one model"):
        load(str(folder))
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    kept = {key: value for key, value in weights.items() if "layernorm_before" not in key}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"do not fit its configuration.*missing"):
        load(str(folder))
    (folder / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ModelError, match="holds no usable model"):
        load(str(folder))
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="holds no usable model"):
        load(str(folder))


@pytest.mark.parametrize("part", ["config", "model", "processor", "tokeniser"])
def test_a_repository_with_code_of_its_own_is_refused_without_a_question(
    part: str, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every class that transformers would fetch by ``auto_map``; the answer on the standard input is yes."""
    folder = shutil.copytree(folders("bert" if part == "tokeniser" else "vit"), tmp_path / "coded")
    (folder / "evil.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n")
    file, entry = {
        "config": ("config.json", {"AutoConfig": "evil.Config"}),
        "model": ("config.json", {"AutoModelForImageClassification": "evil.Model"}),
        "processor": ("preprocessor_config.json", {"AutoImageProcessor": "evil.Processor"}),
        "tokeniser": ("tokenizer_config.json", {"AutoTokenizer": ["evil.Tokenizer", None]}),
    }[part]
    config = json.loads((folder / file).read_text())
    config["auto_map"] = entry
    if part == "config":
        config["model_type"] = "evil"
    if part == "processor":
        config["image_processor_type"] = "EvilProcessor"
    if part == "tokeniser":
        config["tokenizer_class"] = "EvilTokenizer"
    (folder / file).write_text(json.dumps(config))
    asked: list[str] = []

    def answer(question: str = "") -> str:
        asked.append(question)
        return "y"

    monkeypatch.setattr("builtins.input", answer)
    try:
        load(str(folder))
        message = ""  # transformers holds the class itself and takes its own
    except ModelError as error:
        message = str(error)
    assert not asked
    assert not (tmp_path / "ran").exists()
    assert "\n" not in message
    if part == "config":
        assert "needs code of its own, and none of a repository's is run" in message


def test_no_call_into_transformers_leaves_it_open_whether_code_is_run(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers
    from transformers.models.auto.auto_factory import _BaseAutoModelClass

    given: list[Any] = []

    def spied(owner: Any, method: str) -> None:
        original = getattr(owner, method).__func__

        def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
            given.append(kwargs.get("trust_remote_code"))
            return original(cls, *args, **kwargs)

        monkeypatch.setattr(owner, method, classmethod(call))

    spied(transformers.AutoConfig, "from_pretrained")
    spied(transformers.AutoTokenizer, "from_pretrained")
    spied(transformers.AutoImageProcessor, "from_pretrained")
    spied(_BaseAutoModelClass, "from_pretrained")
    spied(_BaseAutoModelClass, "from_config")
    vit, bert = load(str(folders("vit"))), load(str(folders("bert")))
    load(str(folders("vit")), random=0)
    save(vit, folders("vit").parent / "again")
    preprocess_from_json(bert.preprocess.to_json())
    # config, model and processor or tokeniser of each; config, model, processor; processor; tokeniser
    assert len([value for value in given if value is False]) >= 11
    assert all(value is False for value in given)


def test_a_folder_without_preprocessing(folders: Folders, tmp_path: Path) -> None:
    folder = shutil.copytree(folders("vit"), tmp_path / "bare")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match="says nothing about its preprocessing"):
        load(str(folder))


def test_names_that_are_not_known(folders: Folders, tmp_path: Path) -> None:
    for folder in ("my-model", "my-models", "sketches"):  # the second holds no model, so that none is suggested
        (tmp_path / folder).mkdir()
    (tmp_path / "sketches" / "config.json").touch()
    for name, message in (
        (str(tmp_path / "sketchs"), f"did you mean sketches in {tmp_path}\\?$"),
        (str(tmp_path / "my-mode"), "check the path"),
        ("./not-there", r"there is no model in \./not-there; got no such folder. To mend it: check the path"),
        (".hidden", r"there is no model in \.hidden; got no such folder"),
        (str(tmp_path / "my-model"), "a folder without config.json"),
        (str(folders("vit") / "config.json"), "got a file"),
        ("resnet50", "write timm/resnet50 or torchvision/resnet50 if it is"),
        ("", "is not known"),
        ("regraft/none-such", "no bundled backbone"),
        ("a" * 300, "is not known"),  # longer than a file's name may be
        ("./" + "a" * 300 + "/b", "got no such folder"),
        ("~nobody-of-that-name/net", "got no such folder"),
    ):
        with pytest.raises(ModelError, match=message) as caught:
            load(name)
        assert "\n" not in str(caught.value)


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="nobody/no-such-model is not in the cache and the hub cannot be reached") as e:
        load("nobody/no-such-model")
    assert "\n" not in str(e.value)


def test_the_commit_of_the_hubs_repository_is_told(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An artifact asks for it when it is loaded: the default branch may have moved by then."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    old, new = "a" * 40, "b" * 40
    for commit, family in ((old, "vit"), (new, "resnet")):
        shutil.copytree(folders(family), tmp_path / "models--some--net" / "snapshots" / commit)
    (branch := tmp_path / "models--some--net" / "refs" / "main").parent.mkdir()
    branch.write_text(old)
    before = load("some/net")
    branch.write_text(new)
    after = load("some/net")
    assert (before.about.revision, after.about.revision) == (old, new)
    assert load("some/net", revision=before.about.revision).fingerprint == before.fingerprint != after.fingerprint
    wide = after.reading(replace(after.preprocess, resize=(64, 64)))  # what a folder says is said by a repository too
    save(wide, tmp_path / "models--some--net" / "snapshots" / ("c" * 40))
    branch.write_text("c" * 40)
    assert load("some/net").fingerprint == wide.fingerprint


def test_the_data_packs_networks(data_pack: Path) -> None:
    network = load(str(data_pack / "weights/mobilenet_v1_0.25_128"))
    assert network.head == "classifier"
    assert len(network.about.classes) == 1001
    assert isinstance(network.preprocess, ImagePreprocess)
    assert (network.preprocess.resize, network.preprocess.crop) == (146, (128, 128))
    with pytest.raises(ModelError, match="holds no usable model"):
        load(str(data_pack / "weights/cifar10_resnet20"))


SHIM = """
import json, sys, torch
try:
    import torchvision
except RuntimeError:  # built for another torch: name its operators, which no classifier calls
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(name + "(Tensor boxes) -> Tensor")
import numpy
from PIL import Image
from regraft.errors import ModelError
from regraft.network import load
name = sys.argv[1]
network, bare = load(name, random=0), load(name, random=0, head=False)
image = Image.fromarray(numpy.random.default_rng(0).integers(0, 256, (301, 257, 3), dtype=numpy.uint8))
if name.startswith("timm/"):
    import timm
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(network.module))
else:
    from torchvision import models
    transform = models.get_model_weights(name.split("/")[1]).DEFAULT.transforms()
try:
    load(name + "x")
    message = ""
except ModelError as error:
    message = str(error)
sites = {site.name: [site.layout, list(site.shape), site.prefix_tokens] for site in network.sites}
print(json.dumps({
    "head": network.head, "blocks": network.blocks, "sites": sites, "classes": len(network.about.classes),
    "bare": bare.sites[-1].name, "message": message,
    "pixels": float((network.preprocess(image) - transform(image)).abs().max()),
}))
"""
OPTIONAL: dict[str, tuple[str, int, str, list[Any]]] = {
    "torchvision/resnet18": ("fc", 8, "layer1.0.relu:1", ["map", [64, 56, 56], 0]),
    "torchvision/efficientnet_b0": ("classifier.1", 16, "features.1.0", ["map", [16, 112, 112], 0]),
    "torchvision/swin_t": ("head", 12, "features.7.1", ["map", [768, 7, 7], 0]),
    "timm/resnet18": ("fc", 8, "layer1.0.act2", ["map", [64, 56, 56], 0]),
    "timm/convnext_atto": ("head.fc", 12, "stages.0.blocks.0.mlp.act", ["map", [160, 56, 56], 0]),
    "timm/vit_tiny_patch16_224": ("head", 12, "blocks.0", ["tokens", [197, 192], 1]),
}


@pytest.mark.parametrize("name", OPTIONAL)
def test_optional_packages(name: str) -> None:
    """In a process of its own, where torchvision's missing operators may be named without consequence."""
    package = name.split("/")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    done = subprocess.run([sys.executable, "-c", SHIM, name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    head, blocks, site, form = OPTIONAL[name]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["head"], len(found["blocks"]), found["sites"][site]) == (head, blocks, form)
    assert (found["bare"], found["classes"], found["pixels"]) == ("embedding", 1000, 0.0)
    assert f"did you mean {name.split('/')[1]}" in found["message"]


SAVED = """
import json
import numpy, timm, torch
from PIL import Image
from timm.models import save_for_hf
from transformers import AutoModelForImageClassification
from regraft.network import load, save
told = []
for architecture in ("resnet18", "vit_tiny_patch16_224"):
    made = timm.create_model(architecture, num_classes=3).eval()
    save_for_hf(made, architecture, model_config={"label_names": ["ash", "elm", "fir"]}, safe_serialization=True)
    config = json.load(open(architecture + "/config.json"))
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(made))
    image = Image.fromarray(numpy.random.default_rng(0).integers(0, 256, (301, 257, 3), dtype=numpy.uint8))
    network = load(architecture)
    config.pop("model_args", None)  # as older versions of timm, and most of its repositories, have it
    json.dump(config, open(architecture + "/config.json", "w"))
    AutoModelForImageClassification.from_pretrained("./" + architecture).save_pretrained("wrapped-" + architecture)
    save(network, "copied-" + architecture)
    others = [load(start + architecture) for start in ("", "wrapped-", "copied-")]
    with torch.no_grad():
        expected = made(transform(image)[None])
        pooled = made.forward_head(made.forward_features(transform(image)[None]), pre_logits=True)
        bare = load(architecture, head=False)
        save(bare, "bare-" + architecture)  # which refuses one that would be another
        told.append({
            "classes": [each.about.classes for each in (network, *others)], "head": network.head,
            "logits": [float((each.forward(each.preprocess(image)[None]) - expected).abs().max())
                       for each in (network, *others)],
            "features": float((bare.forward(bare.preprocess(image)[None]) - pooled).abs().max()),
        })
print(json.dumps(told))
"""


def test_folders_that_timm_saved(tmp_path: Path) -> None:
    """They say how to build and feed the network in timm's words, and differ by who wrote them and when."""
    for package in ("timm", "transformers"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    code = SHIM[: SHIM.index("import numpy")] + SAVED
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    for told in json.loads(done.stdout.splitlines()[-1]):
        assert told["head"] in ("timm_model.fc", "timm_model.head")
        assert told["classes"] == [["ash", "elm", "fir"]] * 4
        assert told["logits"] == [0.0] * 4
        assert told["features"] == 0.0


def test_names_that_a_wrapper_lengthened_are_said_to_be(folders: Folders, tmp_path: Path) -> None:
    folder = shutil.copytree(folders("vit"), tmp_path / "net")
    tensors = load_file(folder / "model.safetensors")
    save_file({f"module.{name}": value for name, value in tensors.items()}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"do not fit its configuration.*take 'module.' off the names in the file"):
        load(str(folder))


def test_a_package_that_a_folder_needs_is_named(tmp_path: Path) -> None:
    if importlib.util.find_spec("timm") is not None:
        pytest.skip("timm is installed")
    config = {"architecture": "resnet18", "num_classes": 3, "pretrained_cfg": {"input_size": [3, 224, 224]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(MissingDependencyError, match=r"needs a package that is not installed.*timm"):
        load(str(tmp_path))


def test_a_processor_that_cannot_be_called_is_refused_in_a_sentence(
    tmp_path: Path, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    processor = transformers.AutoImageProcessor.from_pretrained(folders("vit"), use_fast=False)

    def refuse(*_: object, **__: object) -> None:
        raise ValueError("return_tensors must be 'pt'")

    monkeypatch.setattr(type(processor), "__call__", refuse)
    with pytest.raises(ModelError, match=r"holds no usable model.*return_tensors must be 'pt'"):
        load(str(folders("vit")))


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_optional_packages_that_do_not_load_say_so(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=f"{package} is not installed or does not load") as caught:
        load(f"{package}/resnet18")
    assert "\n" not in str(caught.value)


def test_transformers_that_is_not_there_says_so(monkeypatch: pytest.MonkeyPatch, folders: Folders) -> None:
    folder = folders("vit")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'regraft\[hub\]'"):
        load(str(folder))


@pytest.mark.parametrize("model", [nn.Linear(3, 4), None, 7])
def test_what_is_no_name_says_how_to_wrap_it(model) -> None:
    with pytest.raises(ModelError, match=rf"a model of type {type(model).__name__}; expected a name.*from_module"):
        load(model)


def test_what_a_module_was_wrapped_in_is_taken_off_and_what_is_none_is_refused() -> None:
    plain, wanted = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), ArrayPreprocess((6,))
    for wrapped in (torch.compile(plain, backend="eager"), nn.DataParallel(plain)):
        assert from_module(wrapped, wanted).fingerprint == from_module(plain, wanted).fingerprint
    inside = nn.Sequential(plain[0], torch.compile(plain[1:], backend="eager"))
    assert from_module(inside, wanted).head == "1.2"
    assert isinstance(inside[1], torch._dynamo.OptimizedModule), "the module itself stays as it is"
    with pytest.raises(ModelError, match=r"no module that can be looked into.*got a function"):
        from_module(lambda x: x, wanted)
    with pytest.raises(ModelError, match="give the module that it was made from"):
        from_module(torch.jit.trace(plain, torch.zeros(2, 6)), wanted)
    with pytest.raises(ModelError, match=r"tensors without values \(meta\)"), torch.device("meta"):
        from_module(nn.Linear(6, 4), wanted)


@pytest.mark.parametrize("layer", ["0", "2"])
def test_weights_that_are_no_numbers_are_named(layer):
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    module.get_submodule(layer).weight.data[0, 0] = float("nan")
    network = from_module(module, ArrayPreprocess((4,)))
    with pytest.raises(ModelError, match=rf"weights of module are not all numbers.*NaN or infinity in {layer}.weight"):
        _ = network.sites
