"""Methods that train on the command line: adapt, predict, what it would cost, and what is refused."""

from __future__ import annotations

import csv
import io
import json

import pytest
import torch
from safetensors.torch import save_file
from tests.app.photos import MODEL, Normed, Small, folder

from regraft.errors import StoreError


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("data") / "photos", parts=("train", "test"), per_class=8)


@pytest.fixture
def own(tmp_path):
    torch.manual_seed(0)
    save_file(Small().state_dict(), tmp_path / "own.safetensors")
    return ("--model", "tests.app.photos:small", "--weights", str(tmp_path / "own.safetensors"))


@pytest.mark.parametrize("method", ["finetune", "finetune-refit"])
def test_adapt_and_predict_with_a_trained_backbone(regraft, photos, own, tmp_path, monkeypatch, method):
    more = ("--method", method, "--tau", "3", "--steps", "8", "--lr", "0.05", "--json")

    def full(path, content):
        raise StoreError(f"cannot write {path}", got="No space left on device")

    with monkeypatch.context() as disk:  # what was trained outlives a run folder that cannot be written
        disk.setattr("regraft.graft.run.write_bytes", full)
        assert regraft("adapt", photos, *own, *more, "-o", tmp_path / "run")[0] == 2
    assert not (tmp_path / "run").exists()
    code, out, err = regraft("adapt", photos, *own, *more, "-o", tmp_path / "run")
    assert (code, err) == (0, "")
    found = json.loads(out)
    resumed = [finding["value"] for finding in found["findings"] if finding["code"] == "training-resumed"]
    assert resumed == [16]  # every step, of the twin and of the final training
    assert not list((tmp_path / "store" / "training").iterdir())
    assert found["method"] == method
    assert found["scores"]["test"]["metric"] == "accuracy"
    assert "What did training change?" in (tmp_path / "run" / "report.html").read_text("utf-8")
    inputs = sorted((photos / "test").glob("*/*.*"))
    code, out, err = regraft("predict", tmp_path / "run", *own, *inputs)
    assert (code, err) == (0, "")
    said = {row["id"].split("test/")[-1]: row["prediction"] for row in csv.DictReader(io.StringIO(out))}
    with (tmp_path / "run" / "predictions.csv").open() as stream:
        kept = {
            row["id"].split("test/")[-1]: row["predicted"] for row in csv.DictReader(stream) if row["part"] == "test"
        }
    assert said == kept
    code, out, err = regraft("predict", tmp_path / "run", *MODEL, *inputs)
    assert code == 2
    assert "not the backbone" in err


def test_every_setting_of_training_is_reached(regraft, photos, tmp_path):
    torch.manual_seed(0)
    save_file(Normed().state_dict(), tmp_path / "own.safetensors")
    own = ("--model", "tests.app.photos:normed", "--weights", str(tmp_path / "own.safetensors"))
    settings = ("--head", "mlp", "--smoothing", "0.2", "--probe-augmented", "--augment", "flip,shift=1", "--batchnorm",
                "frozen", "--freeze", "conv.b*", "--patience", "3", "--train-smoothing", "0.1", "--train-batch", "16",
                "--optimiser", "adamw")  # fmt: skip
    more = ("--method", "finetune", "--tau", "1", "--epochs", "2", "--lr", "0.05", *settings, "--json")
    code, out, err = regraft("adapt", photos, *own, *more, "-o", tmp_path / "run")
    assert (code, err) == (0, "")
    assert json.loads(out)["method"] == "finetune"
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert "smoothing-opposes" not in [finding["code"] for finding in record["findings"]]
    assert record["figures"]["training"]["runs"][0]["steps"] == 4  # two epochs of 32 rows
    code, out, err = regraft("predict", tmp_path / "run", *own, photos / "test")
    assert (code, err) == (0, "")


def test_statistics_that_the_backbone_has_not_are_refused(regraft, photos, own):
    code, out, err = regraft("adapt", photos, *own, "--method", "finetune", "--batchnorm", "frozen")
    assert (code, out) == (2, "")
    assert "small has no BatchNorm, whose statistics could be frozen or the batch's; got --batchnorm frozen." in err


def test_the_options_of_training_stand_under_headings_of_their_own(regraft):
    _, out, _ = regraft("adapt", "--help")
    assert (
        out.index("\nMethods that train:\n") < out.index("\nHead probing before they train:\n") < out.index("\nData:\n")
    )


def test_an_embedded_run_needs_no_backbone(regraft, photos, tmp_path):
    more = ("--method", "finetune", "--tau", "1", "--steps", "2", "--lr", "0.01", "--embed")
    code, _, err = regraft("adapt", photos, *MODEL, *more, "-o", tmp_path / "run")
    assert (code, err) == (0, "")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["backbone"]["embedded"]
    assert config["backbone"]["fingerprint"] == config["backbone"]["trained"]
    code, out, err = regraft("predict", tmp_path / "run", photos / "test")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 33


def test_a_dry_run_says_what_the_training_would_cost(regraft, photos, own):
    code, out, err = regraft("adapt", photos, *own, "--method", "finetune", "--steps", "40", "--dry-run", "--json")
    assert (code, err) == (0, "")
    cost = json.loads(out)["cost"]
    steps = (3 * 3 + 2 + 2) * 16 + 2 * 40  # three rates at three τ, two beyond, two τ more; twin and final
    looks = 1 + 2 + 5  # by the instruments, of the 36 rows: the energy; the start and the end, epochs 1, 2, 4, 8, 16
    assert cost["backbone_passes"] == pytest.approx(1 + steps * 32 / 64 + looks * 36 / 64)
    assert cost["flops"] > 0
    assert all(cost["seconds"][stage] > 0 for stage in ("train", "probing", "instruments"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--method", "probe", "--tau", "4"), "method 'probe' takes no tau"),
        (("--method", "all-layers", "--lr", "0.1"), "method 'all-layers' trains nothing"),
        (("--method", "finetune", "--tau", "soon"), "--tau soon"),
        (("--method", "finetune", "--steps", "5", "--epochs", "2"), "two lengths"),
        (("--method", "finetune", "--lr", "-1"), "lr is out of range"),
        (("--method", "finetune", "--partial", "99"), "99 of its blocks drawn anew"),
        (("--method", "finetune", "--freeze", "nothing.*"), "no parameter of"),
        (("--method", "finetune", "--augment", "turn"), "cannot be read"),
        (("--method", "finetune", "--probe-augmented"), "nothing to probe augmented"),
        (("--method", "finetune", "--batchnorm", "on"), "batchnorm 'on' is unknown"),
        (("--method", "lp-ft", "--head", "mlp"), "takes no head"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(regraft, photos, arguments, words):
    code, out, err = regraft("adapt", photos, *MODEL, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_instruments_are_asked_for_and_unknown_ones_refused(regraft, photos, tmp_path):
    command = ("adapt", photos, *MODEL, "--method", "lp-ft", "--steps", "3", "--lr", "0.01")
    code, _, err = regraft(*command, "--instruments", "some", "-o", tmp_path / "run")
    assert code == 2
    assert "instruments 'some' are unknown" in err
    code, _, err = regraft(*command, "--instruments", "all", "-o", tmp_path / "run")
    assert (code, err) == (0, "")
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert {"initial-energy", "kernel-drift"} <= {finding["code"] for finding in record["findings"]}
    assert record["figures"]["training"]["instruments"]["tracks"]["notes"]
