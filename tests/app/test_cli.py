"""The command line as a user meets it: what is printed, what is written, what can be typed."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from safetensors.torch import save_file
from tests.app.photos import MODEL, Small, folder, table

from regraft.app import scoring
from regraft.app.cli import run
from regraft.app.console import duration, size
from regraft.graft import METHODS
from regraft.graft.evidence.outputs import by_output
from regraft.graft.preparation import DENSE_BATCH
from regraft.heads import Response
from regraft.heads.metrics import METRICS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
RUN_FILES = ["README.md", "config.json", "model.safetensors", "predictions.csv", "record.json", "report.html"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    return folder(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="module")
def adapted(photos, tmp_path_factory) -> Path:
    """One run folder that the tests of predict and report read, and never write."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGRAFT_CACHE", str(tmp_path_factory.mktemp("store")))
        where = tmp_path_factory.mktemp("runs") / "run"
        assert run(["adapt", str(photos), *MODEL, "-o", str(where)]) == 0
    return where


# ---------------------------------------------------------------- adapt


def test_adapt_fills_the_run_folder_and_says_where_it_lies(regraft, photos, tmp_path):
    code, out, err = regraft("adapt", photos, *MODEL, "-o", tmp_path / "run")
    assert (code, err) == (0, "")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == RUN_FILES
    lines = out.splitlines()
    assert lines[0].startswith("adapted ")
    assert "regraft/fashion-resnet to photos by all-layers" in lines[0]
    assert "4 classes (colour0, colour1, colour2, colour3), 48 rows" in lines[1]
    column = lines[0].index("regraft/")
    assert all(line[column - 1] == " " and line[column] != " " for line in lines)  # one aligned column
    assert any(line.startswith("validation") and "accuracy" in line and "95 % interval" in line for line in lines)
    assert any("48 rows, outer cross-validation" in line for line in lines)
    assert any(line.startswith("licence") and "MIT" in line for line in lines)
    assert lines[-1].startswith("next")
    assert f"regraft predict {tmp_path / 'run'}" in lines[-1]
    with (tmp_path / "run" / "predictions.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == 48


def test_json_is_one_object_with_the_promised_keys_and_nothing_else(regraft, tmp_path):
    data = folder(tmp_path / "data", per_class=6, parts=("train", "test"))
    code, out, err = regraft("adapt", data, *MODEL, "-o", tmp_path / "run", "--json")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    value = json.loads(out)
    assert list(value) == ["verb", "status", "method", "task", "scores", "cost", "findings", "paths"]
    assert (value["verb"], value["status"], value["method"]) == ("adapt", "done", "all-layers")
    assert value["task"] == {
        "kind": "multiclass",
        "classes": ["colour0", "colour1", "colour2", "colour3"],
        "rows": {"train": 24, "validation": 0, "test": 24},
    }
    assert list(value["scores"]) == ["validation", "test"]
    for score in value["scores"].values():
        assert list(score) == ["metric", "value", "low", "high"]
        assert score["low"] <= score["value"] <= score["high"]
    assert list(value["cost"]) == [
        "backbone_passes",
        "flops",
        "seconds",
        "peak_bytes",
        "artifact_bytes",
        "alternatives",
    ]
    assert [row["name"] for row in value["cost"]["alternatives"]] == ["probe", "finetune"]
    assert value["cost"]["backbone_passes"] == 1
    assert value["cost"]["flops"] > 0
    assert {"sweep", "solve"} <= set(value["cost"]["seconds"])
    run_folder = tmp_path / "run"
    assert value["cost"]["artifact_bytes"] == sum(
        (run_folder / name).stat().st_size for name in ("model.safetensors", "config.json")
    )
    assert value["paths"] == {
        "run": str(run_folder),
        "artifact": str(run_folder / "model.safetensors"),
        "report": str(run_folder / "report.html"),
    }
    assert all(Path(path).exists() for path in value["paths"].values())


def test_without_a_test_split_its_score_is_null(regraft, photos, tmp_path):
    _, out, _ = regraft("adapt", photos, *MODEL, "-o", tmp_path / "run", "--json")
    assert json.loads(out)["scores"]["test"] is None


def test_an_interval_that_is_not_known_is_null(regraft, photos, tmp_path):
    images = sorted(photos.glob("*/*.png"))
    lines = [f"{path},{path.parent.name},{'train' if i else 'test'}" for i, path in enumerate(images)]
    data = table(tmp_path / "one-test-row.csv", "path,label,split", lines)
    code, out, err = regraft("adapt", data, *MODEL, "--metric", "f1", "-o", tmp_path / "run", "--json")
    assert (code, err) == (0, "")
    score = json.loads(out)["scores"]["test"]
    assert (score["low"], score["high"]) == (None, None)
    assert 0 <= score["value"] <= 1


def test_progress_goes_to_a_terminal_on_stderr_and_never_to_stdout(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(["adapt", str(photos), *MODEL, "-o", str(tmp_path / "run"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["status"] == "done"
    for stage in ("checking inputs", "one pass of the backbone", "solving heads"):
        assert stage in err
    assert "48/48" in err


def test_looking_for_unreadable_inputs_is_counted_too(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(["adapt", str(photos), *MODEL, "--method", "probe", "-o", str(tmp_path / "run"), "--skip-bad"]) == 0
    assert "checking inputs" in capsys.readouterr().err


def test_dry_run_says_the_cost_and_writes_nothing(regraft, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGRAFT_CACHE", str(tmp_path / "cache"))
    code, out, err = regraft("adapt", photos, *MODEL, "--dry-run")
    assert (code, err) == (0, "")
    words = {line.split("  ")[0]: line for line in out.splitlines()}
    assert list(words)[:6] == ["would adapt", "task", "sweep", "solve", "features", "artifact"]
    assert words["task"].endswith("4 classes (colour0, colour1, colour2, colour3), 48 rows")
    assert "a linear probe: 1 backbone pass" in words["beside"]
    assert re.search(r"fine-tuning by 500 steps of 64 rows: [\d.,]+ backbone passes forward and back", out)
    assert "1 backbone pass," in words["sweep"]
    assert "pass" not in words["solve"]
    crossing = regraft("adapt", photos, *MODEL, "--method", "gradient", "--dry-run")[1]
    assert "backbone pass" in next(line for line in crossing.splitlines() if line.startswith("solve"))
    predicted = json.loads(regraft("adapt", photos, *MODEL, "--dry-run", "--json")[1])
    assert predicted["status"] == "dry-run"
    assert predicted["scores"] == {"validation": None, "test": None}
    assert list(tmp_path.iterdir()) == []

    regraft("adapt", photos, *MODEL)
    done = json.loads(Path("runs/photos-fashion-resnet-all-layers/record.json").read_text())
    spent = sum(cost["flops"] for cost in done["costs"])
    assert predicted["cost"]["flops"] == spent  # the prediction is exact where it can be
    assert "stored already" in regraft("adapt", photos, *MODEL, "--dry-run")[1]


@pytest.mark.parametrize(
    ("method", "bounded"),
    [("probe", False), ("head2toe", True), ("head2toe-ft", True), ("finetune-refit-head2toe", True)],
)
def test_a_dry_run_says_that_a_search_stores_its_bytes_at_most(regraft, photos, method: str, bounded: bool):
    _, out, _ = regraft("adapt", photos, *MODEL, "--method", method, "--dry-run")
    line = next(line for line in out.splitlines() if line.startswith("artifact"))
    assert ("at most" in line) is bounded
    assert re.search(r"[\d.]+ [kM]?B of numbers, beside the configuration", line)


def test_a_dry_run_refuses_what_the_run_would_refuse(regraft, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torn = folder(tmp_path / "torn")
    (torn / "colour1/00.png").write_bytes(b"no picture")
    lines = [f"{photos}/colour{k}/{i:02d}.png,{k}" for k in (0, 1) for i in (0, 1, 2)]
    gone = table(tmp_path / "gone.csv", "path,label", [*lines, "nowhere.png,1"])
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").touch()
    regraft("adapt", photos, *MODEL, "--method", "probe", "-o", tmp_path / "probe")
    for data, more in (
        (torn, ()),
        (gone, ()),
        (photos, ("-o", tmp_path / "full")),
        (photos, ("-o", tmp_path / "probe")),
        (photos, ("-o", tmp_path / "full/notes.txt/run")),
    ):
        found = [regraft("adapt", data, *MODEL, *more, *dry) for dry in (("--dry-run",), ())]
        assert found[0] == found[1]
        assert found[0][:2] == (2, "")


def test_a_dry_run_says_of_the_rows_what_the_run_says(regraft, tmp_path):
    torn = folder(tmp_path / "torn")
    (torn / "colour1/00.png").write_bytes(b"no picture")
    shutil.copy(torn / "colour1/01.png", torn / "colour0/copy.png")
    asked = ("adapt", torn, *MODEL, "--method", "probe", "--skip-bad")
    code, out, _ = regraft(*asked, "--dry-run")
    assert code == 0
    assert "1 input was left out." in out
    assert "colour1/00.png: not an image" in out
    assert "1 input carries different labels in different rows." in out
    dry = json.loads(regraft(*asked, "--dry-run", "--json")[1])["findings"]
    done = json.loads(regraft(*asked, "--json", "-o", tmp_path / "run")[1])["findings"]
    codes = [finding["code"] for finding in dry]
    assert codes == ["label-conflict", "rows-kept-together", "skipped-rows"]
    known = ("code", "title", "severity", "detail", "advice")
    kept = [{key: finding[key] for key in known} for finding in done if finding["code"] in codes]
    assert [{key: finding[key] for key in known} for finding in dry] == kept


def test_a_run_without_output_is_named_after_data_model_and_method(regraft, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = regraft("adapt", photos, *MODEL, "--method", "probe")
    assert code == 0
    assert Path("runs/photos-fashion-resnet-probe/report.html").is_file()
    assert "runs/photos-fashion-resnet-probe" in out


def test_runs_of_data_with_names_in_any_script_lie_apart(regraft, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("猫", "犬と 鳥", "cafe\u0301"):
        shutil.copytree(photos, tmp_path / name)
        assert regraft("adapt", name, *MODEL, "--method", "probe")[0] == 0
    made = {path.name for path in (tmp_path / "runs").iterdir()}
    assert made == {f"{name}-fashion-resnet-probe" for name in ("猫", "犬と-鳥", "caf\u00e9")}


def test_the_same_seed_gives_the_same_bytes(regraft, photos, tmp_path, monkeypatch):
    made = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        monkeypatch.setenv("REGRAFT_CACHE", str(tmp_path / f"cache-{name}"))
        command = ("adapt", photos, *MODEL, "--seed", seed, "--limit", 24, "-o", tmp_path / name)
        assert regraft(*command)[0] == 0
        made.append(tmp_path / name)
    first, again, other = made
    for name in ("model.safetensors", "config.json", "predictions.csv"):
        assert (first / name).read_bytes() == (again / name).read_bytes()
    assert (first / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


def test_limit_takes_so_many_balanced_training_rows_and_all_test_rows(regraft, tmp_path):
    data = folder(tmp_path / "data", per_class=6, parts=("train", "test"))
    _, out, _ = regraft("adapt", data, *MODEL, "--limit", 8, "-o", tmp_path / "run", "--json")
    assert json.loads(out)["task"]["rows"] == {"train": 8, "validation": 0, "test": 24}


@pytest.mark.parametrize("metric", ["balanced-accuracy", "f1", "roc-auc", "map"])
def test_metric_is_what_is_reported(regraft, photos, tmp_path, metric):
    code, out, _ = regraft("adapt", photos, *MODEL, "--metric", metric, "-o", tmp_path / "run", "--json")
    assert code == 0
    assert json.loads(out)["scores"]["validation"]["metric"] == metric


def test_class_weights_change_the_head(regraft, tmp_path):
    data = folder(tmp_path / "data", classes=2, per_class=12)
    for path in sorted((data / "colour1").iterdir())[3:]:
        path.unlink()
    for name, extra in (("plain", ()), ("weighted", ("--class-weight", "balanced"))):
        assert regraft("adapt", data, *MODEL, "--folds", 2, *extra, "-o", tmp_path / name)[0] == 0
    plain, weighted = (tmp_path / name / "model.safetensors" for name in ("plain", "weighted"))
    assert plain.read_bytes() != weighted.read_bytes()


def test_a_second_method_reads_the_stored_pass(regraft, photos, tmp_path):
    regraft("adapt", photos, *MODEL, "-o", tmp_path / "a")
    _, out, _ = regraft("adapt", photos, *MODEL, "--method", "probe", "-o", tmp_path / "b", "--json")
    assert json.loads(out)["cost"]["backbone_passes"] == 0
    assert "no backbone pass" in regraft("adapt", photos, *MODEL, "-o", tmp_path / "c")[1]


def test_a_csv_of_numbers_is_regression(regraft, photos, tmp_path):
    rows = [f"{photos}/colour{i % 4}/{i // 4:02d}.{'jpg' if i // 4 % 4 == 3 else 'png'}" for i in range(48)]
    data = table(tmp_path / "r.csv", "path,label", [f"{row},{i % 4 + 0.01 * i}" for i, row in enumerate(rows)])
    code, out, err = regraft("adapt", data, *MODEL, "-o", tmp_path / "run", "--json")
    assert (code, err) == (0, "")
    value = json.loads(out)
    assert value["task"]["kind"] == "regression"
    assert value["scores"]["validation"]["metric"] == "r2"
    assert value["scores"]["validation"]["value"] > 0.5
    code, out, _ = regraft("predict", tmp_path / "run", data)
    predicted = [float(row["prediction"]) for row in csv.DictReader(io.StringIO(out))]
    assert np.corrcoef(predicted, [i % 4 + 0.01 * i for i in range(48)])[0, 1] > 0.9


def test_several_label_columns_are_multilabel(regraft, photos, tmp_path):
    rows = [f"{photos}/colour{i % 4}/{i // 4:02d}.{'jpg' if i // 4 % 4 == 3 else 'png'}" for i in range(48)]
    data = table(tmp_path / "m.csv", "path,red,odd", [f"{row},{int(i % 4 == 0)},{i % 2}" for i, row in enumerate(rows)])
    command = ("adapt", data, *MODEL, "--label", "red", "--label", "odd", "-o", tmp_path / "run", "--json")
    code, out, err = regraft(*command)
    assert (code, err) == (0, "")
    assert json.loads(out)["task"]["kind"] == "multilabel"
    assert json.loads(out)["task"]["classes"] == ["red", "odd"]
    _, out, _ = regraft("predict", tmp_path / "run", rows[0], rows[1], rows[2])
    assert [row["prediction"] for row in csv.DictReader(io.StringIO(out))] == ["red", "odd", "|"]


def test_npz_of_pixels(regraft, tmp_path):
    random = np.random.default_rng(0)
    pixels = random.integers(0, 100, (40, 16, 16, 3)).astype(np.uint8)
    pixels[::2] += 120
    np.savez(tmp_path / "a.npz", X=pixels, y=np.arange(40) % 2)
    code, out, _ = regraft("adapt", tmp_path / "a.npz", *MODEL, "-o", tmp_path / "run", "--json")
    assert code == 0
    assert json.loads(out)["task"]["kind"] == "binary"


def test_own_module_with_weights(regraft, photos, tmp_path):
    torch.manual_seed(3)
    save_file(Small().state_dict(), tmp_path / "own.safetensors")
    own = ("--model", "tests.app.photos:small", "--weights", tmp_path / "own.safetensors")
    code, _, err = regraft("adapt", photos, *own, "-o", tmp_path / "run")
    assert (code, err) == (0, "")
    first = photos / "colour0/00.png"
    code, _, err = regraft("predict", tmp_path / "run", first)
    assert code == 2
    assert "--model tests.app.photos:small" in err
    code, out, _ = regraft("predict", tmp_path / "run", first, *own)
    assert code == 0
    assert len(out.splitlines()) == 2
    torch.manual_seed(4)
    save_file(Small().state_dict(), tmp_path / "other.safetensors")
    code, _, err = regraft("predict", tmp_path / "run", first, *own[:3], tmp_path / "other.safetensors")
    assert code == 2
    assert "not the backbone that this head was solved on" in err


# ---------------------------------------------------------------- predict


def test_predict_prints_csv_with_one_row_per_input(regraft, adapted, photos):
    code, out, err = regraft("predict", adapted, photos)
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert list(rows[0]) == ["id", "prediction", "confidence", *(f"p(colour{k})" for k in range(4))]
    assert len(rows) == 48
    right = [row["prediction"] == row["id"].split("/")[0] for row in rows]
    assert np.mean(right) > 0.9
    for row in rows:
        probabilities = [float(row[f"p(colour{k})"]) for k in range(4)]
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)
        assert float(row["confidence"]) == max(probabilities)


def test_predict_replaces_no_file_of_the_run(regraft, adapted, photos):
    before = (adapted / "predictions.csv").read_bytes()
    code, _, err = regraft("predict", adapted, photos, "-o", adapted / "predictions.csv")
    assert code == 2
    assert "is a file of the run" in err
    assert (adapted / "predictions.csv").read_bytes() == before


def test_predict_averages_over_crops(regraft, adapted, photos):
    def shown(*options):
        code, out, _ = regraft("predict", adapted, photos, *options)
        assert code == 0
        return [[float(row[f"p(colour{k})"]) for k in range(4)] for row in csv.DictReader(io.StringIO(out))]

    plain, crops = np.array(shown()), np.array(shown("--crops", 3))
    assert (crops != plain).any(1).all()
    assert (crops.argmax(1) == plain.argmax(1)).mean() > 0.9
    code, _, err = regraft("predict", adapted, photos, "--crops", 0)
    assert code == 2
    assert "--crops" in err


def test_predict_reads_files_a_folder_or_a_table_alike(regraft, adapted, photos, tmp_path):
    files = [photos / "colour2/00.png", photos / "colour0/03.jpg"]
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, file in enumerate(files):
        shutil.copy(file, flat / f"{number}{file.suffix}")
    listed = table(tmp_path / "new.csv", "path", [str(file) for file in files])
    answers = []
    shouted = table(tmp_path / "NEW.CSV", "path", [str(file) for file in files])
    tabbed = table(tmp_path / "new.tab", "path\trow", [f"{file}\t{row}" for row, file in enumerate(files)])
    for given in (files, [flat], [listed], [shouted], [tabbed]):
        code, out, err = regraft("predict", adapted, *given)
        assert (code, err) == (0, "")
        answers.append([{k: v for k, v in row.items() if k != "id"} for row in csv.DictReader(io.StringIO(out))])
    assert all(answer == answers[0] for answer in answers)
    assert [row["prediction"] for row in answers[0]] == ["colour2", "colour0"]


def test_predict_writes_the_same_rows_as_csv_parquet_and_json(regraft, adapted, photos, tmp_path):
    shown = regraft("predict", adapted, photos)[1]
    for ending in ("csv", "parquet", "json"):
        target = tmp_path / "deep" / f"out.{ending}"
        code, out, _ = regraft("predict", adapted, photos, "-o", target)
        assert code == 0
        assert out == f"48 predictions in {target}\n"
    assert (tmp_path / "deep/out.csv").read_text() == shown
    from_json = json.loads((tmp_path / "deep/out.json").read_text())
    assert parquet.read_table(tmp_path / "deep/out.parquet").to_pylist() == from_json
    assert [row["id"] for row in from_json] == [row["id"] for row in csv.DictReader(io.StringIO(shown))]


def test_predict_json_is_one_object(regraft, adapted, photos, tmp_path):
    code, out, _ = regraft("predict", adapted, photos, "--json")
    value = json.loads(out)
    assert (code, value["verb"], value["rows"], len(value["predictions"])) == (0, "predict", 48, 48)
    value = json.loads(regraft("predict", adapted, photos, "--json", "-o", tmp_path / "p.csv")[1])
    assert value["paths"]["predictions"] == str(tmp_path / "p.csv")
    assert value["predictions"] is None


def test_predictions_equal_those_of_the_live_object(regraft, adapted, photos):
    import regraft as package

    live = package.adapt(photos, "regraft/fashion-resnet").predict_proba(photos)
    shown = list(csv.DictReader(io.StringIO(regraft("predict", adapted, photos)[1])))
    kept = np.array([[float(row[f"p({name})"]) for name in live.classes] for row in shown])
    assert np.array_equal(kept, live.probabilities)


def test_predict_names_all_bad_inputs_or_goes_on_without_them(regraft, adapted, photos, tmp_path):
    good = photos / "colour1/00.png"
    (tmp_path / "zero.png").touch()
    (tmp_path / "text.jpg").write_text("no picture")
    whole = good.read_bytes()
    (tmp_path / "torn.png").write_bytes(whole[: len(whole) // 2])
    bad = [tmp_path / name for name in ("zero.png", "text.jpg", "torn.png")]
    code, out, err = regraft("predict", adapted, good, *bad)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("regraft: 3 of the inputs cannot be used")
    assert all(str(path) in err for path in bad)
    assert "--skip-bad" in err
    code, out, err = regraft("predict", adapted, good, *bad, "--skip-bad")
    assert code == 0
    reasons = ["the image is empty", "cannot identify image", "cannot be decoded"]
    named = err.removeprefix("3 inputs were left out: ").removesuffix("\n").split("; ")
    assert [line.partition(": ")[0] for line in named] == [str(path) for path in bad]
    assert all(reason in line for reason, line in zip(reasons, named))
    assert [row["id"] for row in csv.DictReader(io.StringIO(out))] == [str(good)]

    code, out, err = regraft("predict", adapted, good, *bad, *bad, "--skip-bad", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["rows"] == len(told["predictions"]) == 1
    assert [row["id"] for row in told["skipped"]] == [str(path) for path in bad * 2]
    assert all(reason in row["reason"] for reason, row in zip(reasons * 2, told["skipped"]))
    assert json.loads(regraft("predict", adapted, good, "--skip-bad", "--json")[1])["skipped"] == []
    assert regraft("predict", adapted, good, *bad, *bad, "--skip-bad")[2].endswith("; and 1 more\n")


def test_rows_without_a_finite_answer_are_named_or_left_out(regraft, tmp_path, monkeypatch):
    (tmp_path / "clipped.py").write_text(
        "import torch\nfrom torch import nn\nfrom regraft.network import ArrayPreprocess\n\n"
        "class Log(nn.Module):\n    def forward(self, x):\n        return torch.log(x.sum(1, keepdim=True)) * x\n\n"
        "def build():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(Log(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), ArrayPreprocess((4,))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    x = 0.5 + np.random.default_rng(0).random((40, 4), dtype=np.float32)
    y = np.where(x[:, 0] > x[:, 1], "u", "v")
    np.savez(tmp_path / "train.npz", X=x, y=y)
    x[3] = 0
    np.savez(tmp_path / "new.npz", X=x[:6], y=y[:6])
    own, new = ("--model", "clipped:build"), tmp_path / "new.npz"
    code, _, err = regraft("adapt", tmp_path / "train.npz", *own, "--method", "probe", "-o", tmp_path / "run")
    assert code == 0, err
    for verb, name in (("predict", "row 3"), ("score", "new.npz row 3")):
        code, out, err = regraft(verb, tmp_path / "run", new, *own)
        assert (code, out) == (2, "")
        assert "row 3: the network's output is NaN or infinite" in err
        code, out, err = regraft(verb, tmp_path / "run", new, *own, "--skip-bad", "--json")
        assert code == 0, err
        told = json.loads(out)
        assert told["rows"] == 5
        assert told["skipped"] == [{"id": name, "reason": "the network's output is NaN or infinite"}]


def test_what_a_diagnosis_left_is_nothing_to_predict_with(regraft, photos, tmp_path):
    checks = ("--check", "transfer", "--against", "none", "-o", tmp_path / "seen")
    assert regraft("diagnose", photos, *MODEL, *checks)[0] == 0
    code, _, err = regraft("predict", tmp_path / "seen", photos / "colour1/00.png")
    assert code == 2
    assert (
        f"{tmp_path}/seen holds nothing to predict with; expected a run of adapt; got what diagnose left of photos"
        in err
    )


def test_a_moved_backbone_is_named_and_a_wrong_one_refused(regraft, photos, tmp_path):
    transformers = pytest.importorskip("transformers")
    kind = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_channels=3, num_labels=3
    )
    size = {"height": 16, "width": 16}
    for name, seed in (("right", 0), ("wrong", 1)):
        torch.manual_seed(seed)
        transformers.ResNetForImageClassification(kind).save_pretrained(tmp_path / name)
        transformers.ViTImageProcessor(size=size).save_pretrained(tmp_path / name)
    code, _, err = regraft("adapt", photos, "-m", tmp_path / "right", "-o", tmp_path / "run")
    assert (code, err) == (0, "")
    before = regraft("predict", tmp_path / "run", photos)[1]
    (tmp_path / "right").rename(tmp_path / "moved")
    code, _, err = regraft("predict", tmp_path / "run", photos)
    assert code == 2
    assert "--model" in err
    code, after, err = regraft("predict", tmp_path / "run", photos, "-m", tmp_path / "moved")
    assert (code, err) == (0, "")
    assert after == before
    code, _, err = regraft("predict", tmp_path / "run", photos, "-m", tmp_path / "wrong")
    assert code == 2
    assert "not the backbone that this head was solved on" in err


def test_an_embedded_backbone_is_read_from_the_run_folder_and_verified(regraft, photos, tmp_path):
    torch.manual_seed(3)
    transformers = pytest.importorskip("transformers")
    kind = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_channels=3, num_labels=3
    )
    transformers.ResNetForImageClassification(kind).save_pretrained(tmp_path / "net")
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "net")
    for _ in range(2):  # the second run replaces the first one's backbone
        code, _, err = regraft("adapt", photos, "-m", tmp_path / "net", "--embed", "-o", tmp_path / "run")
        assert (code, err) == (0, "")
    before = regraft("predict", tmp_path / "run", photos, "-m", tmp_path / "net")[1]
    shutil.rmtree(tmp_path / "net")
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    code, after, err = regraft("predict", tmp_path / "elsewhere", photos)
    assert (code, err) == (0, "")
    assert after == before
    weights = tmp_path / "elsewhere/backbone/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    code, _, err = regraft("predict", tmp_path / "elsewhere", photos)
    assert code == 2
    assert "was changed after it was written" in err


# ---------------------------------------------------------------- report, cache, doctor, the rest


# ---------------------------------------------------------------- score


def test_labels_that_come_later_are_scored_beside_what_the_run_said(regraft, adapted, photos, tmp_path):
    later = folder(tmp_path / "later", per_class=5, first=500)
    shutil.rmtree(later / "colour0")
    code, out, err = regraft("score", adapted, later, "-o", tmp_path / "rows.csv")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("score   accuracy ")
    assert "95 % interval" in lines[0]
    assert lines[1].strip() == "15 rows of later"
    assert any(line.startswith("lowest  recall of colour") for line in lines)
    assert any(line.startswith(("beside  the run said ", "warning")) for line in lines)
    with (tmp_path / "rows.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 15
    value = float(lines[0].split()[2].rstrip(","))
    assert value == pytest.approx(np.mean([row["truth"] == row["predicted"] for row in rows]), abs=1e-4)
    _, predicted, _ = regraft("predict", adapted, later)
    assert [row["prediction"] for row in csv.DictReader(io.StringIO(predicted))] == [row["predicted"] for row in rows]


def test_a_runs_own_test_part_scores_what_the_run_said(regraft, tmp_path):
    data = folder(tmp_path / "data", per_class=6, parts=("train", "test"))
    _, first, _ = regraft("adapt", data, *MODEL, "-o", tmp_path / "run", "--json")
    code, out, err = regraft("score", tmp_path / "run", data, "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    value, said = json.loads(out), json.loads(first)["scores"]["test"]
    assert {key: value["scores"]["accuracy"][key] for key in said} == said
    assert value["findings"][0]["title"] == "the run was scored on these rows"
    assert value["paths"] == {"run": str(tmp_path / "run"), "predictions": None}


def test_scoring_the_rows_that_were_learnt_from_is_warned_of(regraft, adapted, photos):
    code, out, _ = regraft("score", adapted, photos)
    assert code == 0
    assert "warning  the run has learnt from all of these rows" in out


def test_a_number_whose_r2_the_rows_leave_undefined_is_named(capsys):
    truth = np.array([[1, 7, 0, np.nan], [2, 7, 5, np.nan], [4, 7, 6, np.nan]])
    response = Response.of("regression", ("a", "b", "c", "d"), truth)
    headline = SimpleNamespace(stated="r2 1", rows=3, protocol="later", metric="r2")
    scored = SimpleNamespace(
        response=response, probabilities=response.values + 0.1, headline=headline, others=(), undefined=()
    )
    scoring._say(SimpleNamespace(scored=scored, rows=SimpleNamespace(skipped=())), [], by_output(scored), None)
    assert "R² of b, d is not defined on these rows" in capsys.readouterr().out


def test_what_is_scored_or_predicted_is_never_written_over(regraft, adapted, photos, tmp_path):
    listed = table(tmp_path / "later.csv", "path,label", [f"{photos}/colour{k}/00.png,colour{k}" for k in range(4)])
    before = listed.read_bytes()
    for verb in ("score", "predict"):
        code, out, err = regraft(verb, adapted, listed, "-o", listed)
        assert (code, out) == (2, "")
        assert "is one of the inputs; expected a file for new predictions" in err
        assert listed.read_bytes() == before


def test_a_folders_tables_are_inputs_and_earlier_predictions_in_it_are_not(regraft, adapted, photos, tmp_path):
    listed = table(
        tmp_path / "data" / "test.csv", "path,label", [f"{photos}/colour{k}/00.png,colour{k}" for k in range(4)]
    )
    code, _, err = regraft("score", adapted, listed.parent, "-o", listed)
    assert code == 2
    assert "is one of the inputs" in err
    shutil.copytree(photos / "colour0", tmp_path / "new")
    for _ in range(2):  # the second time over what the first one wrote
        code, _, err = regraft("predict", adapted, tmp_path / "new", "-o", tmp_path / "new" / "out.csv")
        assert (code, err) == (0, "")


def test_strange_rows_are_named_or_left_out(regraft, adapted, tmp_path):
    later = folder(tmp_path / "later", per_class=3, first=500)
    (later / "colour3").rename(later / "mauve")
    code, out, err = regraft("score", adapted, later)
    assert (code, out) == (2, "")
    assert "3 of the inputs in later cannot be used: mauve/" in err
    assert "the label 'mauve' is none of colour0, colour1, colour2, colour3" in err
    code, out, err = regraft("score", adapted, later, "--skip-bad")
    assert (code, err) == (0, "")
    assert "9 rows of later" in out
    assert "left out  3 rows: mauve/" in out
    code, _, err = regraft("score", adapted, later, "-o", tmp_path / "rows.parquet")
    assert code == 2
    assert "cannot write scored rows as rows.parquet; expected a .csv file" in err


def test_report_is_written_again_from_the_record_alone(regraft, adapted, tmp_path):
    (tmp_path / "run").mkdir()
    shutil.copy(adapted / "record.json", tmp_path / "run")
    code, out, _ = regraft("report", tmp_path / "run")
    assert (code, out) == (0, f"{tmp_path / 'run' / 'report.html'}\n")
    assert (tmp_path / "run/report.html").read_bytes() == (adapted / "report.html").read_bytes()
    code, out, _ = regraft("report", tmp_path / "run", "-o", tmp_path / "else.html", "--json")
    assert json.loads(out)["paths"]["report"] == str(tmp_path / "else.html")
    assert (tmp_path / "else.html").is_file()
    before = (adapted / "report.html").read_bytes()
    (adapted / "report.html").write_bytes(b"of another run")
    code, out, err = regraft("report", tmp_path / "run", "-o", adapted / "report.html")
    written = (adapted / "report.html").read_bytes()
    (adapted / "report.html").write_bytes(before)
    assert (code, out, written) == (2, "", b"of another run")
    assert f"report.html is a file of the run in {adapted}; expected a file of no run" in err
    assert regraft("report", adapted, "-o", adapted / "report.html")[0] == 0


def test_cache_lists_verifies_and_prunes(regraft, photos, tmp_path, monkeypatch):
    root = tmp_path / "cache"
    monkeypatch.setenv("REGRAFT_CACHE", str(root))
    assert json.loads(regraft("cache", "ls", "--json")[1])["entries"] == []
    regraft("adapt", photos, *MODEL, "-o", tmp_path / "run")
    code, out, _ = regraft("cache", "ls")
    assert code == 0
    assert "48 rows" in out
    assert "regraft/fashion-resnet" in out
    assert "complete" in out
    assert str(root) in out.splitlines()[-1]
    entry = json.loads(regraft("cache", "ls", "--json")[1])["entries"][0]
    assert entry["nbytes"] == sum(file.stat().st_size for file in Path(entry["path"]).iterdir())

    shards = sorted(root.rglob("*.safetensors"))
    content = bytearray(shards[0].read_bytes())
    content[-1] ^= 1
    shards[0].write_bytes(bytes(content))
    assert json.loads(regraft("cache", "verify", "--json")[1])["entries"][0]["status"] == "torn"
    assert sorted(root.rglob("*.safetensors")) == shards[1:]
    _, out, _ = regraft("adapt", photos, *MODEL, "-o", tmp_path / "again", "--json")
    assert 0 < json.loads(out)["cost"]["backbone_passes"] < 1  # the torn shard alone
    assert json.loads(regraft("cache", "verify", "--json")[1])["entries"][0]["status"] == "complete"
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()

    assert json.loads(regraft("cache", "prune", "--older-than", 1, "--json")[1])["entries"] == []
    code, out, _ = regraft("cache", "prune")
    assert "deleted from" in out
    assert list(root.rglob("*.safetensors")) == []


def test_doctor_says_what_is_there_and_what_is_broken(regraft, tmp_path, monkeypatch):
    code, out, err = regraft("doctor", "--json")
    assert (code, err) == (0, "")
    checks = {check["name"]: check for check in json.loads(out)["checks"]}
    assert {"python", "torch", "transformers", "timm", "torchvision", "datasets", "device", "cache"} <= set(checks)
    assert checks["bundled"]["detail"].split(", ") == ["regraft/fashion-resnet"]
    assert {check["state"] for check in checks.values()} <= {"ok", "absent", "broken"}
    assert all(check["do"] for check in checks.values() if check["state"] != "ok")

    broken = tmp_path / "site" / "torchvision"  # such as one that was built for another torch
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    about = tmp_path / "site" / "torchvision-0.0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.0.1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("REGRAFT_CACHE", str(tmp_path / "file" / "cache"))
    code, out, _ = regraft("doctor")
    lines = {line.split()[1]: line for line in out.splitlines()[:-1]}
    assert code == 1
    assert lines["torchvision"].startswith("broken")
    assert "nms does not exist" in lines["torchvision"]
    assert lines["cache"].startswith("broken")
    assert out.splitlines()[-1] == "2 broken"
    code, out, err = regraft("doctor", "--json")
    assert (code, err) == (1, "")
    assert json.loads(out)["status"] == "done"  # it has looked at everything


def test_demo_adapts_to_digits(regraft, tmp_path):
    code, out, err = regraft("demo", "-o", tmp_path / "demo", "--json")
    assert (code, err) == (0, "")
    value = json.loads(out)
    assert value["task"]["rows"] == {"train": 1198, "validation": 0, "test": 599}
    assert value["scores"]["test"]["value"] > 0.9
    assert Path(value["paths"]["report"]).is_file()


def test_version_is_the_installed_one(regraft):
    assert regraft("--version") == (0, version("regraft") + "\n", "")


@pytest.mark.parametrize("given", [None, "ACTIVE"])
def test_threads_that_wait_leave_the_cores_to_others_unless_told_otherwise(given):
    code = (
        "import os, sys; from regraft.app import cli\n"
        "cli.run = lambda arguments: print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)\n"
        "cli.main([])"
    )
    own = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    clean = {name: value for name, value in os.environ.items() if name not in own}
    environment = clean if given is None else {**clean, "OMP_WAIT_POLICY": given}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["None" if given else "10000", "False"]  # OpenMP reads it when torch is loaded


def test_python_m_regraft_is_the_same_command_and_help_needs_no_torch():
    code = "import sys; from regraft.app.cli import run; run(['--help']); sys.exit('torch' in sys.modules)"
    light = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    same = subprocess.run([sys.executable, "-m", "regraft", "--help"], capture_output=True, text=True, check=True)
    assert same.stdout == light.stdout
    verbs = ["demo", "adapt", "predict", "score", "report", "diagnose", "rank"]
    verbs += ["doctor", "cache", "pretrain", "reproduce"]
    listed = [line.split()[0] for line in same.stdout.split("Commands:")[1].splitlines() if line.strip()]
    assert listed == verbs


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["adapt", "gone", "--model", "regraft/fashion-resnet"], "gone: no such file or folder"),
        (["adapt", "gone/photos.npz", "--model", "regraft/fashion-resnet"], "gone/photos.npz: no such file or folder"),
        (["rank", "./gone", "--models", "a,b"], "gone: no such file or folder"),
        (["diagnose", "./gone", "--model", "a"], "gone: no such file or folder"),
        (["pretrain", "rotation", "./gone", "--output", "source"], "gone: no such file or folder"),
        (["predict", "gone", "image.png"], "gone holds no artifact"),
        (["score", "gone", "labels.csv"], "gone holds no artifact"),
    ],
)
def test_a_mistyped_path_is_told_before_torch_is_loaded(arguments: list[str], told: str, tmp_path: Path) -> None:
    code = (
        "import sys; from regraft.app.cli import run; "
        f"print(run({arguments!r}), *sorted({{'torch', 'sklearn', 'scipy'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told in done.stderr
    assert done.stdout.split() == ["2"]


@pytest.mark.parametrize("words", [(), ("cache",), ("pretrain",)])
def test_a_bare_verb_shows_its_help(regraft, words):
    code, out, err = regraft(*words)
    assert (code, err) == (0, "")
    assert out.startswith(" ".join(["Usage: regraft", *words]))


@pytest.mark.parametrize("verb", ["adapt", "predict", "score", "report", "demo", "doctor", "reproduce"])
def test_help_explains_every_option(regraft, verb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = regraft(verb, "--help")
    assert code == 0
    lines = out.splitlines()
    for at, line in enumerate(lines):
        if line.startswith("  -"):
            follows = lines[at + 1] if at + 1 < len(lines) else ""
            assert len(line.strip().split("  ", 1)) == 2 or follows.startswith("      "), line


@pytest.mark.parametrize(("option", "names"), [("method", tuple(METHODS)), ("metric", METRICS)])
def test_help_and_page_name_every_method_and_metric(regraft, option, names):
    """The help is written by hand, for it is shown without torch."""
    told = regraft("adapt", "--help")[1].split(f"\n  --{option} ")[1].split("\n  --")[0]
    row = re.search(rf"^\| `--{option}` \| (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)[1]
    for text in (" ".join(re.sub(r"-\s+", "-", told).split()), row):
        assert [name for name in names if not re.search(rf"(?<![\w-]){name}(?![\w-])", text)] == []


def test_help_and_page_tell_the_most_rows_a_step_of_masks(regraft):
    told = " ".join(regraft("adapt", "--help")[1].split("\n  --train-batch ")[1].split("\n  --")[0].split())
    row = re.search(r"^\| `--train-batch` \| (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)[1]
    for text in (told, row):
        assert f"of masks {DENSE_BATCH} at most" in text


def test_help_of_adapt_stands_in_groups(regraft):
    out = regraft("adapt", "--help")[1]
    headings = [line[:-1] for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == [
        "Arguments", "Backbone and method", "Methods that train", "Head probing before they train", "Data",
        "Choice and score", "The pass", "Result", "Options",
    ]  # fmt: skip
    assert out.index("--model") < out.index("--label") < out.index("--metric") < out.index("--output")


def _into_closed_pipe(*arguments, environment=None) -> tuple[int, str]:
    """Exit code and stderr of a command whose stdout has no reader any more."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "regraft", *map(str, arguments)]
    done = subprocess.run(
        command,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", [["doctor"], ["--help"], ["--version"], ["cache", "ls", "--json"]])
def test_a_reader_that_closes_the_pipe_is_no_fault(words):
    assert _into_closed_pipe(*words) == (0, "")


def test_a_mistake_stays_one_when_nobody_reads_its_json():
    code, err = _into_closed_pipe("report", "no-run", "--json")
    assert (code, err.count("\n")) == (2, 1)


def test_predictions_into_a_closed_pipe(adapted, photos):
    assert _into_closed_pipe("predict", adapted, photos, environment={"PYTHONUNBUFFERED": "1"}) == (0, "")


def test_a_pipe_that_breaks_within_is_a_fault(regraft, monkeypatch):
    def broken(root):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    for stream in ("stdout", "stderr"):  # the argument parser wraps them on the way; put them back
        monkeypatch.setattr(sys, stream, getattr(sys, stream))
    monkeypatch.setattr("regraft.features.entries", broken)
    code, _, err = regraft("cache", "ls")
    assert code == 1
    assert "this is a fault in regraft: BrokenPipeError" in err


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "under 0.1 s"), (3.71, "3.7 s"), (59.97, "1 min 0 s"), (125, "2 min 5 s"), (4200, "1 h 10 min")],
)
def test_durations_are_said_as_people_say_them(seconds, said):
    assert duration(seconds) == said


@pytest.mark.parametrize(("nbytes", "said"), [(12, "12 B"), (51_400, "51.4 kB"), (2.5e6, "2.5 MB"), (3e9, "3.0 GB")])
def test_sizes_are_said_as_people_say_them(nbytes, said):
    assert size(nbytes) == said


def test_pictures_of_the_tests_are_told_apart_by_colour(photos):
    image = np.asarray(Image.open(photos / "colour2/00.png"))
    assert image[8:].mean((0, 1)).argmax() == 2
