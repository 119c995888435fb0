"""Pretraining without labels: real trainings of seconds, resumed bit for bit, saved and read as any backbone."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import binomtest
from sklearn.datasets import load_digits
from torch import nn

from regraft.data import Manifest, scan
from regraft.errors import DataError, ModelError, RecipeError
from regraft.files import file_digest
from regraft.graft.loop.train import DivergedError, ImageRows, Loop, Optimiser, TrainConfig, Training
from regraft.graft.pretraining.choose import OBJECTIVES
from regraft.graft.pretraining.jigsaw import Jigsaw
from regraft.graft.pretraining.pretext import Pretext, ViewRows
from regraft.graft.pretraining.pretrain import _calibrated, default_config, pretrain
from regraft.graft.pretraining.rotation import Rotation
from regraft.graft.stages.augment import Augment, uniforms
from regraft.network import load
from regraft.record import Record

LABEL_FREE = tuple(name for name in OBJECTIVES if name != "supervised")
SIZE = {"jigsaw": 18}


class Stop(Exception):
    """An interruption."""


@pytest.fixture(scope="module")
def digits() -> Manifest:
    """600 training and 200 test rows of scikit-learn's digits, as 8 x 8 images in grey."""
    images = (load_digits().images[:800] * 255 / 16).astype(np.uint8)
    manifest = scan(np.repeat(images[..., None], 3, 3), labelled=False)
    return dataclasses.replace(manifest, split=("train",) * 600 + ("test",) * 200)


@pytest.fixture
def few(digits: Manifest) -> Manifest:
    """40 training and 20 test rows."""
    return digits.take([*range(40), *range(600, 620)])


def _options(name: str) -> dict[str, object]:
    return {"objective": name, "arch": "small_resnet", "options": {"channels": [4, 6]}, "size": SIZE.get(name, 8)}


@pytest.mark.parametrize("name", LABEL_FREE)
def test_an_interrupted_run_ends_with_the_same_bytes(few: Manifest, tmp_path: Path, name: str) -> None:
    settings = {
        **_options(name),
        "config": TrainConfig(epochs=2, batch_size=14, optimiser=Optimiser(kind="adamw", lr=1e-3)),
    }
    whole = pretrain(few, output=tmp_path / "whole", **settings)

    def interrupt(step: int, total: int, loss: float) -> None:
        if step == 4:  # in the middle of the second epoch
            raise Stop

    with pytest.raises(Stop):
        pretrain(few, output=tmp_path / "cut", **settings, progress=interrupt)
    assert not (tmp_path / "cut" / "config.json").exists()
    cut = pretrain(few, output=tmp_path / "cut", **settings)
    for file in ("model.safetensors", "config.json", "README.md"):
        assert file_digest(tmp_path / "cut" / file) == file_digest(tmp_path / "whole" / file), file
    assert (cut.scores, cut.figures) == (whole.scores, whole.figures)
    assert cut.model == whole.model


@pytest.mark.parametrize("name", LABEL_FREE)
def test_the_folder_reads_as_any_backbone(few: Manifest, tmp_path: Path, name: str) -> None:
    record = pretrain(few, output=tmp_path / "run", **_options(name), epochs=1)
    assert Record.load(tmp_path / "run" / "record.json") == record
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "README.md", "config.json", "model.safetensors", "record.json",
    ]  # fmt: skip
    once, again = load(str(tmp_path / "run")), load(str(tmp_path / "run"))
    assert once.fingerprint == again.fingerprint == record.model["fingerprint"]
    batch = once.preprocess.collate([once.preprocess(few.inputs.read(row)) for row in range(5)])
    outputs = once.forward(batch)
    assert torch.equal(outputs, again.forward(batch))
    assert torch.isfinite(outputs).all()
    assert once.head == "fc"
    assert [site.kind for site in once.sites].count("embedding") == 1
    assert record.method == name
    assert set(record.figures["terms"]["after"]) == set(record.figures["terms"]["before"])
    assert record.total("seconds") > 0
    assert record.headline is not None
    assert f"{100 * record.headline.value:.1f} %" in (tmp_path / "run" / "README.md").read_text()


@pytest.mark.parametrize(("channels", "kept"), [([4, 6], True), ([16, 16], False)])
def test_strided_1x1_convolutions_of_few_channels_keep_their_layout(
    few: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channels: list[int], kept: bool
) -> None:
    """Whose gradients end the process channels last, on some processors; others are turned."""
    seen = []

    class Looked(Training):
        def __init__(self, module: nn.Module, *args: Any, **settings: Any) -> None:
            seen.append(all(weight.is_contiguous() for weight in module.parameters()))
            super().__init__(module, *args, **settings)

    monkeypatch.setattr("regraft.graft.pretraining.pretrain.Training", Looked)
    pretrain(few, output=tmp_path, **{**_options("rotation"), "options": {"channels": channels}}, epochs=1)
    assert seen == [kept]


EPOCHS = {"rotation": 4, "jigsaw": 6, "vae": 3, "bigan": 5}


@pytest.mark.parametrize("name", LABEL_FREE)
def test_a_real_training_of_seconds_gets_somewhere(digits: Manifest, tmp_path: Path, name: str) -> None:
    options = {**_options(name), "options": {"channels": [8, 16]}}
    if name == "jigsaw":
        options["objective"] = Jigsaw(2, 4)
    record = pretrain(
        digits, output=tmp_path / "run", **options, config=TrainConfig(
            epochs=EPOCHS[name], batch_size=40,
            optimiser=Optimiser(kind="adamw", lr=3e-3 if name != "bigan" else 1e-3, momentum=0.5, weight_decay=0.0),
        ),
    )  # fmt: skip
    terms, score = record.figures["terms"], record.headline
    before, after = terms["before"], terms["after"]
    assert score is not None
    assert score.rows == 200
    if name in ("rotation", "jigsaw"):
        assert after["cross-entropy"] < before["cross-entropy"]
        right = round(score.value * score.rows)
        assert binomtest(right, score.rows, terms["chance"], alternative="greater").pvalue < 1e-3
        assert score.low > terms["chance"]
        assert score.value == pytest.approx(after["accuracy"], abs=1e-9)
    elif name == "vae":
        assert after["minus ELBO per value"] < before["minus ELBO per value"]
        assert score.low > before["r2"]
        assert after["KL in nats"] > 0.1  # the code says something
    else:  # the sum of two opponents' losses need not fall, but G and E become each other's inverse
        assert 1 - after["r2"] < 1 - before["r2"]
        assert score.low > 0


@pytest.mark.parametrize("objective", [Rotation(), Jigsaw(2, 4)], ids=["rotation", "jigsaw"])
def test_pictures_without_an_order_teach_none(objective: Rotation | Jigsaw, tmp_path: Path) -> None:
    """Of noise nobody can tell a turn or a place, unless the views give it away (as black borders once did)."""
    noise = np.random.default_rng(0).integers(0, 256, (600, 18, 18, 3), dtype=np.uint8)
    manifest = dataclasses.replace(scan(noise, labelled=False), split=("train",) * 590 + ("test",) * 10)
    config = TrainConfig(epochs=4, batch_size=40, optimiser=Optimiser(kind="adamw", lr=3e-3, weight_decay=0.0))
    settings = {**_options(objective.name), "options": {"channels": [8, 16]}, "size": 18, "objective": objective}
    record = pretrain(manifest, output=tmp_path / "run", **settings, config=config)
    scores = [epoch["train_score"] for epoch in record.figures["history"]]
    assert max(scores) < 0.25 + 4 * (0.25 * 0.75 / 590) ** 0.5  # four standard errors above chance


def test_labels_change_nothing_but_the_fingerprint_of_the_data(few: Manifest, tmp_path: Path) -> None:
    images = np.stack([np.asarray(few.inputs.read(row)) for row in range(len(few))])
    found = []
    for turn in range(2):
        labelled = scan((images, np.roll(np.arange(len(few)) % 3, turn)))
        labelled = dataclasses.replace(labelled, split=few.split)
        pretrain(labelled, output=tmp_path / str(turn), **_options("rotation"), epochs=1)
        found.append(file_digest(tmp_path / str(turn) / "model.safetensors"))
    pretrain(few, output=tmp_path / "none", **_options("rotation"), epochs=1)
    assert [*found, file_digest(tmp_path / "none" / "model.safetensors")] == found[:1] * 3


def test_a_folder_of_pictures_without_labels_is_enough(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for row in range(24):
        Image.fromarray(rng.integers(0, 256, (11, 9, 3), dtype=np.uint8)).save(tmp_path / "photos" / f"{row}.png")
    record = pretrain(tmp_path / "photos", output=tmp_path / "run", **_options("rotation"), epochs=1)
    assert record.data["train"] + record.data["validation"] == 24
    assert record.data["validation"] == 2
    with pytest.raises(DataError, match="label"):
        pretrain(tmp_path / "photos", output=tmp_path / "other", **{**_options("rotation"), "objective": "supervised"})
    with pytest.raises(DataError, match=r"has no labels; expected images with one class each.*rotation, jigsaw"):
        pretrain(
            scan(tmp_path / "photos", labelled=False),
            output=tmp_path / "other",
            **{**_options("rotation"), "objective": "supervised"},
        )


def test_statistics_of_a_jigsaws_backbone_are_those_of_whole_pictures(few: Manifest, tmp_path: Path) -> None:
    pretrain(few, output=tmp_path / "run", **_options("jigsaw"), epochs=1)
    network = load(str(tmp_path / "run"))
    rows = [network.preprocess(few.inputs.read(row)) for row in range(40)]
    maps = network.module.conv1(torch.stack(rows))
    torch.testing.assert_close(network.module.bn1.running_mean, maps.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(network.module.bn1.running_var, maps.var((0, 2, 3)), rtol=1e-3, atol=1e-5)


def test_every_picture_has_the_same_say_in_the_statistics() -> None:
    pixels = torch.zeros(257, 1, 8, 8, dtype=torch.uint8)
    pixels[256] = 255
    found = _calibrated(nn.Sequential(nn.BatchNorm2d(1)), ImageRows(pixels, torch.zeros(257)))
    assert float(found[0].running_mean) == pytest.approx(1 / 257, rel=1e-2)


def test_views_do_not_follow_from_the_augmentation() -> None:
    """Both are drawn from the row, the epoch and the seed: of each shift there are all orders."""
    rows = ViewRows(
        ImageRows(torch.zeros(400, 1, 18, 18, dtype=torch.uint8), torch.zeros(400), augment=Augment(shift=4)), Jigsaw()
    )
    index = torch.arange(400)
    orders = rows.inputs(index, 0, 3)["order"]
    down = torch.from_numpy(uniforms(index.numpy(), 0, 3, 1)[:, 0] * 9).long()
    assert min(len(orders[down == shift].unique()) for shift in range(9)) > 12
    plain = ViewRows(ImageRows(torch.zeros(400, 1, 18, 18, dtype=torch.uint8), torch.zeros(400)), Jigsaw())
    assert not torch.equal(orders, plain.inputs(index, 0, 3)["order"])


def test_what_goes_wrong_is_one_sentence(few: Manifest, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(RecipeError, match="8 x 8 pixels are too small for jigsaw"):
        pretrain(few, output=run, **{**_options("jigsaw"), "size": 8})
    with pytest.raises(ModelError, match=r"no architecture 's5'; expected one of .*s4"):
        pretrain(few, output=run, **{**_options("rotation"), "arch": "s5", "options": {}})
    with pytest.raises(ModelError, match="tiny_vit cannot be trained by jigsaw on pictures of 18 x 18 pixels"):
        pretrain(few, output=run, **{**_options("jigsaw"), "arch": "tiny_vit", "options": {}})
    with pytest.raises(RecipeError, match="rotation has no labels to smooth"):
        pretrain(few, output=run, **_options("rotation"), config=TrainConfig(epochs=1, label_smoothing=0.1))
    with pytest.raises(RecipeError, match=r"stops early; expected a length.*patience=2"):
        pretrain(few, output=run, **_options("rotation"), config=TrainConfig(epochs=3, loop=Loop(patience=2)))
    decayed = TrainConfig(epochs=3, optimiser=Optimiser(layer_decay=0.5))
    with pytest.raises(RecipeError, match=r"do not differ by layer; expected layer_decay=1; got 0\.5"):
        pretrain(few, output=run, **_options("rotation"), config=decayed)
    with pytest.raises(RecipeError, match="8 x 8 pixels would be shifted out of sight"):
        pretrain(few, output=run, **_options("rotation"), augment=Augment(shift=8))
    config = TrainConfig(epochs=3, batch_size=10, optimiser=Optimiser(lr=1e35))
    with pytest.raises(DivergedError, match="training diverged"):
        pretrain(few, output=run, **_options("vae"), config=config)
    assert not (run / "config.json").exists()
    pretrain(few, output=run, **_options("rotation"), epochs=1)
    with pytest.raises(RecipeError, match="holds another backbone"):
        pretrain(few, output=run, **_options("vae"), epochs=1)
    with pytest.raises(DataError, match="expected images; got array"):
        pretrain(np.zeros((20, 5)), output=tmp_path / "x", objective=Rotation())


def test_the_default_recipe_is_the_pretexts() -> None:
    config = default_config(Rotation(), steps=7, seed=3)
    assert (config.steps, config.epochs, config.seed, config.optimiser.kind) == (7, None, 3, "adamw")


@dataclass(frozen=True)
class Brightness(Pretext):
    """How bright is it? A pretext that is nobody's but this test's."""

    name: ClassVar[str] = "brightness"
    terms: ClassVar[tuple[str, ...]] = ("squared error", "r2")
    measure: ClassVar[str] = "r2"
    citation: ClassVar[str] = ""

    @property
    def classes(self) -> tuple[str, ...]:
        return ()

    @property
    def width(self) -> int:
        return 1

    def views(self, images, rows, epoch, seed):
        return {"images": images}

    def module(self, backbone, head, size):
        return _Bright(backbone)


class _Bright(nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, views):
        error = (self.backbone(views["images"])[:, 0] - views["images"].mean((1, 2, 3))).square()
        return torch.stack([error, 1 - error], 1)


def test_a_pretext_of_ones_own_is_trained_like_the_others(digits: Manifest, tmp_path: Path) -> None:
    options = {**_options("rotation"), "objective": Brightness()}
    record = pretrain(digits, output=tmp_path / "run", **options, epochs=3)
    terms = record.figures["terms"]
    assert record.method == "brightness"
    assert terms["after"]["squared error"] < 0.5 * terms["before"]["squared error"]
    assert load(str(tmp_path / "run")).fingerprint == record.model["fingerprint"]
