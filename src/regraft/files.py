"""Files that are either whole or absent: atomic writes and content hashes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from regraft.errors import StoreError

__all__ = [
    "atomic_path",
    "canonical_json",
    "digest",
    "file_digest",
    "intact",
    "plain",
    "read_json",
    "sealed",
    "write_bytes",
    "write_json",
]


@contextlib.contextmanager
def atomic_path(path: Path, name: Callable[[Path], str] | None = None) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success flush it to disk and rename it onto ``path``.

    A reader sees the old file or the whole new one, never a part, also after a crash. On any error
    the temporary file is removed.

    Args:
        path: of the file.
        name: its name, of the written file, where that is known only then; otherwise that of ``path``.

    Raises:
        StoreError: the folder cannot be written (read-only, full disk).
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)  # less what the user's umask takes off
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        os.close(handle)
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        yield temporary
        os.chmod(temporary, mode)  # some writers make the file anew, a private one
        with open(temporary, "rb+") as written:  # Windows flushes no file that is open to be read
            os.fsync(written.fileno())
        os.replace(temporary, path if name is None else path.with_name(name(temporary)))
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            raise _cannot_write(path, error) from error
        raise


def _cannot_write(path: Path, error: OSError) -> StoreError:
    if isinstance(error, IsADirectoryError) or path.is_dir():
        return StoreError(f"cannot write {path}", expected="a file", got="a folder", do="name a file in it")
    return StoreError(
        f"cannot write {path}",
        got=error.strerror or str(error),
        do="free some space or choose another folder (--output for runs, REGRAFT_CACHE for the cache)",
    )


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON to ``path`` atomically; NaN is refused, as JSON has none.

    Names of files that are no UTF-8, as in a command, are escaped, so that they are read as they were.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_bytes(path, (text + "\n").encode("utf-8", "backslashreplace"))


def read_json(path: Path) -> Any | None:
    """The value in a JSON file, or ``None`` where the file is absent or torn."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, UnicodeDecodeError):
        return None


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with the digest of the rest of it under ``digest``."""
    return {**value, "digest": digest(canonical_json(value))}


def intact(value: Mapping[str, Any]) -> bool:
    """Whether an object is as :func:`sealed` made it; one without a digest, of an earlier version, counts as intact."""
    promised = value.get("digest")
    try:
        return promised in (None, digest(canonical_json({k: v for k, v in value.items() if k != "digest"})))
    except ValueError:  # a number that JSON does not have, such as Infinity
        return False


def plain(value: Any) -> Any:
    """``value`` as JSON has it: arrays and tuples as lists, keys as text, ``None`` for what is no finite number."""
    if hasattr(value, "tolist"):  # arrays and their numbers
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def canonical_json(value: Any) -> str:
    """The one JSON text of ``value``: sorted keys, no spaces. The input of every fingerprint."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(*parts: str | bytes) -> str:
    """SHA-256 (hex) over length-prefixed parts, so that no two lists of parts collide by joining."""
    sha = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        sha.update(len(raw).to_bytes(8, "little"))
        sha.update(raw)
    return sha.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes, read in pieces."""
    sha = hashlib.sha256()
    with open(path, "rb") as stream:
        while piece := stream.read(1 << 20):
            sha.update(piece)
    return sha.hexdigest()
