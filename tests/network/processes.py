"""Scripts in processes of their own, forked from one that has imported regraft: a tenth of a second each, not three."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from tempfile import TemporaryDirectory

_SCRIPT = """
import os, sys
for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
    os.dup2(os.open(os.path.join({kept!r}, name), os.O_WRONLY | os.O_CREAT), stream.fileno())
os.chdir({folder!r})
sys.path.insert(0, "")
exec({script!r}, {{"__name__": "__main__"}})
"""
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["regraft.network"])


def in_own_process(script: str, folder: Path) -> str:
    """What it prints, run in the folder, from which it imports; it must end well."""
    with TemporaryDirectory() as kept:
        code = _SCRIPT.format(kept=kept, folder=str(folder), script=script)
        process = _FORKS.Process(target=exec, args=(code, {}))
        process.start()
        process.join()
        out, err = ((Path(kept) / name).read_text() for name in ("out", "err"))
    assert process.exitcode == 0, err
    return out.strip()
