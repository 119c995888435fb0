"""What is wrong with the rows and their labels, as far as they show it."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from regraft.data import Target
from regraft.data.loose import TEXT_SUFFIX, FileTexts
from regraft.data.pixels import IMAGE_SUFFIXES
from regraft.data.rows import own_group
from regraft.data.table import LABELS
from regraft.graft.evidence.context import Context, Scanned
from regraft.graft.row_findings import copies, few_levels, left_out
from regraft.record import Finding, counted
from regraft.wording import some

__all__ = ["DATA_CHECKS", "ROW_CHECKS"]

_RARE = 5
_MISSING = ("nan", "na", "n/a", "null", "unlabeled", "unlabelled")
_IMBALANCE = 10.0
_UNLABELLED = {  # by whether the labels that apply are listed
    True: "Where no label applies, write so: an empty list, or | alone in a cell.",
    False: "Where no label applies, write so: 0 for each.",
}


def _repeated(context: Scanned) -> Iterator[Finding]:
    yield from copies(context.preprocess, context.manifest, " Groups of your own go by --group.")


def _few_levels(context: Scanned) -> Iterator[Finding]:
    yield from few_levels(context.manifest)


def _left_out(context: Scanned) -> Iterator[Finding]:
    yield from left_out(context.manifest)
    if empty := context.manifest.empty:
        text = isinstance(context.manifest.inputs, FileTexts)
        yield Finding(
            "empty-folders",
            f"{counted(len(empty), 'folder', 'folders')} of a class or a part {'holds' if len(empty) == 1 else 'hold'} "
            f"no {'text' if text else 'image'}: {some(empty)}.",
            "warning",
            len(empty),
            "folders",
            detail=f"Looked for: {TEXT_SUFFIX if text else ', '.join(IMAGE_SUFFIXES)}.",
            advice="Add the files if some are missing (nothing was learnt of such a class), or remove the folder.",
        )
    if unread := context.manifest.roles.get("unread"):
        roles = {role: names for role, names in context.manifest.roles.items() if names and role != "unread"}
        said = [f"{some(names)} as {role}" for role, names in roles.items()]
        yield Finding(
            "columns-unread",
            f"{counted(len(unread), 'column was', 'columns were')} not read: {some(unread, 8)}.",
            "info",
            len(unread),
            "columns",
            detail=f"Read: {'; '.join(said)}.",
            advice="Name others with --input, --label or --group if these are not the ones.",
        )
    if context.unlabelled:
        target = context.manifest.target
        yield Finding(
            "unlabelled-rows",
            f"{counted(context.unlabelled, 'row carries no label and was', 'rows carry no label and were')} left out.",
            "warning",
            context.unlabelled,
            "rows",
            advice=_UNLABELLED[target.listed] if target is not None and target.kind == "multilabel" else "",
        )


def _blank_cells(context: Scanned) -> Iterator[Finding]:
    """Rows whose cell of the part or of the group is blank."""
    rows, partless = context.manifest, set(context.manifest.partless)
    if found := [name for name, part in zip(rows.ids, rows.split) if part == "train" and name in partless]:
        verb = "names no part and was" if len(found) == 1 else "name no part and were"
        yield Finding(
            "rows-without-part",
            f"{counted(len(found), 'row')} {verb} taken for training: {some(found)}.",
            "info",
            len(found),
            "rows",
            advice="Name their part in the split column if they belong to another.",
        )
    if found := [name for name, group in zip(rows.ids, rows.groups or ()) if group == own_group(name)]:
        verb = "names no group, and is" if len(found) == 1 else "name no group, and each is"
        yield Finding(
            "rows-without-group",
            f"{counted(len(found), 'row')} {verb} a group of its own: {some(found)}.",
            "info",
            len(found),
            "rows",
            advice="Name the group of those that belong with others.",
        )


def _labels_read(context: Scanned) -> Iterator[Finding]:
    """Columns of numbers that are named like labels, beside the one that was named: they are inputs."""
    read = context.manifest.roles.get("input", ())
    if found := [name for name in read if name.lower() in LABELS]:
        yield Finding(
            "labels-among-inputs",
            f"{counted(len(found), 'input has', 'inputs have')} the name of a label: {some(found)}.",
            "warning",
            len(found),
            "columns",
            detail="What gives the label away makes a score that later rows will not have.",
            advice="Leave it out of the table if it is not known of new rows.",
        )


def _shortened(context: Scanned) -> Iterator[Finding]:
    """Texts whose ends the backbone does not see."""
    if context.preprocess is None or not context.preprocess.ragged:
        return
    inputs = context.manifest.inputs
    rows = context.preprocess.shortened([inputs.read(row) for row in range(len(inputs))])
    if rows:
        names, verb = some([context.manifest.ids[row] for row in rows]), "is" if len(rows) == 1 else "are"
        yield Finding(
            "inputs-shortened",
            f"{len(rows)} of {counted(len(inputs), 'input')} {verb} longer than the backbone reads; what is beyond was "
            "cut off.",
            "warning" if 10 * len(rows) > len(inputs) else "info",
            len(rows),
            "inputs",
            detail=f"The limit is {context.preprocess.limit}. Such as {names}.",
            advice="Use a backbone that reads more, or bring what matters to the front.",
        )


def _classes(context: Context) -> Iterator[Finding]:
    target = context.fit.task.target
    if target.kind == "segmentation":
        yield from _in_few_images(target)
    if target.kind not in ("binary", "multiclass", "multilabel"):
        return
    several = target.kind == "multilabel"
    if several:
        counts = np.nansum(target.values, axis=0).astype(np.int64)
    else:
        counts = np.bincount(target.values, minlength=len(target.classes))
    least = 1 if several else 0  # of a label that no row has another finding speaks
    few = [name for name, n in zip(target.classes, counts) if least <= n < _RARE]
    if few:
        what = counted(len(few), "label") if several else counted(len(few), "class", "classes")
        yield Finding(
            "few-rows-per-class",
            f"{what} {'applies' if len(few) == 1 else 'apply'} to fewer than {_RARE} rows."
            if several
            else f"{what} {'has' if len(few) == 1 else 'have'} fewer than {_RARE} labelled rows.",
            "advice",
            float(counts[counts >= least].min()),
            "rows",
            detail="Fewest: " + some(few, 8),
            advice="A few more rows of them will help more than any choice of method.",
        )
    if several:
        return
    ratio = counts.max() / max(counts.min(), 1)
    task = context.fit.task
    if ratio > _IMBALANCE and task.metric == "accuracy":
        weights = ", or weight the classes with --class-weight balanced"
        if task.class_weight or not context.fit.weighs_classes:
            weights = ""
        yield Finding(
            "class-imbalance",
            f"The largest class has {ratio:.0f} times the rows of the smallest.",
            "advice",
            float(ratio),
            "×",
            advice=f"Judge by --metric balanced-accuracy{weights}.",
        )


def _in_few_images(target: Target) -> Iterator[Finding]:
    """Classes of masks that few images hold, however many pixels of them; of those that none holds another finding
    speaks."""
    images = (target.values > 0).sum(0)
    few = [name for name, n in zip(target.classes, images) if 0 < n < _RARE]
    if few:
        yield Finding(
            "few-rows-per-class",
            f"{counted(len(few), 'class', 'classes')} {'is' if len(few) == 1 else 'are'} in fewer than {_RARE} images "
            "that were learnt from.",
            "advice",
            float(images[images > 0].min()),
            "images",
            detail="Fewest: " + some(few, 8),
            advice="A few more images that hold them will help more than any choice of method.",
        )


def _names(context: Scanned) -> Iterator[Finding]:
    """Classes whose names are one but for the way they are written, or say that there is no label."""
    target = context.manifest.labels
    if target.kind == "regression" or target.label_type != "str":
        return
    ways = defaultdict[str, list[str]](list)
    for name in target.classes:
        # some systems write é as one character, others as two
        ways[re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFKC", name).casefold())].append(name)
    if alike := [names for names in ways.values() if len(names) > 1]:
        yield Finding(
            "classes-alike",
            f"{counted(len(alike), 'class name is', 'class names are')} written in more than one way.",
            "warning",
            len(alike),
            "names",
            detail=some([" = ".join(map(repr, names)) for names in alike], separator="; "),
            advice="Write one name for one class, or the head learns to tell spellings apart.",
        )
    if missing := [name for name in target.classes if name.casefold() in _MISSING]:
        yield Finding(
            "class-reads-as-missing",
            f"The class {missing[0]!r} reads like a label that is not known.",
            "warning",
            len(missing),
            "classes",
            advice="Leave the cell empty where there is no label, and such rows out with --skip-bad: no class is made "
            "of them.",
        )


def _one_valued(context: Context) -> Iterator[Finding]:
    """Labels that no row has, or that all rows have, those that score among them: nothing can be learnt of them."""
    target = context.fit.task.target
    if target.kind != "multilabel":
        return
    values = np.concatenate([target.values, context.scored])
    with_it, without = np.nansum(values, axis=0), np.nansum(1 - values, axis=0)
    empty = [name for name, there, others in zip(target.classes, with_it, without) if not (there and others)]
    if empty:
        yield Finding(
            "labels-one-valued",
            f"{counted(len(empty), 'label')} of {len(target.classes)} {'is' if len(empty) == 1 else 'are'} the same in "
            "all labelled rows.",
            "warning",
            len(empty),
            "labels",
            detail=some(empty, 8),
            advice="Nothing can be learnt or measured of them: leave them out, or bring rows that differ.",
        )


def _frames(context: Context) -> Iterator[Finding]:
    """Images with masks are often frames of a video, of which the interval knows nothing without groups."""
    if context.fit.task.kind == "segmentation" and context.fit.task.groups is None:
        yield Finding(
            "images-taken-for-independent",
            "The interval and the folds take every image for independent of the others.",
            "info",
            detail="Frames of one video are alike: of such images the interval is too narrow, and folds are too kind.",
            advice="If these are frames, name the column of their videos with --group.",
        )


ROW_CHECKS = (_repeated, _left_out, _blank_cells, _labels_read, _few_levels, _shortened, _names)  # of rows but read
DATA_CHECKS = (*ROW_CHECKS, _classes, _one_valued, _frames)
