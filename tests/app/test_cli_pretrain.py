"""Pretraining on the command line: every objective, what `adapt` makes of it, kills, and what is refused."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image
from tests.app.photos import folder

from regraft.files import file_digest
from regraft.graft.pretraining import pretrain
from regraft.graft.pretraining.choose import OBJECTIVES
from regraft.network.architectures import ARCHITECTURES, PIXELS


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("data") / "photos", parts=("train", "test"), per_class=8)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_gives_a_backbone_that_adapt_reads(regraft, photos, tmp_path, objective):
    mine = tmp_path / "mine"
    words = ("pretrain", objective, photos, "-o", mine, "--pixels", 18, "--steps", 2, "--batch-size", 16, "--lr", 0.001)
    code, out, err = regraft(*words, "--arch", "s4")
    assert (code, err) == (0, "")
    lines = dict(line.split("  ", 1) for line in out.splitlines() if not line.startswith("test split"))
    assert out.startswith(f"test split {'r2' if objective in ('vae', 'bigan') else 'accuracy'} ")
    assert lines["backbone"] == str(mine)
    assert ("guessing" in lines) == (objective in ("rotation", "jigsaw"))
    again, same, err = regraft(*words, "--arch", "s4", "--json")
    assert (again, err) == (0, "")
    assert json.loads(same)["method"] == objective
    paths = {"run": str(mine), "artifact": str(mine / "model.safetensors"), "report": None}
    assert json.loads(same)["paths"] == paths
    assert (mine / "model.safetensors").is_file()
    code, out, err = regraft("report", mine)
    assert (code, out) == (2, "")
    assert "has no report; expected what adapt, diagnose or rank left; got a pretraining" in err
    assert not (mine / "report.html").exists()

    code, out, err = regraft("adapt", photos, "-m", mine, "--method", "probe", "--json", "-o", tmp_path / "run")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["scores"]["test"]["metric"] == "accuracy"
    code, _, err = regraft("predict", tmp_path / "run", photos, "--weights", tmp_path / "x.safetensors")
    assert (code, "leave the weights out" in err) == (2, True)
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["model"]["fingerprint"].startswith(lines["fingerprint"])


@pytest.mark.parametrize("objective", ["supervised", "rotation", "jigsaw", "vae"])
def test_every_architecture_of_the_help_needs_no_option_but_its_name(regraft, photos, tmp_path, objective):
    for arch in set(ARCHITECTURES) - {"molecule_gcn"}:
        side, mine = PIXELS.get(arch, 24), tmp_path / arch
        words = ("--arch", arch, "--pixels", side, "--steps", 1, "--batch-size", 4)
        code, _, err = regraft("pretrain", objective, photos, "-o", mine, *words)
        if objective == "jigsaw" and arch in PIXELS:  # a network of one size cannot read pieces
            assert (code, err.count(f"{arch} cannot be trained by jigsaw")) == (2, 1)
        else:
            assert (code, err) == (0, "")
            assert json.loads((mine / "config.json").read_text())["arch"] == arch


def test_gradient_features_take_a_backbone_that_knows_no_labels(regraft, photos, tmp_path):
    words = ("--pixels", 18, "--steps", 2, "--arch", "s4")
    assert regraft("pretrain", "vae", photos, "-o", tmp_path / "mine", *words)[0] == 0
    code, out, err = regraft(
        "adapt",
        photos,
        "-m",
        tmp_path / "mine",
        "--method",
        "gradient",
        "--folds",
        2,
        "--json",
        "-o",
        tmp_path / "run",
    )
    assert (code, err) == (0, "")
    assert json.loads(out)["method"] == "gradient"
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert set(record["figures"]["gradient"]["parameters"]) == {"conv4.weight", "bn4.weight", "bn4.bias"}


def test_what_cannot_be_pretrained_is_one_line(regraft, photos, tmp_path):
    def refused(*words) -> str:
        code, out, err = regraft("pretrain", *words, "-o", tmp_path / "x")
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert not (tmp_path / "x").exists()
        return err

    assert "12 x 12 pixels are too small for jigsaw; expected at least 18" in refused("jigsaw", photos, "--pixels", 12)
    assert "no architecture 's5'" in refused("rotation", photos, "--arch", "s5")
    for arch, side, got in (("mlp", 28, 32), ("lenet", 28, 32), ("tiny_vit", 32, 28)):
        said = refused("rotation", photos, "--arch", arch, "--pixels", got)
        assert f"{arch} reads pictures of {side} x {side} pixels; got {got} x {got}." in said
        assert f"give --pixels {side} (in Python size={side})" in said
    assert "mlp cannot be trained by jigsaw on pictures of 28 x 28 pixels; got " in refused(
        "jigsaw", photos, "--arch", "mlp", "--pixels", 28
    )
    assert "either epochs or steps" in refused("rotation", photos, "--epochs", 1, "--steps", 1)
    assert "lr is out of range" in refused("rotation", photos, "--lr", -1)
    assert "seed -1 is out of range; expected 0 to 4,294,967,294" in refused("supervised", photos, "--seed", -1)
    assert "No such command 'rotate'" in refused("rotate", photos)
    (tmp_path / "plain").mkdir()
    for row in range(6):
        Image.fromarray(np.full((9, 9, 3), 40 * row, np.uint8)).save(tmp_path / "plain" / f"{row}.png")
    assert "label" in refused("supervised", tmp_path / "plain")
    assert "expected images" in refused("rotation", _table(tmp_path))


def _table(folder_):
    path = folder_ / "numbers.csv"
    path.write_text("a,b,label\n" + "\n".join(f"{i},{i * i},{'xy'[i % 2]}" for i in range(12)))
    return path


def test_a_training_that_diverges_says_what_to_try(regraft, photos, tmp_path):
    words = ("--pixels", 18, "--epochs", 3, "--batch-size", 8, "--lr", 1e35)
    code, _, err = regraft("pretrain", "vae", photos, "-o", tmp_path / "x", *words)
    assert (code, err.count("\n")) == (2, 1)
    assert "training diverged" in err
    assert "try a lower learning rate" in err


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_help_says_what_it_does_and_explains_every_option(regraft, objective):
    code, out, _ = regraft("pretrain", objective, "--help")
    assert code == 0
    assert "save" in out.split("Arguments:")[0]
    for option in ("--output", "--arch", "--epochs", "--steps", "--batch-size", "--lr", "--pixels", "--seed"):
        assert option in out
    assert all(arch in " ".join(out.split()) for arch in set(ARCHITECTURES) - {"molecule_gcn"})


def test_a_training_that_was_stopped_goes_on(regraft, photos, tmp_path, monkeypatch):
    """After its first checkpoint, and between the weights and the record; with --restart it begins anew."""
    mine = tmp_path / "mine"
    words = ("pretrain", "supervised", photos, "-o", mine, "--arch", "lenet", "--pixels", 28, "--epochs", 2)
    saved = pretrain._Job._save

    def stop(*_, **__):
        raise KeyboardInterrupt

    def save_and_stop(*args, **options):
        saved(*args, **options)
        raise KeyboardInterrupt

    for cut, left in ((stop, {"training"}), (save_and_stop, {"training", "config.json", "model.safetensors"})):
        for more in ((), ("--restart",)):
            with monkeypatch.context() as patch:
                patch.setattr(pretrain._Job, "_save", cut)
                assert regraft(*words, "--restart")[0] == 130
            assert {item.name for item in mine.iterdir()} == left
            code, out, err = regraft(*words, *more)
            assert (code, err, out.endswith(f"backbone  {mine}\n")) == (0, "", True)
            shutil.rmtree(mine)


@pytest.mark.slow
def test_a_run_that_was_killed_ends_with_the_same_bytes(regraft, photos, tmp_path):
    words = ["pretrain", "jigsaw", str(photos), "--pixels", "18", "--epochs", "40", "--batch-size", "8", "-o"]
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    command = [sys.executable, "-m", "regraft", *words, str(cut)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 300
    while not (cut / "training" / "checkpoint.safetensors").is_file():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (cut / "config.json").exists()
    assert regraft(*words, cut)[0] == regraft(*words, whole)[0] == 0
    for name in ("model.safetensors", "config.json", "README.md"):
        assert file_digest(cut / name) == file_digest(whole / name)


def test_pictures_that_were_trained_on_and_judge_are_said(regraft, tmp_path):
    mine = folder(tmp_path / "photos", parts=("train", "test"), per_class=4)
    shutil.copy(mine / "train" / "colour0" / "00.png", mine / "test" / "colour0" / "more.png")
    words = ("--arch", "s4", "--pixels", 18, "--steps", 1)
    code, out, err = regraft("pretrain", "supervised", mine, "-o", tmp_path / "net", *words)
    assert (code, err) == (0, "")
    assert "warning  1 input appears in more than one split.\n         The same bytes are in rows of several" in out


@pytest.mark.parametrize("objective", ["supervised", "vae"])
def test_what_cannot_be_used_is_left_out_where_that_is_asked_for(regraft, tmp_path, objective):
    """A picture that is none, and a row without a label."""
    mine = folder(tmp_path / "photos", classes=2, per_class=5)
    (mine / "colour0" / "00.png").write_bytes(b"no picture")
    paths = sorted(path.relative_to(tmp_path).as_posix() for path in mine.glob("*/*"))
    rows = [f"{path},{'' if path.endswith('01.png') and '0/' in path else path.split('/')[1]}" for path in paths]
    (tmp_path / "rows.csv").write_text("path,label\n" + "\n".join(rows))
    words = ("pretrain", objective, tmp_path / "rows.csv", "--arch", "s4", "--pixels", 18, "--steps", 1, "-o")
    code, out, err = regraft(*words, tmp_path / "net")
    assert (code, out) == (2, "")
    assert ("--skip-bad" in err) == (objective == "supervised")  # a row without a label is none of the others' concern
    code, out, err = regraft(*words, tmp_path / "net", "--skip-bad")
    assert (code, err) == (0, "")
    left = 2 if objective == "supervised" else 1
    assert f"warning  {left} input{'s were' if left > 1 else ' was'} left out.\n" in out
    found = json.loads(regraft(*words, tmp_path / "net", "--skip-bad", "--json")[1])
    assert [(item["code"], item["value"]) for item in found["findings"]] == [("skipped-rows", left)]
    assert sum(found["task"]["rows"].values()) == len(paths) - left
