"""Diagnose and rank on the command line: what they say, write and refuse."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file
from tests.app.photos import MODEL, Small, folder

FAST = ("--rows", "12", "--top", "3", "--points", "3")
WORDS = ("Do the features fit?", "How sharp is the loss?", "What lies around the weights?", "What do gradients see?")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("data") / "photos", parts=("train", "test"), per_class=8)


def test_a_diagnosis_says_what_it_found_and_where_it_lies(regraft, photos, tmp_path):
    code, out, err = regraft("diagnose", photos, *MODEL, *FAST, "-o", tmp_path / "run")
    assert (code, err) == (0, "")
    assert "A linear head on the last layer is right on" in out
    assert "Deviation not measured: nothing was trained here" in out
    assert str(tmp_path / "run" / "report.html") in out
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert all(words in page for words in WORDS)
    code, out, err = regraft("report", tmp_path / "run", "-o", tmp_path / "again.html")
    assert (code, err) == (0, "")
    assert (tmp_path / "again.html").read_text("utf-8") == page


def test_one_check_as_json(regraft, photos, tmp_path):
    more = ("--check", "curvature", "--against", "none", "--select", "all", "--json")
    code, out, err = regraft("diagnose", photos, *MODEL, *FAST, *more, "-o", tmp_path / "run")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["verb"], found["status"]) == ("diagnose", "done")
    (subject,) = found["figures"]["curvature"]["subjects"]
    assert len(subject["eigenvalues"]) == len(subject["bounds"]) == 3
    assert "landscape" not in found["figures"]


def test_affinity_trains_where_it_is_asked_for(regraft, photos, tmp_path):
    torch.manual_seed(3)
    save_file(Small().state_dict(), tmp_path / "own.safetensors")
    own = ("--model", "tests.app.photos:small", "--weights", tmp_path / "own.safetensors")
    code, out, err = regraft("diagnose", photos, *own, "--check", "affinity", "-o", tmp_path / "run")
    assert (code, err) == (0, "")
    assert "random weights" in out
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "domain-affinity" in page
    assert "Head2Toe" in page  # cited


def test_own_module_with_weights(regraft, photos, tmp_path):
    torch.manual_seed(3)
    module = Small()
    save_file(module.state_dict(), tmp_path / "own.safetensors")
    own = ("--model", "tests.app.photos:small", "--weights", tmp_path / "own.safetensors")
    more = ("--check", "gradients", "--against", "none", "--json", "-o", tmp_path / "run")
    code, out, err = regraft("diagnose", photos, *own, *FAST, *more)
    assert (code, err) == (0, "")
    layers = json.loads(out)["figures"]["gradients"]["subjects"][0]["layers"]
    norm = layers[0]["norm"] / layers[0]["relative"]  # of the layer's weights
    both = [v.detach() for n, v in module.named_parameters() if n.rpartition(".")[0] == layers[0]["name"]]
    assert norm == pytest.approx(float(torch.cat([value.flatten() for value in both]).norm()), rel=1e-5)


def test_a_training_is_looked_at_where_it_ended(regraft, photos, tmp_path):
    more = ("--method", "lp-ft", "--steps", "2", "--lr", "0.01", "-o", tmp_path / "run")
    assert regraft("adapt", photos, *MODEL, *more)[0] == 0
    only = ("--check", "deviation", "--json", "-o", tmp_path / "seen")
    code, out, err = regraft("diagnose", photos, "--run", tmp_path / "run", *MODEL, *FAST, *only)
    assert (code, err) == (0, "")
    assert json.loads(out)["figures"]["deviation"]["subjects"][0]["total"] > 0


def test_a_run_whose_head_is_no_last_layer_is_named_with_its_method(regraft, photos, tmp_path):
    assert regraft("adapt", photos, *MODEL, "-o", tmp_path / "run")[0] == 0
    code, _, err = regraft("diagnose", photos, "--run", tmp_path / "run", *FAST, "-o", tmp_path / "seen")
    assert code == 2
    assert f"the head of the run {tmp_path}/run (by all-layers) is not a last layer of its network" in err
    assert "diagnose its backbone with --model" in err


def test_backbones_in_order(regraft, photos, tmp_path):
    names = f"{MODEL[1]},regraft/fashion-resnet"
    code, out, err = regraft("rank", photos, "--models", names, "-o", tmp_path / "run")
    assert (code, err) == (0, "")
    assert {line.split()[1] for line in out.splitlines()[:2]} == {MODEL[1], "regraft/fashion-resnet"}
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "Which backbone?" in page
    assert "Every score; larger is better in each" in page


def test_checkpoints_of_a_pretraining(regraft, photos, tmp_path):
    more = ("--arch", "lenet", "--pixels", "28", "--epochs", "2", "--batch-size", "8", "--lr", "0.001")
    assert regraft("pretrain", "supervised", photos, *more, "--keep-checkpoints", "-o", tmp_path / "source")[0] == 0
    code, out, err = regraft("rank", photos, "--models", tmp_path / "source" / "checkpoints", "-o", tmp_path / "run")
    assert (code, err) == (0, "")
    assert {line.split()[1] for line in out.splitlines()[:3]} == {"epoch-000", "epoch-001", "epoch-002"}
    record = json.loads((tmp_path / "run" / "record.json").read_text("utf-8"))
    assert [point["at"] for point in record["figures"]["ranking"]["course"]["points"]] == [0, 1, 2]
    assert record["findings"][0]["code"] == "pretraining-gain"
    assert len({cost["stage"] for cost in record["costs"]}) == len(record["costs"])
    assert "Over the pretraining" in (tmp_path / "run" / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("diagnose", "{data}"), "nothing is named"),
        (("diagnose", "{data}", "--model", "regraft/fashion-resnet", "--check", "sharpness"), "no check is called"),
        (("diagnose", "{data}", "--run", "nowhere"), "nowhere"),
        (("rank", "{data}", "--models", "regraft/fashion-resnet"), "two or more"),
        (("rank", "{data}", "--models", ","), "no backbone is named"),
        (("rank", "{data}", "--models", "{data}"), "no folder of checkpoints"),
    ],
)
def test_mistakes_are_one_line(regraft, photos, arguments, words):
    code, out, err = regraft(*(part.format(data=photos) for part in arguments))
    assert code == 2
    assert out == ""
    assert words in err
    assert len(err.strip().splitlines()) == 1
