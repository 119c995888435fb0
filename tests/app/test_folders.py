"""Run folders: a run that would be lost is in the way of another one, and in nobody's else."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from tests.app.photos import MODEL, Small, folder, table

from regraft.app.folders import check_predictions, check_verb
from regraft.errors import DataError
from regraft.files import write_bytes
from regraft.graft.pretraining.folder import unfinished
from regraft.graft.recording import short_name
from regraft.record import Record
from regraft.record.folder import check_folder, check_replaced, whole


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("data") / "photos", per_class=8)


def contents(run):
    return {path.name: path.read_bytes() for path in run.iterdir()}


def test_a_run_on_other_data_of_another_backbone_or_by_another_method_is_refused_before_the_pass(
    regraft, photos, tmp_path, monkeypatch
):
    torch.manual_seed(0)
    save_file(Small().state_dict(), tmp_path / "own.safetensors")
    own = ("--model", "tests.app.photos:small", "--weights", tmp_path / "own.safetensors")
    run, more = tmp_path / "run", ("--method", "probe", "-o", tmp_path / "run")
    others = folder(tmp_path / "others", per_class=8)
    assert regraft("adapt", photos, *MODEL, *more)[0] == 0
    before = contents(run)
    monkeypatch.setattr("regraft.graft.run.swept", None)  # no pass is begun
    for command, words in (
        ((others, *MODEL, *more), "other data"),
        ((photos, *own, *more), "another backbone"),
        ((photos, *MODEL, "--method", "lp-ft", "-o", run), "another method"),
    ):
        code, out, err = regraft("adapt", *command)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"{run} holds another run; expected none, or one on the same data and labels" in err
        assert f"got probe on photos: {words}. To mend it: choose another place with --output" in err
    assert contents(run) == before
    assert regraft("demo", "-o", run)[0] == 2
    assert "another method" in regraft("adapt", photos, *MODEL, "--method", "lp-ft", "-o", run, "--dry-run")[2]
    assert regraft("adapt", photos, *MODEL, "--method", "lp-ft", "-o", tmp_path / "new", "--dry-run")[0] == 0


def test_data_of_one_name_do_not_replace_each_other_without_an_output_either(regraft, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = folder(tmp_path / "other" / "photos", classes=3, per_class=8)
    assert regraft("adapt", photos, *MODEL, "--method", "probe")[0] == 0
    code, _, err = regraft("adapt", other, *MODEL, "--method", "probe")
    assert code == 2
    assert "runs/photos-fashion-resnet-probe holds another run" in err
    same = folder(tmp_path / "same" / "photos", per_class=8, first=500)  # classes of the same names, other pictures
    code, _, err = regraft("adapt", same, *MODEL, "--method", "probe")
    assert (code, "got probe on photos: other data" in err) == (2, True)
    shutil.copy(photos / "colour0" / "00.png", same / "colour0" / "more.png")  # the same, with rows added, moved
    assert regraft("adapt", same, *MODEL, "--method", "probe")[0] == 0
    for seed in (0, 1):  # few rows of one place may share none
        assert regraft("adapt", same, *MODEL, "--method", "probe", "--limit", 8, "--seed", seed)[0] == 0
    for path in same.rglob("*.png"):
        Image.open(path).resize((20, 20)).save(path)
    assert regraft("adapt", same, *MODEL, "--method", "probe")[0] == 0


def test_runs_for_other_label_columns_do_not_replace_each_other(regraft, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pictures = enumerate(sorted(photos.rglob("*.png")))
    rows = [f"{path},{'yes' if i % 2 else 'no'},{'yes' if i % 3 else 'no'}" for i, path in pictures]
    data = table(tmp_path / "patients.csv", "path,diabetes,stroke", rows)
    assert regraft("adapt", data, *MODEL, "--method", "probe", "--label", "diabetes")[0] == 0
    code, _, err = regraft("adapt", data, *MODEL, "--method", "probe", "--label", "stroke")
    assert (code, "got probe on patients: another label" in err) == (2, True)
    assert regraft("adapt", data, *MODEL, "--method", "probe", "--label", "diabetes")[0] == 0


def test_a_run_is_replaced_by_no_other_verb(regraft, photos, tmp_path, monkeypatch):
    run = tmp_path / "run"
    assert regraft("adapt", photos, *MODEL, "--method", "probe", "-o", run)[0] == 0
    before = contents(run)
    names = ("--models", f"{MODEL[1]},regraft/fashion-resnet")
    for verb, arguments in (
        ("diagnose", (photos, *MODEL)),
        ("diagnose", (photos, "--run", run)),
        ("rank", (photos, *names)),
        ("pretrain", ("supervised", photos)),
    ):
        code, out, err = regraft(verb, *arguments, "-o", run)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"{run} holds another run; expected none, or what {verb} left; got what adapt left of photos" in err
    assert contents(run) == before
    again = ("rank", photos, *names, "-o", tmp_path / "ranking")  # its own, of before, it replaces
    assert [regraft(*again)[0] for _ in range(2)] == [0, 0]
    code, _, err = regraft("adapt", photos, *MODEL, "-o", tmp_path / "ranking")
    assert code == 2
    assert "holds another run" in err


def test_a_folder_with_other_files_is_refused_before_the_pass(regraft, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("regraft.graft.run.swept", None)  # no pass is begun
    for verb, arguments in (
        ("adapt", (photos, *MODEL)),
        ("diagnose", (photos, *MODEL)),
        ("rank", (photos, "--models", MODEL[1])),
        ("pretrain", ("supervised", photos)),
    ):
        code, out, err = regraft(verb, *arguments, "-o", photos)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"{photos} holds other files; expected a new or an empty folder, or one with a run; got " in err
    assert not (photos / "record.json").exists()


def test_a_record_of_something_else_makes_no_run_of_a_folder(regraft, photos, tmp_path):
    (tmp_path / "ward").mkdir()
    (tmp_path / "ward" / "record.json").write_text('{"patient": 1}')
    (tmp_path / "ward" / "scan.png").write_bytes(b"")
    code, _, err = regraft("adapt", photos, *MODEL, "-o", tmp_path / "ward")
    assert (code, "holds other files" in err, "got scan.png" in err) == (2, True, True)


def test_an_empty_folder_or_one_with_a_runs_own_and_other_files_is_filled(regraft, photos, tmp_path):
    run = tmp_path / "run"
    (run / ".hidden").mkdir(parents=True)
    for _ in range(2):
        assert regraft("adapt", photos, *MODEL, "--method", "probe", "-o", run)[0] == 0
        (run / "notes.txt").write_text("mine")
    assert (run / "notes.txt").read_text() == "mine"


def test_the_same_run_is_made_again_in_its_place(regraft, photos, tmp_path):
    """With other settings and other rows too: weights of another seed are no other backbone. An unreadable record is
    no run."""
    for seed in (0, 1):
        more = ("--method", "scratch", "--steps", "2", "--lr", "0.01", "--seed", seed, "-o", tmp_path / "run")
        code, _, err = regraft("adapt", photos, *MODEL, *more)
        assert (code, err) == (0, "")
        assert json.loads((tmp_path / "run" / "record.json").read_text("utf-8"))["seeds"]["seed"] == seed
    assert regraft("adapt", photos, *MODEL, *more, "--limit", "20")[0] == 0
    there = Record.load(tmp_path / "run" / "record.json")
    drawn = dataclasses.replace(there, model={**there.model, "fingerprint": "of another seed"})
    check_replaced(tmp_path / "run", drawn)
    with pytest.raises(DataError, match="another backbone"):
        check_replaced(tmp_path / "run", dataclasses.replace(drawn, model={**drawn.model, "path": "another"}))
    (tmp_path / "run" / "record.json").write_text("{")
    assert regraft("adapt", photos, *MODEL, "--method", "probe", "-o", tmp_path / "run")[0] == 0


def test_a_backbone_s_folder_has_one_name_however_it_is_written(tmp_path, monkeypatch):
    (tmp_path / "net").mkdir()
    monkeypatch.chdir(tmp_path / "net")
    for name in (".", "../net/.", str(tmp_path / "net/"), f"{tmp_path}/net/."):
        assert short_name(SimpleNamespace(name=name)) == "net"
    assert short_name(SimpleNamespace(name="timm/resnet18")) == "timm/resnet18"


def test_a_place_whose_files_could_not_be_put_there_is_refused_before_the_pass(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for place, why in ((tmp_path / ("x" * 240), "name too long"), (tmp_path / "link", "a link to nothing")):
        with pytest.raises(DataError, match=f"(?i){why}.*--output"):
            check_folder(place)


def test_a_long_text_is_no_file_among_the_inputs(tmp_path):
    (tmp_path / "p.csv").touch()
    check_predictions(tmp_path / "p.csv", ["word " * 60])
    with pytest.raises(DataError, match="one of the inputs"):
        check_predictions(tmp_path / "p.csv", ["word " * 60, str(tmp_path / "p.csv")])


def test_a_copy_of_the_backbone_that_no_artifact_reads_goes(tmp_path):
    for names in (("config.json", "backbone/config.json"), ("record.json",), ("config.json",)):
        with whole(tmp_path / "run") as staging:
            for name in names:
                write_bytes(staging / name, b"{}")
        assert (tmp_path / "run" / "backbone").is_dir() == (names != ("config.json",))


def test_what_to_do_next_names_a_backbone_that_no_artifact_may_name(regraft, photos, tmp_path):
    torch.manual_seed(0)
    weights = tmp_path / "own.safetensors"
    save_file(Small().state_dict(), weights)
    own = ("--model", "tests.app.photos:small", "--weights", weights)
    code, out, _ = regraft("adapt", photos, *own, "--method", "probe", "-o", tmp_path / "run")
    following = f"regraft predict {tmp_path / 'run'} NEW_INPUTS --model tests.app.photos:small --weights {weights}"
    assert (code, following in out) == (0, True)
    asked = shlex.split(following.replace("NEW_INPUTS", str(photos)))
    assert regraft(*asked[1:])[0] == 0
    assert regraft("predict", tmp_path / "run", photos)[0] == 2


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder in which nobody can write")
def test_a_place_that_lets_nobody_write_is_refused_before_the_pass(regraft, photos, monkeypatch):
    monkeypatch.setattr("regraft.graft.run.swept", None)  # no pass is begun
    code, out, err = regraft("adapt", photos, *MODEL, "-o", "/proc/regraft")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "cannot write into /proc/regraft" in err


def test_names_that_are_no_utf8_are_run_and_written(regraft, photos, tmp_path):
    """As an old zip leaves them, of folders, classes and files."""

    def foreign(path, name):
        new = path.with_name(os.fsdecode(name))
        try:
            return path.rename(new)
        except OSError:
            pytest.skip("this disk takes no such names")

    root = folder(tmp_path / "p", classes=2, per_class=8)
    foreign(root / "colour0" / "00.png", b"Gr\xfcn 1.png")
    foreign(root / "colour1", b"Gr\x81n")
    root = foreign(root, b"caf\xe9")
    code, out, err = regraft("adapt", root, *MODEL, "--method", "probe", "-o", tmp_path / "run")
    assert (code, err) == (0, "")
    assert r"2 classes (Gr\x81n, colour0)" in out
    record = json.loads((tmp_path / "run" / "record.json").read_text(encoding="utf-8"))
    assert record["data"]["name"] == r"caf\xe9"
    assert r"colour0/Gr\xfcn 1.png" in (tmp_path / "run" / "predictions.csv").read_text(encoding="utf-8")
    file = root / "colour0" / os.fsdecode(b"Gr\xfcn 1.png")
    for ending in ("csv", "json", "parquet"):
        assert regraft("predict", tmp_path / "run", file, "-o", tmp_path / f"p.{ending}")[0] == 0
    assert regraft("predict", tmp_path / "run", file)[1].count(r"Gr\xfcn 1.png") == 1
    run = (tmp_path / "run").rename(tmp_path / os.fsdecode(b"l\xe4ufe"))
    assert regraft("report", run)[1] == str(tmp_path) + "/l\\xe4ufe/report.html\n"
    assert json.loads(regraft("report", run, "--json")[1])["paths"]["run"] == str(run)
    file.write_bytes(b"no picture")
    code, _, err = regraft("adapt", root, *MODEL, "--method", "probe", "-o", tmp_path / "run2")
    assert code == 2
    assert r"Gr\xfcn 1.png" in err


def test_the_same_command_beside_this_one_may_have_made_the_folder(tmp_path):
    with whole(tmp_path / "run") as staging:
        (staging / "record.json").write_text("mine")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "record.json").write_text("its own")
    assert contents(tmp_path / "run") == {"record.json": b"mine"}
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("moved", range(1, 5))
def test_a_folder_that_a_killed_save_filled_in_part_is_a_runs(tmp_path, monkeypatch, moved):
    """Where the folder was there, files are put into it one by one."""
    run, replace = tmp_path / "run", os.replace
    run.mkdir()

    def killed(source, target):
        if len([*run.iterdir()]) > moved:  # the staging folder is one
            raise KeyboardInterrupt
        replace(source, target)

    def save():
        with monkeypatch.context() as context, whole(run) as staging:
            for name in ("README.md", "config.json", "predictions.csv", "backbone/config.json"):
                write_bytes(staging / name, b"{}")
            Record("adapt", "done", "probe", {}, {}, {}, {}).save(staging / "record.json")
            context.setattr(os, "replace", killed)

    with pytest.raises(KeyboardInterrupt):
        save()
    assert len([*run.iterdir()]) == moved
    check_verb(run, "adapt")
    (run / "backbone").mkdir(exist_ok=True)
    (run / "record.json").write_text("{")
    check_verb(run, "adapt")


@pytest.mark.parametrize("moved", range(5))
def test_a_replaced_run_that_is_killed_in_between_is_no_mixture_of_two(tmp_path, monkeypatch, moved):
    """The new files would be read beside the old ones: predictions of one run with the score of the other."""
    names, run = ("README.md", "config.json", "predictions.csv", "record.json"), tmp_path / "run"
    replace, done = os.replace, []

    def killed(source, target):
        if len(done) == moved:
            raise KeyboardInterrupt
        done.append(target)
        replace(source, target)

    def save(which):
        with whole(run) as staging:
            for name in names:
                (staging / name).write_text(which)
            monkeypatch.setattr(os, "replace", killed)

    save("old")
    with contextlib.suppress(KeyboardInterrupt):
        save("new")
    assert len(done) == moved
    there = {path.name: path.read_text() for path in run.iterdir()}
    assert len({*there.values()}) == 1
    assert "record.json" in there


def test_what_a_killed_save_left_is_removed_by_a_later_one(tmp_path):
    for name, hours in ((".run.0123456789ab", 2), ("run/.run.0123456789ac", 2), (".run.0123456789ad", 0), (".else", 2)):
        left = tmp_path / f"{name}.part"
        left.mkdir(parents=True)
        (left / "record.json").touch()
        os.utime(left, (time.time() - 3600 * hours,) * 2)
    with whole(tmp_path / "run") as staging:
        (staging / "record.json").touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".else.part", ".run.0123456789ad.part", "run",
    ]  # fmt: skip
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["record.json"]


def test_what_another_command_wrote_meanwhile_is_not_replaced(regraft, photos, tmp_path, monkeypatch):
    """Both found the folder free when they began."""
    run, done = tmp_path / "run", []
    other = Record("rank", "done", "", {}, {}, {"name": "photos"}, {})

    def meanwhile(of):
        def call(*arguments, **options):
            other.save(run / "record.json")
            done.append(of)
            return of(*arguments, **options)

        return call

    for name in ("regraft.graft.run.evaluate", "regraft.graft.diagnosis.rank.now"):
        module, _, attribute = name.rpartition(".")
        monkeypatch.setattr(name, meanwhile(getattr(sys.modules[module], attribute)))
    code, out, err = regraft("adapt", photos, *MODEL, "--method", "probe", "-o", run)
    assert (code, out, len(done)) == (2, "", 1)
    assert f"{run} holds another run" in err
    assert [path.name for path in run.iterdir()] == ["record.json"]
    (run / "record.json").unlink()
    other = Record("adapt", "done", "probe", {}, {}, {"name": "photos"}, {})
    models = "regraft/fashion-resnet,tests.app.photos:small"
    code, out, err = regraft("rank", photos, "--models", models, "-o", run)
    assert (code, out, len(done)) == (2, "", 2)
    assert f"{run} holds another run" in err
    assert Record.load(run) == other


def test_a_pretraining_that_a_full_disk_stopped_at_its_first_file_goes_on(tmp_path):
    (tmp_path / "backbone" / "training").mkdir(parents=True)
    check_verb(tmp_path / "backbone", "pretrain", unfinished(tmp_path / "backbone"))
