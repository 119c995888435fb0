"""One pass of the backbone: plan what is needed, sweep once, keep it in the store."""

from regraft.features.batching import by_length, each_decoded, gathered, in_order
from regraft.features.cache import cache_root, entries, prune, verify
from regraft.features.finite import lost
from regraft.features.maps import grid_of, map_plan, maps, positions, upsampled, whole_images
from regraft.features.plan import Block, Plan, Taps, by_size, plan
from regraft.features.pooling import Pooling, choose_pooling
from regraft.features.store import DTYPES, Store
from regraft.features.sweep import Passing, Progress, Stopwatch, find, left, pool_batch, sweep
from regraft.features.tangent import (
    NTK,
    Form,
    Tangent,
    form_error,
    ntk,
    ntk_adjoints,
    ntk_project,
    ntk_within_rows,
)

__all__ = [
    "DTYPES",
    "NTK",
    "Block",
    "Form",
    "Passing",
    "Plan",
    "Pooling",
    "Progress",
    "Stopwatch",
    "Store",
    "Tangent",
    "Taps",
    "by_length",
    "by_size",
    "cache_root",
    "choose_pooling",
    "each_decoded",
    "entries",
    "find",
    "form_error",
    "gathered",
    "grid_of",
    "in_order",
    "left",
    "lost",
    "map_plan",
    "maps",
    "ntk",
    "ntk_adjoints",
    "ntk_project",
    "ntk_within_rows",
    "plan",
    "pool_batch",
    "positions",
    "prune",
    "sweep",
    "upsampled",
    "verify",
    "whole_images",
]
