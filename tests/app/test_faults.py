"""What goes wrong in a user's hands: one line each, nothing half-written, nothing computed twice."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest
from tests.app.photos import MODEL, folder, picture, table

from regraft.app.cli import run

RUN_FILES = {"README.md", "config.json", "model.safetensors", "predictions.csv", "record.json", "report.html"}
EMPTY_GIF = b"GIF89a\0\0\0\0\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0\0\0\0\0\0\x02\x02\x44\x01\0;"


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    return folder(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="module")
def adapted(photos, tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGRAFT_CACHE", str(tmp_path_factory.mktemp("store")))
        where = tmp_path_factory.mktemp("runs") / "run"
        assert run(["adapt", str(photos), *MODEL, "-o", str(where)]) == 0
    return where


@pytest.fixture
def refused(capfd, tmp_path, monkeypatch):
    """Run a command that must fail: exit code 2, one line, no run folder. Gives the line."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments, code: int = 2) -> str:
        capfd.readouterr()
        got = run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert err.startswith("regraft: "), err
        assert err.count("\n") == 1, err
        assert "Traceback" not in err
        assert out == ""
        assert got == code
        assert not (tmp_path / "runs").exists()
        return err

    return call


# ---------------------------------------------------------------- what is typed


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("adap",), "Did you mean 'adapt'? See `regraft --help`."),
        (("adapt",), "Missing argument 'DATA'. See `regraft adapt --help`."),
        (("adapt", "photos"), "Missing option '--model' / '-m': name a backbone, such as"),
        (("adapt", "--data", "photos"), "No such option: --data: DATA stands alone, without a word before it. See"),
        (("adapt", "photos", *MODEL, "--bogus"), "--bogus"),
        (("adapt", "photos", *MODEL, "--limit", "1"), "Invalid value for '--limit': expected 2 or more. See"),
        (("adapt", "photos", *MODEL, "--limit", "many"), "Invalid value for '--limit': expected a whole number. See"),
        (("adapt", "photos", *MODEL, "--method", "linear"), "probe or all-layers"),
        (("adapt", "photos", *MODEL, "--metric", "acuracy"), "balanced-accuracy"),
        (("adapt", "photos", *MODEL, "--dtype", "int8"), "float16"),
        (("adapt", "photos", *MODEL, "--dtype", "int8", "--dry-run"), "float16"),
        (("adapt", "photos", *MODEL, "--device", "gpu"), "device 'gpu' is unknown"),
        (("adapt", "photos", *MODEL, "--device", "cuda:99"), "device 'cuda:99' is not there"),
        (("adapt", "photos", *MODEL, "--class-weight", "even"), "balanced"),
        (("adapt", "phots", *MODEL), "phots"),
        (("predict", "no-run", "photos"), "no-run holds no artifact"),
        (("report", "no-run"), "no-run"),
        (("adapt", "photos", *MODEL, "--tolerance", "much"), "Invalid value for '--tolerance': expected a number. See"),
        (("cache", "prune", "--older-than", "-1"), "--older-than"),
        (("reproduce", "no-such-row", "--no-gates"), "no-such-row"),
        (("reproduce", "ntk-eq1", "--data", "no-such-folder"), "--data no-such-folder is no folder"),
    ],
)
def test_a_slip_of_the_keyboard_gets_one_line(refused, tmp_path, typed, said):
    (tmp_path / "photos").mkdir(exist_ok=True)  # a path that is not there is told first
    assert said in refused(*typed)


def test_a_missing_path_has_near_names(refused, photos):
    assert "did you mean photos?" in refused("adapt", photos.parent / "phots", *MODEL)


def test_with_json_an_error_is_one_object_too(capfd, tmp_path):
    capfd.readouterr()
    assert run(["adapt", str(tmp_path / "nowhere"), *MODEL, "--json"]) == 2
    out, err = capfd.readouterr()
    value = json.loads(out)
    assert (value["verb"], value["status"]) == ("adapt", "error")
    assert err == f"regraft: {value['error']}\n"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("regraft/fashion-resnt", "did you mean regraft/fashion-resnet"),
        ("resnet18", "timm/resnet18"),
        ("tests.app.photos:smal", "small"),
        ("tests.app.nothing:small", "tests.app.nothing"),
        ("tests.app.photos:words", "outputs are no tensors"),
        ("tests.app.photos:forgetful", "eval"),
    ],
)
def test_an_unusable_model_gets_one_line(refused, photos, model, said):
    assert said in refused("adapt", photos, "-m", model)


def test_a_hub_model_without_network_is_refused_quickly(refused, photos):
    pytest.importorskip("transformers")
    line = refused("adapt", photos, "-m", "some-org/some-model")
    assert "some-org/some-model" in line
    assert "cannot be reached" in line


def test_metric_and_class_weights_must_fit_the_labels_before_anything_is_computed(refused, photos, tmp_path):
    rows = [f"{photos}/colour0/{i:02d}.png,{i}.5" for i in range(3)]
    numbers = table(tmp_path / "r.csv", "path,label", rows)
    assert "does not fit regression" in refused("adapt", numbers, *MODEL, "--metric", "accuracy")
    assert "do not fit regression" in refused("adapt", numbers, *MODEL, "--class-weight", "balanced")
    assert "does not fit multiclass" in refused("adapt", photos, *MODEL, "--metric", "rmse")
    assert not list(Path(os.environ["REGRAFT_CACHE"]).rglob("*.safetensors"))


# ---------------------------------------------------------------- data


def _rows(photos: Path, labels: list[str]) -> list[str]:
    return [f"{photos}/colour{i % 4}/{i // 4:02d}.png,{label}" for i, label in enumerate(labels)]


def test_too_little_to_learn_from(refused, photos, tmp_path):
    (tmp_path / "one" / "only").mkdir(parents=True)
    for i in range(3):
        picture(0, i).save(tmp_path / "one" / "only" / f"{i}.png")
    assert "single class, 'only'" in refused("adapt", tmp_path / "one", *MODEL)
    (tmp_path / "empty").mkdir()
    assert "no image" in refused("adapt", tmp_path / "empty", *MODEL)
    one = table(tmp_path / "row.csv", "path,label", _rows(photos, ["a"]))
    assert "1 training row" in refused("adapt", one, *MODEL)
    none = table(tmp_path / "none.csv", "path,label", _rows(photos, [""] * 8))
    assert "no label at all" in refused("adapt", none, *MODEL)
    column = table(tmp_path / "column.csv", "path", [row.split(",")[0] for row in _rows(photos, ["a"] * 8)])
    assert "--label" in refused("adapt", column, *MODEL)
    some = table(tmp_path / "some.csv", "path,label", _rows(photos, ["a", "b", "a", "b", "a", "b", "", "b"]))
    line = refused("adapt", some, *MODEL)
    assert "1 of 8 rows has no label" in line
    assert "--skip-bad" in line


def test_a_class_that_is_in_test_alone(refused, photos, tmp_path):
    labels = ["a,train", "b,train"] * 3 + ["a,test", "c,test"]
    data = table(tmp_path / "t.csv", "path,label,split", _rows(photos, labels))
    line = refused("adapt", data, *MODEL)
    assert "'c'" in line
    assert "not in training" in line


def test_files_that_are_no_data(refused, tmp_path):
    for name, content in (("a.csv", b""), ("b.csv", bytes(range(256))), ("c.parquet", b"PAR1"), ("d.npz", b"PK\3\4")):
        (tmp_path / name).write_bytes(content)
        assert name in refused("adapt", tmp_path / name, *MODEL)


def test_text_is_refused_for_an_image_backbone(refused, tmp_path):
    data = table(tmp_path / "t.csv", "text,label", [f"some words {i},{'ab'[i % 2]}" for i in range(12)])
    line = refused("adapt", data, *MODEL)
    assert "reads image inputs" in line
    assert "text inputs" in line
    assert "a column of names of image files is read as images where it is called path" in line


@pytest.mark.parametrize("blank", ["", "   "])
def test_blank_names_are_called_blank(refused, adapted, photos, blank):
    assert "an input is blank" in refused("predict", adapted, blank)
    assert "an input is blank" in refused("predict", adapted, "some words", blank)
    assert "the name of the data is blank" in refused("adapt", blank, *MODEL)
    if blank:
        for line in (refused("predict", blank, photos), refused("report", blank)):
            assert "the name of the run folder is blank" in line


def test_inputs_of_another_kind_are_refused_by_predict(refused, adapted, tmp_path):
    (tmp_path / "notes.txt").write_text("some words")
    line = refused("predict", adapted, tmp_path / "notes.txt")
    assert "reads image inputs" in line
    assert "text inputs" in line
    numbers = table(tmp_path / "n.csv", "x0,x1", ["1,2", "3,4"])
    assert "array inputs in n" in refused("predict", adapted, numbers)


def test_bad_images_are_all_named_before_the_pass_and_can_be_left_out(refused, capfd, tmp_path):
    data = folder(tmp_path / "photos")
    whole = (data / "colour0/00.png").read_bytes()
    bad = {
        "colour0/zero.png": b"",
        "colour1/torn.png": whole[: len(whole) // 2],
        "colour2/words.jpg": b"no picture",
        "colour3/nothing.gif": EMPTY_GIF,
        "colour3/torn.jpg": (data / "colour3/03.jpg").read_bytes()[:-60],
    }
    for name, content in bad.items():
        (data / name).write_bytes(content)
    line = refused("adapt", data, *MODEL)
    assert "5 of the inputs in photos cannot be used" in line
    assert all(str(data / name) in line for name in bad)
    assert "--skip-bad" in line
    assert not list(Path(os.environ["REGRAFT_CACHE"]).rglob("*.safetensors"))
    assert run(["adapt", str(data), *MODEL, "--skip-bad", "-o", str(tmp_path / "run"), "--json"]) == 0
    value = json.loads(capfd.readouterr().out)
    assert value["task"]["rows"]["train"] == 48
    assert next(f for f in value["findings"] if f["code"] == "skipped-rows")["value"] == 5


def test_with_skip_bad_every_image_is_looked_at_once_before_the_pass(photos, tmp_path, monkeypatch):
    looked, module = [], sys.modules["regraft.data.inspect"]
    look = module._inspect_row
    monkeypatch.setattr(module, "_inspect_row", lambda source, row: looked.append(row) or look(source, row))
    for more in ([], ["--skip-bad"]):
        monkeypatch.setenv("REGRAFT_CACHE", str(tmp_path / f"cache{len(more)}"))
        looked.clear()
        assert run(["adapt", str(photos), *MODEL, *more, "--method", "probe", "-o", str(tmp_path / "run")]) == 0
        assert sorted(looked) == list(range(48))


# ---------------------------------------------------------------- the disk


def test_a_disk_too_small_is_refused_before_the_pass(refused, photos, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 1000))
    line = refused("adapt", photos, *MODEL)
    assert "too small" in line
    assert "REGRAFT_CACHE" in line
    assert not list(Path(os.environ["REGRAFT_CACHE"]).rglob("*.safetensors"))


def _full_after(monkeypatch, count: int, where: str) -> None:
    """The disk is full once ``count`` files below a path that holds ``where`` have been written."""
    real, left = os.replace, [count]

    def replace(source, target):
        if where in str(target):
            if not left[0]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
            left[0] -= 1
        return real(source, target)

    monkeypatch.setattr(os, "replace", replace)


def test_a_disk_that_fills_up_in_the_pass_keeps_what_was_computed(refused, capfd, photos, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("REGRAFT_CACHE", str(cache))
    with monkeypatch.context() as patch:
        _full_after(patch, 5, ".safetensors")
        line = refused("adapt", photos, *MODEL, "--batch-size", 4)
    assert "No space left on device" in line
    kept = {path: path.stat().st_mtime_ns for path in cache.rglob("*.safetensors")}
    assert len(kept) == 5
    assert not list(cache.rglob("*.part"))
    command = ["adapt", str(photos), *MODEL, "--batch-size", "4", "-o", str(tmp_path / "run"), "--json"]
    assert run(command) == 0
    assert json.loads(capfd.readouterr().out)["cost"]["backbone_passes"] == pytest.approx((48 - 20) / 48)
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())


@pytest.mark.parametrize("written", range(6))
def test_a_disk_that_fills_up_while_the_run_is_saved_leaves_no_run_folder(
    refused, photos, tmp_path, monkeypatch, written
):
    with monkeypatch.context() as patch:
        _full_after(patch, written, f"{tmp_path}/out/")
        line = refused("adapt", photos, *MODEL, "-o", tmp_path / "out" / "run")
    assert "No space left on device" in line
    assert not list((tmp_path / "out").iterdir()) if (tmp_path / "out").exists() else True


def test_an_earlier_run_in_the_folder_survives_a_failed_one(refused, capfd, photos, tmp_path, monkeypatch):
    out = tmp_path / "out" / "run"
    assert run(["adapt", str(photos), *MODEL, "-o", str(out)]) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with monkeypatch.context() as patch:
        _full_after(patch, 3, f"{tmp_path}/out/")
        refused("adapt", photos, *MODEL, "--seed", 5, "-o", out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert run(["adapt", str(photos), *MODEL, "--seed", "5", "-o", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == RUN_FILES
    assert (out / "config.json").read_bytes() != before["config.json"]
    assert [path.name for path in out.parent.iterdir()] == ["run"]


def test_a_run_folder_that_is_a_disk_of_its_own(photos, tmp_path, monkeypatch):
    """An existing folder on another device, such as a mounted volume: nothing is renamed into it from outside."""
    out, real = tmp_path / "mounted", {"rename": os.rename, "replace": os.replace}
    out.mkdir()

    def move(name):
        def within_one_disk(source, target, **options):
            if (out in Path(source).parents) != (out in Path(target).parents):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(source), None, str(target))
            return real[name](source, target, **options)

        return within_one_disk

    for name in real:
        monkeypatch.setattr(os, name, move(name))
    for _ in range(2):  # into an empty folder, and over an earlier run
        assert run(["adapt", str(photos), *MODEL, "-o", str(out)]) == 0
        assert {path.name for path in out.iterdir()} == RUN_FILES


def test_what_a_killed_save_left_is_in_nobodys_way(photos, tmp_path):
    """A container's process has the same number every time: its staging folder may be there already."""
    for left in (tmp_path / f".run.{os.getpid()}.part", tmp_path / "run" / f".run.{os.getpid()}.part"):
        assert run(["adapt", str(photos), *MODEL, "-o", str(tmp_path / "run")]) == 0
        left.mkdir()
    assert run(["adapt", str(photos), *MODEL, "-o", str(tmp_path / "run")]) == 0
    shutil.rmtree(tmp_path / "run")
    assert run(["adapt", str(photos), *MODEL, "-o", str(tmp_path / "run")]) == 0


def test_a_cache_that_cannot_be_written(refused, photos, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("REGRAFT_CACHE", str(tmp_path / "file" / "cache"))
    line = refused("adapt", photos, *MODEL)
    assert str(tmp_path / "file" / "cache") in line
    assert "REGRAFT_CACHE" in line


@pytest.mark.parametrize("below", ["file", "file/run"])
def test_an_output_that_cannot_be_written_is_refused_before_the_pass(refused, photos, adapted, tmp_path, below):
    (tmp_path / "file").write_text("mine")
    assert "file is a file" in refused("adapt", photos, *MODEL, "-o", tmp_path / below)
    assert not list(Path(os.environ["REGRAFT_CACHE"]).rglob("*.safetensors"))
    assert "file is a file" in refused("demo", "-o", tmp_path / below)
    assert "file is a file" in refused("predict", adapted, photos, "-o", tmp_path / "file" / "p.csv")
    assert "file is a file" in refused("report", adapted, "-o", tmp_path / "file" / "r.html")
    refused("pretrain", "supervised", photos, "-o", tmp_path / "file" / "x", "--epochs", 1)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_without_the_right_to_write_is_refused_before_the_pass(refused, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    assert "no right to write" in refused("adapt", photos, *MODEL, "-o", tmp_path / "run")
    assert not list(Path(os.environ["REGRAFT_CACHE"]).rglob("*.safetensors"))


def test_predictions_in_an_unknown_form(refused, adapted, photos, tmp_path):
    assert ".parquet" in refused("predict", adapted, photos, "-o", tmp_path / "p.xlsx")


# ---------------------------------------------------------------- a torn run folder


@pytest.fixture
def torn(adapted, tmp_path) -> Path:
    shutil.copytree(adapted, tmp_path / "torn")
    return tmp_path / "torn"


@pytest.mark.parametrize("how", ["cut", "empty", "rubbish", "list", "gone"])
@pytest.mark.parametrize("name", ["record.json", "config.json", "model.safetensors"])
def test_a_torn_run_folder_gets_one_line(refused, torn, photos, name, how):
    path = torn / name
    content = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "rubbish": b"\xff\0", "list": b"[1]"}[how])
    before = (torn / "report.html").read_bytes()
    verb = ("report", torn) if name == "record.json" else ("predict", torn, photos)
    assert str(torn) in refused(*verb)
    assert (torn / "report.html").read_bytes() == before


@pytest.mark.parametrize(
    "change", [{"scores": None}, {"schema": 99}, {"costs": 3}, {"findings": [{"code": 1}]}, {"colour": "red"}]
)
def test_a_record_that_is_json_and_no_record_gets_one_line(refused, torn, change):
    value = json.loads((torn / "record.json").read_text())
    (torn / "record.json").write_text(json.dumps({**value, **change}))
    assert "was changed after it was written" in refused("report", torn)
    (torn / "record.json").write_text(json.dumps({**value, **change, "digest": None}))
    refused("report", torn)


# ---------------------------------------------------------------- stopped


def test_ctrl_c_in_process_is_one_line_and_130(refused, photos, monkeypatch):
    from regraft.features.store import Part

    def stopped(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(Part, "write", stopped)
    assert "the same command goes on from there" in refused("adapt", photos, *MODEL, code=130)


def _environment(cache: Path) -> dict[str, str]:
    return {**os.environ, "REGRAFT_CACHE": str(cache), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def _shards(cache: Path) -> dict[str, tuple[int, int]]:
    """Every finished shard with what changes when it is written again."""
    found = {}
    for path in cache.rglob("*.safetensors"):
        if not path.name.startswith("."):
            stat = path.stat()
            found[path.name] = (stat.st_ino, stat.st_mtime_ns)
    return found


def _wait(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.002)


@pytest.fixture
def interruptible():
    """A shell's background job ignores the signal, and so would its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("workers", "asked"), [("0", signal.SIGINT), ("2", signal.SIGINT), ("2", signal.SIGTERM)], ids=str
)
def test_what_is_asked_to_stop_does_so_in_one_line_and_the_same_command_goes_on(photos, tmp_path, workers, asked):
    """By Ctrl-C and as a batch queue is stopped: the signal goes to the workers, too."""
    cache, out = tmp_path / "cache", tmp_path / "run"
    command = [sys.executable, "-m", "regraft", "adapt", str(photos), *MODEL, "-o", str(out), "--json"]
    command += ["--batch-size", "1", "--workers", workers]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen(command, env=_environment(cache), start_new_session=True, **pipes)
    _wait(lambda: len(_shards(cache)) >= 3)
    os.killpg(child.pid, asked)
    shown, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err == "regraft: stopped. What was computed is kept; the same command goes on from there.\n"
    assert json.loads(shown)["status"] == "interrupted"
    assert not out.exists()
    kept = _shards(cache)
    assert 3 <= len(kept) < 48
    done = subprocess.run(command, env=_environment(cache), text=True, capture_output=True, check=True)
    assert json.loads(done.stdout)["cost"]["backbone_passes"] == pytest.approx((48 - len(kept)) / 48)
    now = _shards(cache)
    assert len(now) == 48
    assert all(now[name] == seen for name, seen in kept.items())


_ZYGOTE = """
import json, os, sys
import torch, regraft.graft, regraft.app.report
from regraft.app.cli import run
torch.set_num_threads(1)
for line in sys.stdin:
    child = os.fork()
    if not child:
        os.dup2(2, 1)
        os._exit(run(json.loads(line)))
    print(child, flush=True)
    sys.stdin.readline()
    print(os.waitpid(child, 0)[1], flush=True)
"""


class Commands:
    """Runs the command line in fresh processes that have loaded everything: kills fall on work, not on imports."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._mother = subprocess.Popen(
            [sys.executable, "-c", _ZYGOTE], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def start(self, arguments: list[str]) -> int:
        """Start a command; gives its process id."""
        print(json.dumps(arguments), file=self._mother.stdin, flush=True)
        return int(self._mother.stdout.readline())

    def status(self) -> int:
        """Wait for its end; gives its wait status. Until then its process id is its own."""
        print(file=self._mother.stdin, flush=True)
        return int(self._mother.stdout.readline())

    def close(self) -> None:
        self._mother.stdin.close()
        self._mother.wait(30)


@pytest.mark.slow
def test_kill_9_at_random_moments_costs_at_most_a_batch_and_changes_nothing(photos, tmp_path):
    """20 kills: in the scan, in the pass, in the solve and while saving; then the same command to its end."""
    chance = random.Random(0)
    cache, out = tmp_path / "cache", tmp_path / "runs" / "run"
    arguments = ["adapt", str(photos), *MODEL, "--batch-size", "1", "-o", str(out)]
    clean = Commands(_environment(tmp_path / "fresh"))
    for _ in range(2):
        began = time.monotonic()
        clean.start([*arguments[:-1], str(tmp_path / "undisturbed")])
        assert clean.status() == 0
        warm = time.monotonic() - began  # of the second: all but the pass
    clean.close()

    commands, kills = Commands(_environment(cache)), 0
    moments = ["early"] * 3 + ["pass"] * 11 + ["late"] * 6
    for moment in moments:
        before = _shards(cache)
        process = commands.start(arguments)
        if moment == "pass":
            wanted = min(48, len(before) + chance.randint(1, 4))
            _wait(lambda n=wanted: len(_shards(cache)) >= n)
            time.sleep(chance.random() * 0.03)
        elif moment == "early":
            time.sleep(chance.random() * 0.3)
        else:
            _wait(lambda: len(_shards(cache)) == 48)
            time.sleep(chance.random() * warm)
        os.kill(process, signal.SIGKILL)
        status = commands.status()
        kills += os.WIFSIGNALED(status)  # a late one may have come to its end before
        assert os.WIFSIGNALED(status) or status == 0
        after = _shards(cache)
        assert all(after[name] == seen for name, seen in before.items())  # no finished batch was computed again
        if out.exists():
            assert {path.name for path in out.iterdir()} == RUN_FILES  # whole or absent
    assert kills >= 15
    commands.start(arguments)
    assert commands.status() == 0
    commands.close()
    for name in ("model.safetensors", "config.json"):
        assert (out / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()
    assert not [path for path in cache.rglob("*.safetensors") if path.stat().st_size == 0]


def test_a_decoding_process_that_is_killed_anywhere_is_no_fault(monkeypatch, capfd):
    """torch says it wherever the program happens to be."""

    def killed(*_, **__):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")

    monkeypatch.setattr("regraft.app.cli.app", killed)
    assert run(["predict", "run", "photos"]) == 2
    err = capfd.readouterr().err
    assert err.startswith("regraft: a decoding process was killed, perhaps for want of memory. To mend it: take fewer")
    assert err.count("\n") == 1
