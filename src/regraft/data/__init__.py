"""Data of any form → a :class:`Manifest`: rows with inputs, labels, parts, groups and content hashes."""

from regraft.data.checks import check_target
from regraft.data.columns import with_columns
from regraft.data.dense import image_size
from regraft.data.depth import largest_grey
from regraft.data.forms import check_there
from regraft.data.inspect import checked, drop, inspect, without
from regraft.data.loose import FileTexts, Pictures
from regraft.data.manifest import NO_LABEL, BadRow, Kind, LabelType, Manifest, Target, joined
from regraft.data.rendered import rendered
from regraft.data.scan import scan
from regraft.data.source import (
    Arrays,
    EncodedImages,
    FileImages,
    Joined,
    Masks,
    PixelImages,
    Source,
    Texts,
)
from regraft.data.split import duplicates, fold_count, folds, holdout
from regraft.data.table import DATA_SUFFIXES

__all__ = [
    "DATA_SUFFIXES",
    "NO_LABEL",
    "Arrays",
    "BadRow",
    "EncodedImages",
    "FileImages",
    "FileTexts",
    "Joined",
    "Kind",
    "LabelType",
    "Manifest",
    "Masks",
    "Pictures",
    "PixelImages",
    "Source",
    "Target",
    "Texts",
    "check_target",
    "check_there",
    "checked",
    "drop",
    "duplicates",
    "fold_count",
    "folds",
    "holdout",
    "image_size",
    "inspect",
    "joined",
    "largest_grey",
    "rendered",
    "scan",
    "with_columns",
    "without",
]
