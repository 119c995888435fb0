"""Pretraining: from labelled images to a folder that loads like any backbone."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from regraft.data import scan
from regraft.errors import ArtifactError, DataError, RecipeError
from regraft.files import file_digest
from regraft.graft.loop.train import DivergedError, Loop, Optimiser, TrainConfig
from regraft.graft.pretraining.folder import unfinished
from regraft.graft.pretraining.images import pictures
from regraft.graft.pretraining.pretrain import Provenance, pretrain
from regraft.graft.stages.augment import Augment
from regraft.network.loaders import bundled
from regraft.record import Record

SMALL = {"arch": "small_resnet", "options": {"channels": [4, 6]}, "size": 10, "epochs": 2}
FILES = ("README.md", "config.json", "model.safetensors", "record.json")


class Stop(Exception):
    """An interruption."""


@pytest.fixture
def stripes(tmp_path: Path) -> Path:
    """An .npz of 12 x 9 RGB images with a bright stripe whose height is the class; 40 training, 20 test rows."""
    rng = np.random.default_rng(0)
    parts = {}
    for suffix, rows in (("", 40), ("_test", 20)):
        labels = np.arange(rows) % 2
        images = rng.integers(0, 120, (rows, 12, 9, 3), dtype=np.uint8)
        for row, label in enumerate(labels):
            images[row, 2 + 6 * label : 5 + 6 * label] += 120
        parts |= {f"X{suffix}": images, f"y{suffix}": np.array(["up", "down"])[labels]}
    np.savez(tmp_path / "stripes.npz", **parts)
    return tmp_path / "stripes.npz"


def test_a_folder_comes_out_whose_score_is_that_of_its_weights(stripes: Path, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    record = pretrain(
        stripes, output=tmp_path / "run", **SMALL, progress=lambda step, total, loss: steps.append((step, total)),
        provenance=Provenance("MIT", "Drawn by the test.", "A note."),
    )  # fmt: skip
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == sorted(FILES)
    assert steps == [(1, 2), (2, 2)]
    assert Record.load(tmp_path / "run" / "record.json") == record

    module, preprocess, about = bundled.load_folder(tmp_path / "run")
    test = scan(stripes).part("test")
    assert test.target is not None
    assert (about.classes, about.licence) == (test.target.classes, "MIT")
    batch = preprocess.collate([preprocess(test.inputs.read(row)) for row in range(len(test))])
    with torch.no_grad():
        predicted = module(batch).argmax(1).numpy()
    score = record.scores["test"]
    assert score is not None
    assert score.value == pytest.approx((predicted == test.target.values).mean(), abs=1e-12)
    assert (score.rows, score.interval, score.protocol) == (20, "wilson", "test split")
    counts = np.array(record.figures["confusion"]["counts"])
    assert counts.sum() == 20
    assert np.trace(counts) == round(20 * score.value)
    assert [epoch["epoch"] for epoch in record.figures["history"]] == [1, 2]
    card = (tmp_path / "run" / "README.md").read_text()
    for words in (f"{100 * score.value:.1f} %", "Licence** MIT", "Drawn by the test.", "A note."):
        assert words in card


def test_statistics_and_pixels_are_those_of_the_preprocessing(stripes: Path, tmp_path: Path) -> None:
    pretrain(stripes, output=tmp_path / "run", **SMALL)
    _, preprocess, _ = bundled.load_folder(tmp_path / "run")
    train = scan(stripes).part("train")
    rows = torch.stack([preprocess(train.inputs.read(row)) for row in range(len(train))]).double()
    assert rows.shape == (40, 3, 10, 10)
    # normalised by their own statistics, kept to 4 decimals
    torch.testing.assert_close(rows.mean((0, 2, 3)), torch.zeros(3, dtype=torch.float64), atol=5e-4, rtol=0)
    torch.testing.assert_close(rows.std((0, 2, 3)), torch.ones(3, dtype=torch.float64), atol=5e-4, rtol=0)


class Widest(TorchDispatchMode):
    """Notes how many numbers the largest tensor of floating-point numbers has."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.is_floating_point():
            self.most = max(self.most, found.numel())
        return found


def test_statistics_are_taken_of_the_pixels_as_bytes(stripes: Path) -> None:
    from regraft.graft.pretraining.images import decode

    manifest = scan(stripes)
    with Widest() as widest:
        preprocess, parts = decode(manifest, 10, Augment(), True)
    pixels = parts["train"].pixels.double() / 255
    assert preprocess.mean == tuple(round(v, 4) for v in pixels.mean((0, 2, 3)).tolist())
    assert preprocess.std == tuple(round(v, 4) for v in pixels.std((0, 2, 3), correction=0).tolist())
    assert widest.most < pixels.numel() / 4


def test_the_pixels_trained_on_equal_the_preprocessing_bit_for_bit(stripes: Path) -> None:
    from regraft.graft.pretraining.images import decode

    manifest = scan(stripes)
    preprocess, parts = decode(manifest, 10, Augment(), True)
    test = manifest.part("test")
    expected = torch.stack([preprocess(test.inputs.read(row)) for row in range(len(test))])
    assert torch.equal(parts["test"].inputs(torch.arange(len(test))), expected)


@pytest.mark.parametrize("resume", [True, False])
def test_a_run_of_another_verb_is_not_written_over(stripes: Path, tmp_path: Path, resume: bool) -> None:
    adapted = Record("adapt", "done", "probe", {}, {}, {}, {})
    adapted.save(tmp_path / "run" / "record.json")
    with pytest.raises(RecipeError, match="holds another run; expected a new folder; got a run of adapt"):
        pretrain(stripes, output=tmp_path / "run", resume=resume, **SMALL)
    assert Record.load(tmp_path / "run" / "record.json") == adapted


@pytest.mark.parametrize("stop", [1, 2])
def test_an_interrupted_run_ends_with_the_same_bytes(stripes: Path, tmp_path: Path, stop: int) -> None:
    settings = {
        **SMALL,
        "config": TrainConfig(epochs=2, batch_size=20, loop=Loop(average=0.5)),
        "keep_checkpoints": True,
    }
    whole = pretrain(stripes, output=tmp_path / "whole", **settings)

    def interrupt(step: int, total: int, loss: float) -> None:
        if step == stop:
            raise Stop

    with pytest.raises(Stop):
        pretrain(stripes, output=tmp_path / "cut", **settings, progress=interrupt)
    assert not (tmp_path / "cut" / "config.json").exists()
    cut = pretrain(stripes, output=tmp_path / "cut", **settings)
    for name in ("model.safetensors", "config.json", "checkpoints/epoch-001/model.safetensors", "README.md"):
        assert file_digest(tmp_path / "cut" / name) == file_digest(tmp_path / "whole" / name), name
    # the last epoch has the weights that count, the average's
    last = tmp_path / "whole" / "checkpoints" / "epoch-002" / "model.safetensors"
    assert file_digest(last) == file_digest(tmp_path / "whole" / "model.safetensors")
    spent = {
        name: next(cost for cost in run.costs if cost.stage == "train")
        for name, run in (("whole", whole), ("cut", cut))
    }
    assert spent["whole"].backbone_passes == 2
    assert spent["cut"].backbone_passes == {1: 2, 2: 1}[stop]  # the second step ends an epoch, and was written
    assert spent["cut"].flops == round(spent["whole"].flops * spent["cut"].backbone_passes / 2)
    assert [finding.code for finding in cut.findings if "resumed" in finding.code] == ["training-resumed"] * (stop > 1)


def test_a_finished_run_is_returned_and_another_one_refused(stripes: Path, tmp_path: Path) -> None:
    first = pretrain(stripes, output=tmp_path / "run", **SMALL)

    def never(*_: object) -> None:
        raise AssertionError("it trained again")

    left = tmp_path / "run" / "training" / "checkpoint.safetensors"
    left.parent.mkdir()
    left.touch()  # it was killed when all was written
    assert pretrain(stripes, output=tmp_path / "run", **SMALL, progress=never) == first
    assert not left.parent.exists()
    assert first.status == "done"
    with pytest.raises(RecipeError, match="stored as 'int8'; expected float32 or float16"):
        pretrain(stripes, output=tmp_path / "other", **SMALL, stored="int8")  # type: ignore[arg-type]
    (tmp_path / "run" / "record.json").write_text("{")
    assert pretrain(stripes, output=tmp_path / "run", **SMALL).scores == first.scores
    first = Record.load(tmp_path / "run" / "record.json")
    with pytest.raises(RecipeError, match=r"holds another backbone.*--restart; in Python resume=False"):
        pretrain(stripes, output=tmp_path / "run", **{**SMALL, "epochs": 3})
    assert Record.load(tmp_path / "run" / "record.json") == first
    other = pretrain(stripes, output=tmp_path / "run", **{**SMALL, "epochs": 3}, resume=False)
    assert len(other.figures["history"]) == 3
    weights = tmp_path / "run" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ArtifactError, match="was changed"):
        pretrain(stripes, output=tmp_path / "run", **{**SMALL, "epochs": 3})


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("taken", ["README.md", "config.json", "model.safetensors"])
def test_files_of_somebody_elses_are_not_replaced(stripes: Path, tmp_path: Path, taken: str, resume: bool) -> None:
    """Nor does a folder that is called like a pretraining's make them one's."""
    folder = tmp_path / "mine"
    for name in (taken, "training/notes.txt", "training/best.safetensors", "checkpoints/month.pt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    assert unfinished(folder) == ()
    with pytest.raises(RecipeError, match="no pretraining's"):
        pretrain(stripes, output=folder, resume=resume, **SMALL)
    (folder / taken).unlink()
    (folder / "training" / "best.safetensors").unlink()
    pretrain(stripes, output=folder, resume=resume, keep_checkpoints=True, **SMALL)
    pretrain(stripes, output=folder, resume=False, **SMALL)
    assert sorted(path.name for path in folder.glob("*/*")) == ["month.pt", "notes.txt"]


def test_checkpoints_are_backbones_from_the_initial_weights_on(stripes: Path, tmp_path: Path) -> None:
    pretrain(stripes, output=tmp_path / "run", **SMALL, keep_checkpoints=True)
    folders = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert [folder.name for folder in folders] == ["epoch-000", "epoch-001", "epoch-002"]
    modules = [bundled.load_folder(folder)[0] for folder in folders]
    start, end = modules[0].state_dict(), bundled.load_folder(tmp_path / "run")[0].state_dict()
    assert torch.equal(start["bn1.running_mean"], torch.zeros(4))
    assert all(torch.equal(end[name], value) for name, value in modules[-1].state_dict().items())
    assert not torch.equal(start["fc.weight"], end["fc.weight"])
    config = json.loads((folders[1] / "config.json").read_text())
    assert config["provenance"]["epoch"] == 1


def test_no_epoch_is_lacking_where_they_are_to_be_kept(stripes: Path, tmp_path: Path) -> None:
    """Where a run was begun, or ended, without keeping them."""
    settings = {**SMALL, "output": tmp_path / "run", "config": TrainConfig(epochs=4, batch_size=20)}

    def interrupt(step: int, total: int, loss: float) -> None:
        if step == 4:  # two epochs of two batches
            raise Stop

    def kept() -> list[str]:
        return sorted(folder.name for folder in (tmp_path / "run" / "checkpoints").iterdir())

    whole = [f"epoch-{epoch:03d}" for epoch in range(5)]
    with pytest.raises(Stop):
        pretrain(stripes, **settings, progress=interrupt)
    with pytest.raises(RecipeError, match=r"each epoch from 0 to 2; got none of 0, 1, 2.*--restart"):
        pretrain(stripes, **settings, keep_checkpoints=True)
    assert len(pretrain(stripes, **settings).figures["history"]) == 4  # what it had is not lost
    weights = file_digest(tmp_path / "run" / "model.safetensors")
    pretrain(stripes, **settings, keep_checkpoints=True)
    assert kept() == whole
    assert file_digest(tmp_path / "run" / "model.safetensors") == weights

    with pytest.raises(Stop):
        pretrain(stripes, **settings, keep_checkpoints=True, resume=False, progress=interrupt)
    assert kept() == whole[:3]
    pretrain(stripes, **settings)
    assert kept() == whole[:3]
    pretrain(stripes, **settings, keep_checkpoints=True)
    assert kept() == whole


def test_without_test_rows_some_training_rows_are_held_out(stripes: Path, tmp_path: Path) -> None:
    manifest = scan(stripes).part("train")
    record = pretrain(manifest, output=tmp_path / "run", **SMALL)
    assert record.scores["test"] is None
    score = record.scores["validation"]
    assert score is not None
    assert score.rows == record.data["validation"] == 4
    assert record.data["train"] == 36
    assert record.figures["history"][-1]["validation_score"] == pytest.approx(score.value)


@pytest.mark.parametrize("objective", ["supervised", "rotation"])
def test_copies_of_an_image_are_held_out_together(objective: str, tmp_path: Path) -> None:
    """Pictures of noise, each three times: those that were trained on tell nothing of those that judge."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (20, 10, 10, 3), dtype=np.uint8), np.arange(20) % 2
    manifest = pictures((images.repeat(3, 0), labels.repeat(3)), objective == "supervised", 0)
    parts = [{manifest.hashes[row] for row in manifest.rows_of(part)} for part in ("train", "validation")]
    assert not parts[0] & parts[1]
    assert [3 * len(part) for part in parts] == [manifest.split.count(part) for part in ("train", "validation")]
    done = pretrain((images.repeat(3, 0), labels.repeat(3)), output=tmp_path / "run", objective=objective, **SMALL)
    assert [finding.code for finding in done.findings] == ["rows-kept-together"]
    assert "20 inputs stand in several rows" in done.findings[0].title
    with pytest.raises(DataError, match=r"can be held out to judge by; .* copies counted once"):
        pictures((images[:1].repeat(8, 0), labels[:8]), objective == "supervised", 0)


def test_copies_in_both_parts_and_labels_at_odds_are_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (30, 10, 10, 3), dtype=np.uint8), np.arange(30) % 2
    tested = images[:8].copy()
    tested[3:] //= 2  # three of them are training rows
    np.savez(tmp_path / "leaks.npz", X=images, y=labels, X_test=tested, y_test=1 - labels[:8])
    said = {f.code: f for f in pretrain(tmp_path / "leaks.npz", output=tmp_path / "run", **SMALL).findings}
    assert set(said) == {"duplicate-rows-across-splits", "label-conflict"}
    assert (said["duplicate-rows-across-splits"].value, said["label-conflict"].value) == (3, 3)


@pytest.mark.parametrize("seed", [-1, 2**32 - 1, 10**20, 1.5])
def test_seeds_that_not_every_generator_takes_are_refused(seed: float, tmp_path: Path) -> None:
    for call in (
        lambda: TrainConfig(epochs=1, seed=seed),  # type: ignore[arg-type]
        lambda: pretrain(tmp_path / "none", output=tmp_path / "run", seed=seed),  # type: ignore[arg-type]
    ):
        with pytest.raises(RecipeError, match=r"seed .* is out of range; expected 0 to 4,294,967,294"):
            call()
    assert not (tmp_path / "run").exists()
    assert dataclasses.asdict(TrainConfig(epochs=1, seed=np.int64(3))) == dataclasses.asdict(TrainConfig(1, seed=3))
    assert type(TrainConfig(epochs=1, seed=np.int64(3)).seed) is int


def test_a_run_that_diverges_leaves_no_backbone(stripes: Path, tmp_path: Path) -> None:
    config = TrainConfig(epochs=3, batch_size=10, optimiser=Optimiser(lr=1e35))
    with pytest.raises(DivergedError, match="training diverged"):
        pretrain(stripes, output=tmp_path / "run", **SMALL, config=config)
    assert not (tmp_path / "run" / "config.json").exists()
    assert not (tmp_path / "run" / "record.json").exists()


def test_what_cannot_be_pretrained_is_said(stripes: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no objective 'rotations'; expected supervised, .*did you mean rotation"):
        pretrain(stripes, output=tmp_path / "run", objective="rotations")
    manifest = scan(stripes)
    with pytest.raises(DataError, match="images with one class each; got array"):
        pretrain((np.random.default_rng(0).normal(size=(20, 5)), np.arange(20) % 2), output=tmp_path / "run")
    assert manifest.target is not None
    target = dataclasses.replace(
        manifest.target, kind="multilabel", values=np.eye(2, dtype=np.float32)[manifest.target.values]
    )
    with pytest.raises(DataError, match="one class a row; got multilabel labels"):
        pretrain(dataclasses.replace(manifest, target=target), output=tmp_path / "run")
    with pytest.raises(DataError, match="nothing to train on; expected a train part; got the parts test"):
        pretrain(manifest.part("test"), output=tmp_path / "run")
    with pytest.raises(DataError, match="can be held out to judge by; expected classes of more than one image"):
        pretrain(manifest.take([0, 1]), output=tmp_path / "run")
