"""The bundled backbone, and the folder format it shares with ``regraft pretrain``."""

from __future__ import annotations

import json
import shutil
from importlib import resources
from pathlib import Path

import pytest
import torch
from PIL import Image

from regraft.data import scan
from regraft.errors import ArtifactError, MissingPathError, ModelError
from regraft.files import file_digest
from regraft.network.architectures import build
from regraft.network.load import load as load_network
from regraft.network.loaders import bundled
from regraft.network.preprocess import ImagePreprocess
from regraft.record import Record

NAME = "regraft/fashion-resnet"
OPTIONS = {"channels": [4, 6], "classes": 3}


def _shipped() -> Path:
    return Path(str(resources.files("regraft"))) / "bundled" / "fashion-resnet"


def _folder(path: Path, stored: bundled.Stored = "float32") -> torch.nn.Module:
    torch.manual_seed(3)
    module = build("small_resnet", OPTIONS)
    module(torch.randn(8, 3, 8, 8))  # BatchNorm's statistics leave their first values
    bundled.save_folder(
        path, module, arch="small_resnet", options=OPTIONS,
        preprocess=ImagePreprocess((8, 8), None, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0)),
        classes=("a", "b", "c"), licence="MIT", stored=stored,
    )  # fmt: skip
    return module.eval()


def test_the_shipped_files_are_small_whole_and_described() -> None:
    folder = _shipped()
    config = json.loads((folder / "config.json").read_text())
    weights = folder / "model.safetensors"
    assert weights.stat().st_size <= 1_500_000
    assert config["weights"]["sha256"] == file_digest(weights)
    record = Record.load(folder / "record.json")
    assert record.artifact_bytes == weights.stat().st_size
    assert config["licence"] == "MIT"
    assert "Zalando" in (folder / "README.md").read_text()
    assert f"{100 * record.headline.value:.1f} %" in (folder / "README.md").read_text()


def test_the_bundled_name_loads_in_eval_mode_with_its_classes() -> None:
    assert NAME in bundled.names()
    before = torch.get_rng_state()
    module, preprocess, about = bundled.load(NAME)
    assert torch.equal(before, torch.get_rng_state())
    assert not module.training
    assert (about.source, about.licence, len(about.classes)) == ("regraft", "MIT", 10)
    assert about.parameters == sum(p.numel() for p in module.parameters())
    row = preprocess(Image.new("L", (8, 8), 40))
    assert row.shape[0] == 3
    assert module(preprocess.collate([row, row])).shape == (2, 10)


def test_the_whole_loader_makes_a_network_of_it(tmp_path: Path) -> None:
    network = load_network(NAME)
    assert network.head == "fc"
    assert network.blocks == ("layer1.0", "layer2.0", "layer3.0")
    assert network.sites[-1].name == "logits"
    module = _folder(tmp_path / "own")
    batch = torch.randn(4, 3, 8, 8)
    assert torch.equal(load_network(str(tmp_path / "own")).forward(batch), module(batch).detach())


def test_the_shipped_accuracy_is_that_of_the_shipped_weights(data_pack: Path) -> None:
    record = Record.load(_shipped() / "record.json")
    test = scan(data_pack / "images" / "fashion_mnist").part("test")
    module, preprocess, about = bundled.load(NAME)
    assert test.target is not None
    assert test.target.classes == about.classes
    right = 0
    for rows in torch.arange(len(test)).split(500):
        batch = preprocess.collate([preprocess(test.inputs.read(int(row))) for row in rows])
        with torch.no_grad():
            right += int((module(batch).argmax(1).numpy() == test.target.values[rows.numpy()]).sum())
    score = record.scores["test"]
    assert score is not None
    assert score.rows == len(test) == 2000
    # another BLAS may flip a tie; three rows of 2,000 are far below the interval
    assert right / len(test) == pytest.approx(score.value, abs=0.0015)
    assert score.low < score.value < score.high


def test_a_saved_folder_gives_the_same_numbers_back(tmp_path: Path) -> None:
    module = _folder(tmp_path)
    loaded, preprocess, about = bundled.load_folder(tmp_path)
    for name, value in module.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert preprocess == ImagePreprocess((8, 8), None, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0))
    assert about.classes == ("a", "b", "c")


def test_float16_halves_the_file_and_rounds_once(tmp_path: Path) -> None:
    module = _folder(tmp_path / "half", "float16")
    _folder(tmp_path / "full")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("half", "full")]
    assert sizes[0] < 0.75 * sizes[1]
    loaded, _, _ = bundled.load_folder(tmp_path / "half")
    for name, value in module.state_dict().items():
        got = loaded.state_dict()[name]
        assert got.dtype == value.dtype
        assert torch.equal(got, value.half().to(value.dtype) if value.is_floating_point() else value)


def test_a_changed_torn_or_foreign_folder_is_refused(tmp_path: Path) -> None:
    _folder(tmp_path / "a")
    assert bundled.is_folder(tmp_path / "a")
    assert not bundled.is_folder(tmp_path)

    weights = tmp_path / "a" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    with pytest.raises(ArtifactError, match="was changed"):
        bundled.load_folder(tmp_path / "a")
    weights.unlink()
    with pytest.raises(MissingPathError, match=r"model\.safetensors is not there"):
        bundled.load_folder(tmp_path / "a")
    with pytest.raises(MissingPathError, match=r"config\.json is not there"):
        bundled.load_folder(tmp_path / "nothing")

    _folder(tmp_path / "b")
    file = tmp_path / "b" / "config.json"
    config = json.loads(file.read_text())
    for change, sentence in (
        ({"format": "other"}, "no backbone folder"),
        ({"arch": "alexnet"}, "no architecture"),
        ({"options": {"channels": [4, 6], "classes": 5}}, "no whole backbone folder"),
        ({"preprocess": {"kind": "smell"}}, "no whole backbone folder"),
        ({"classes": ["a", "b", "d"], "digest": config.get("digest")}, "config.json was changed"),
    ):
        file.write_text(json.dumps({**config, "digest": None, **change}))
        with pytest.raises((ArtifactError, ModelError), match=sentence):
            bundled.load_folder(tmp_path / "b")
    file.write_text("{")
    with pytest.raises(ArtifactError, match="is no JSON"):
        bundled.load_folder(tmp_path / "b")


def test_an_unknown_name_gets_near_ones() -> None:
    with pytest.raises(ModelError, match=r"did you mean regraft/fashion-resnet"):
        bundled.load("regraft/fashion-resnt")


def test_a_copy_of_the_shipped_folder_loads_from_anywhere(tmp_path: Path) -> None:
    shutil.copytree(_shipped(), tmp_path / "copy")
    module, _, _ = bundled.load_folder(tmp_path / "copy")
    other, _, _ = bundled.load(NAME)
    assert all(torch.equal(a, b) for a, b in zip(module.state_dict().values(), other.state_dict().values()))
