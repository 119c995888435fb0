"""Where fine-tuning begins: a network of the page, or its twin with random weights, under a new head on fixed rows.

Rows, heads and random weights are drawn by the seed, so that a network and its twin see the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from regraft.data import Manifest
from regraft.diagnose import Objective
from regraft.diagnose.objective import Statistics
from regraft.network import Network, reinitialised, settled
from regraft.network.seeding import seeded
from regraft.reproduce.arms import BACKBONES, Bench, Place
from regraft.reproduce.row import Context
from regraft.reproduce.transferability.sources import target

__all__ = ["beginning", "bench_of_twins", "drawn", "random_weights", "twin"]


def twin(name: str) -> str:
    """What the network with random weights in the place of ``name`` is called."""
    return f"random {name}"


def random_weights(name: str) -> Callable[[Path, Path, int], Network]:
    """Loads a network of the page with random weights, drawn by the seed."""
    return lambda data, cache, seed: reinitialised(BACKBONES[name].load(data, cache, seed), seed)


def bench_of_twins(context: Context, names: Sequence[str], tasks: Sequence[str]) -> Bench:
    """The bench of networks of the page, each with its :func:`twin`."""
    backbones = {name: BACKBONES[name] for name in names} | {
        twin(name): replace(BACKBONES[name], load=random_weights(name)) for name in names
    }
    return Bench(context, tasks=tuple(tasks), backbones=backbones, rows=target)


def drawn(bench: Bench, place: Place, count: int) -> tuple[Manifest, Tensor]:
    """So many training rows, drawn by the seed, and their codes.

    Raises:
        DataError: no labels.
    """
    whole = bench.rows(place.task, place.seed).part("train")
    chosen = np.sort(np.random.default_rng(place.seed).permutation(len(whole))[:count])
    return whole.take(chosen), torch.from_numpy(np.asarray(whole.labels.values)[chosen])


def beginning(
    bench: Bench, place: Place, count: int, batch_size: int, batchnorm: Statistics = "running", settle: bool = False
) -> Objective:
    """The loss of the network under a linear head as ``nn.Linear`` draws it.

    Args:
        bench, place: network, task and seed.
        count: of rows.
        batch_size: rows at a time.
        batchnorm: see :class:`regraft.diagnose.Objective`.
        settle: whether the statistics of BatchNorm become those of the rows, as random weights need.
    """
    rows, codes = drawn(bench, place, count)
    network = bench.network(place.network, place.seed)
    width = next(site.shape[0] for site in network.sites if site.name == "embedding")
    classes = rows.target.classes if rows.target else ()
    with seeded(place.seed):
        head = nn.Linear(width, len(classes))
    ready = network.with_head(head.weight.detach(), head.bias.detach(), classes)
    found = Objective(ready, rows, codes, batch_size=batch_size, batchnorm=batchnorm)
    if not settle:
        return found
    batches = [batch for _, _, batch in found.batches()]
    ready = settled(ready, [batch.clone() for batch in batches])
    return Objective(ready, batches, codes, batch_size=batch_size, batchnorm=batchnorm)
