"""Files are whole or absent; hashes are what they say."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regraft import files
from regraft.errors import DataError, StoreError
from regraft.files import atomic_path, canonical_json, digest, file_digest, write_bytes, write_json

FULL_DISK = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_new_file_appears_whole_in_folders_made_on_the_way(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "result.bin"
    with atomic_path(target) as temporary:
        assert temporary.parent == target.parent, "a rename across file systems is not atomic"
        temporary.write_bytes(b"half")
        assert not target.exists()
        temporary.write_bytes(b"whole")
    assert target.read_bytes() == b"whole"
    assert names_in(target.parent) == ["result.bin"]


def test_a_file_may_be_named_after_what_it_holds(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "a.bin", lambda written: f"{file_digest(written)[:8]}.bin") as temporary:
        temporary.write_bytes(b"whole")
    assert names_in(tmp_path) == [f"{hashlib.sha256(b'whole').hexdigest()[:8]}.bin"]


def test_old_file_stands_until_the_end(tmp_path: Path) -> None:
    target = tmp_path / "result.bin"
    target.write_bytes(b"old")
    with atomic_path(target) as temporary:
        temporary.write_bytes(b"new")
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), DataError("no rows")])
def test_failure_in_the_block_leaves_the_old_file_and_no_litter(tmp_path: Path, error: BaseException) -> None:
    target = tmp_path / "result.bin"
    target.write_bytes(b"old")

    def fail() -> None:
        with atomic_path(target) as temporary:
            temporary.write_bytes(b"half")
            raise error

    with pytest.raises(type(error)) as caught:
        fail()
    assert caught.value is error
    assert target.read_bytes() == b"old"
    assert names_in(tmp_path) == ["result.bin"]


@pytest.mark.parametrize("moment", ["write", "fsync", "replace", "open"])
def test_full_disk_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    target = tmp_path / "result.bin"
    target.write_bytes(b"old")

    def refuse(*_: object, **__: object) -> None:
        raise FULL_DISK

    monkeypatch.setattr(Path if moment == "write" else os, "write_bytes" if moment == "write" else moment, refuse)
    with pytest.raises(StoreError, match="No space left on device") as caught:
        write_bytes(target, b"new")
    monkeypatch.undo()
    message = str(caught.value)
    assert str(target) in message
    assert "REGRAFT_CACHE" in message
    assert "\n" not in message
    assert isinstance(caught.value.__cause__, OSError)
    assert target.read_bytes() == b"old"
    assert names_in(tmp_path) == ["result.bin"]


def test_store_error_of_the_block_is_not_wrapped_again(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"^torn shard\.$"), atomic_path(tmp_path / "x"):
        raise StoreError("torn shard")


def test_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(StoreError, match="cannot write"):
        write_bytes(tmp_path / "runs" / "x.json", b"1")
    assert (tmp_path / "runs").read_text() == "a file"


def test_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    if os.geteuid() == 0:  # root may write anywhere: let the system's answer come from here

        def denied(*_: object, **__: object) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr(os, "open", denied)
    else:
        folder.chmod(0o555)
    with pytest.raises(StoreError, match="Permission denied"):
        write_bytes(folder / "x", b"1")
    folder.chmod(0o755)
    assert names_in(folder) == []


def test_process_that_dies_in_the_block_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "result.bin"
    target.write_bytes(b"old")
    script = (
        "import os, sys; from pathlib import Path; from regraft.files import atomic_path\n"
        "with atomic_path(Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_bytes(b'half'); os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(target)], check=False).returncode == 9
    assert target.read_bytes() == b"old"
    left = [name for name in names_in(tmp_path) if name != "result.bin"]
    assert all(name.startswith(".result.bin.") and name.endswith(".part") for name in left)


def test_two_writers_and_a_reader_see_whole_files_only(tmp_path: Path) -> None:
    target = tmp_path / "result.bin"
    contents = [bytes([letter]) * 200_000 for letter in b"ab"]
    write_bytes(target, contents[0])
    errors: list[BaseException] = []

    def write(content: bytes) -> None:
        try:
            for _ in range(25):
                write_bytes(target, content)
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        seen.add(target.read_bytes())
    for writer in writers:
        writer.join()
    assert errors == []
    assert seen <= set(contents)
    assert target.read_bytes() in contents
    assert names_in(tmp_path) == ["result.bin"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_finished_files_are_for_those_whom_the_umask_leaves(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_bytes(tmp_path / "x", b"1")
        with atomic_path(tmp_path / "y") as temporary:  # by a writer that makes a file of its own
            temporary.unlink()
            temporary.touch(0o600)
    finally:
        os.umask(before)
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in "xy"} == {mode}


@given(json_values)
def test_json_comes_back(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    path = tmp_path_factory.mktemp("json") / "value.json"
    write_json(path, value)
    text = path.read_text(encoding="utf-8")
    assert json.loads(text) == value
    assert text.endswith("\n")


def test_names_that_are_no_utf8_come_back_from_json(tmp_path: Path) -> None:
    name = os.fsdecode(b"Gr\xfcn 1.png")
    write_json(tmp_path / "x.json", {"command": name})
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == {"command": name}


@pytest.mark.parametrize("bad", [math.nan, math.inf, [1.0, -math.inf], {"a": {"b": math.nan}}])
def test_json_refuses_what_json_has_not(tmp_path: Path, bad: object) -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(tmp_path / "x.json", bad)
    with pytest.raises(ValueError, match="Out of range float"):
        canonical_json(bad)
    assert names_in(tmp_path) == []


@given(st.dictionaries(st.text(), json_values))
def test_canonical_json_knows_no_order_and_loses_nothing(value: dict[str, object]) -> None:
    backwards = dict(reversed(value.items()))
    assert canonical_json(backwards) == canonical_json(value)
    assert json.loads(canonical_json(value)) == value
    assert canonical_json(value).isascii()


def test_canonical_json_is_this_text() -> None:
    assert canonical_json({"b": [1, 2.5, None], "a": "é"}) == '{"a":"\\u00e9","b":[1,2.5,null]}'


def test_digest_by_hand() -> None:
    expected = hashlib.sha256((2).to_bytes(8, "little") + b"ab" + (1).to_bytes(8, "little") + b"c").hexdigest()
    assert digest("ab", b"c") == expected
    assert digest() == hashlib.sha256().hexdigest()


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_digest_tells_lists_of_parts_apart(first: list[bytes], second: list[bytes]) -> None:
    assert (digest(*first) == digest(*second)) == (first == second)


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_file_digest_over_the_piece_border(tmp_path: Path, size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    (tmp_path / "x").write_bytes(content[:size])
    assert file_digest(tmp_path / "x") == hashlib.sha256(content[:size]).hexdigest()


def test_plain_values_are_what_json_can_hold() -> None:
    value = {
        1: np.array([[1.0, np.nan], [np.inf, 2.0]]), "tensor": torch.tensor([1, 2]), "number": np.float32(0.5),
        "pair": (True, None, "a", -np.inf), "nested": {"x": [np.int64(3)]},
    }  # fmt: skip
    found = files.plain(value)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found == {
        "1": [[1.0, None], [None, 2.0]], "tensor": [1, 2], "number": 0.5, "pair": [True, None, "a", None],
        "nested": {"x": [3]},
    }  # fmt: skip


def test_a_folder_in_a_file_s_place_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"expected a file; got a folder"):
        files.write_bytes(tmp_path, b"x")
