"""The folder that a pretraining fills: what of it is a pretraining's, and may be gone on with, replaced or removed."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

from regraft.errors import RecipeError
from regraft.graft.loop.train import BEST, CHECKPOINT
from regraft.network.loaders.bundled import config_of, is_folder, load_folder
from regraft.record import Record
from regraft.record.folder import record_in
from regraft.wording import some

__all__ = ["TRAINING", "check_free", "check_kept", "clear", "epoch_folder", "finished", "unfinished"]

TRAINING, CHECKPOINTS = "training", "checkpoints"
_WRITTEN = ("README.md", "config.json", "model.safetensors")
_EPOCH = re.compile(r"epoch-[0-9]{3,}")


def unfinished(output: str | Path) -> tuple[str, ...]:
    """Names of what a pretraining that was stopped may have left in the folder; none where none was begun there."""
    output = Path(output)
    if _begun(output) or is_folder(output):
        return (*_WRITTEN, CHECKPOINTS, TRAINING)
    training = output / TRAINING
    return (TRAINING,) if training.is_dir() and not any(training.iterdir()) else ()  # the disk was full at once


def check_free(output: Path) -> None:
    """Refuse a folder in which a pretraining would replace what is none's.

    Raises:
        RecipeError: such files are there.
    """
    if record_in(output) is not None or _begun(output) or is_folder(output):
        return
    if taken := [name for name in _WRITTEN if (output / name).exists()]:
        raise RecipeError(
            f"{output} holds files that are no pretraining's", expected="a new folder, or one with a pretraining",
            got=some(taken), do="give another output folder",
        )  # fmt: skip


def clear(output: Path) -> None:
    """Remove the state of a training that has ended."""
    for name in (CHECKPOINT, BEST):
        (output / TRAINING / name).unlink(missing_ok=True)
    _remove_if_empty(output / TRAINING)


def _begun(output: Path) -> bool:
    """Whether a training's state lies there, and nothing else beside it."""
    folder = output / TRAINING
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
    return bool(names) and all(name in (CHECKPOINT, BEST) or name.startswith(".") for name in names)


def _kept(output: Path) -> list[Path]:
    """The backbones of epochs."""
    return [path for path in (output / CHECKPOINTS).glob("*") if _EPOCH.fullmatch(path.name) and is_folder(path)]


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not there, or something else is in it
        folder.rmdir()


def finished(output: Path, key: str, resume: bool, keep_checkpoints: bool) -> Record | None:
    """The Record of the same run, if it was finished; what is in the way is removed or refused.

    Raises:
        RecipeError: the folder holds a finished backbone of other settings or rows, or a run of another verb.
    """
    done = record_in(output)  # none where it is torn: then the same bytes are made again
    if done is not None and done.verb != "pretrain":
        raise RecipeError(
            f"{output} holds another run", expected="a new folder", got=f"a run of {done.verb}",
            do="give another output folder",
        )  # fmt: skip
    if not resume or not is_folder(output):
        (output / "record.json").unlink(missing_ok=True)
        if not resume:
            for folder in _kept(output):
                shutil.rmtree(folder)
            _remove_if_empty(output / CHECKPOINTS)
        return None
    if config_of(output).get("provenance", {}).get("key") != key:
        raise RecipeError(
            f"{output} holds another backbone", expected="a new folder, or the same settings and rows",
            do="give another output folder, or train anew (--restart; in Python resume=False)",
        )  # fmt: skip
    if done is None or (keep_checkpoints and _not_kept(output, len(done.figures["history"]))):
        return None
    load_folder(output)  # a changed file is refused, not returned
    clear(output)  # where it was killed before it could
    return done


def epoch_folder(output: Path, epoch: int) -> Path:
    """Where the backbone of an epoch is kept."""
    return output / CHECKPOINTS / f"epoch-{epoch:03d}"


def _not_kept(output: Path, epochs: int) -> list[int]:
    """Those from 0 on whose backbone is not there."""
    return [epoch for epoch in range(epochs + 1) if not is_folder(epoch_folder(output, epoch))]


def check_kept(output: Path, epochs: int) -> None:
    """Refuse to go on behind epochs that were not kept: their weights are gone.

    Raises:
        RecipeError: one is not there.
    """
    if lacking := _not_kept(output, epochs):
        raise RecipeError(
            f"the training in {output} was begun without keeping checkpoints",
            expected=f"a backbone of each epoch from 0 to {epochs}", got=f"none of {some(lacking)}",
            do="leave --keep-checkpoints out, or train anew (--restart; in Python resume=False)",
        )  # fmt: skip
