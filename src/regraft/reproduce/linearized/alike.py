"""Row ntk-fig5: Jacobians of LeNets trained on like and on unlike pictures (Fig. 5).

MNIST1 and MNIST2 are halves of the pack's mnist, FMNIST as many rows of fashion_mnist; the last layer of its networks
is refitted on MNIST1, so that classes have the same meaning. Every Jacobian is that of all weights on 500 test pictures
of mnist: sim(A, B) = ‖J_A J_Bᵀ‖_F² / (‖J_A J_Aᵀ‖_F ‖J_B J_Bᵀ‖_F) (:func:`regraft.diagnose.jacobian_similarity`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from scipy.stats import mannwhitneyu
from torch import Tensor
from torch.nn import functional

from regraft.data import scan
from regraft.diagnose import jacobian_similarities
from regraft.features import Tangent, ntk
from regraft.linear import Design
from regraft.reproduce.arms import seeds_gate
from regraft.reproduce.linearized.networks import Descent, lenet, refitted, trained
from regraft.reproduce.outcome import Outcome
from regraft.reproduce.packs import DATA
from regraft.reproduce.pieces import Measured
from regraft.reproduce.result import Result, relabel
from regraft.reproduce.row import Context
from regraft.reproduce.words import bound

__all__ = ["MEASURED", "area", "pictures_of", "similarities"]

IMAGES, SPECTRUM = 500, 50
TRAINING = Descent(epochs=10, batch=64, rate=0.01, loss=functional.cross_entropy, anneal=True)
SOURCES = ("M1", "M2", "F")
PAIRS = (("M1", "M2"), ("M1", "F"), ("M2", "F"))


@lru_cache(maxsize=4)
def pictures_of(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Grey pictures (N, 1, 28, 28) from 0 to 1 and their classes (N,)."""
    manifest = scan(folder).part(part)
    seen = np.stack([np.asarray(manifest.inputs.read(row)) for row in range(len(manifest))])
    grey = seen if seen.ndim == 3 else seen[..., 0]
    return torch.from_numpy(grey).float()[:, None] / 255, torch.from_numpy(np.asarray(manifest.labels.values))


def similarities(designs: Mapping[str, Sequence[Design]]) -> dict[str, list[list[float]]]:
    """Of every network of one source with every one of another, by pair of sources: the first's by the second's."""
    table = jacobian_similarities([each for group in designs.values() for each in group])
    owner = [name for name, group in designs.items() for _ in group]
    at = {name: torch.tensor([own == name for own in owner]) for name in designs}
    return {f"{a}-{b}": table[at[a]][:, at[b]].tolist() for a, b in PAIRS}


def run(context: Context) -> Result:
    """A network a source and seed."""
    context.mini_only()
    mnist, fashion = (context.data / DATA[name] for name in ("mnist", "fashion_mnist"))
    digits, half = pictures_of(mnist, "train"), len(pictures_of(mnist, "train")[0]) // 2
    clothes, images = pictures_of(fashion, "train"), pictures_of(mnist, "test")
    rows = {
        "M1": (digits[0][:half], digits[1][:half]),
        "M2": (digits[0][half:], digits[1][half:]),
        "F": (clothes[0][:half], clothes[1][:half]),
    }
    designs: dict[str, list[Tangent]] = {name: [] for name in SOURCES}
    accuracy: dict[str, list[float]] = {name: [] for name in SOURCES}
    for number, seed in enumerate(context.seeds):
        for offset, name in enumerate(SOURCES):
            network = trained(lenet(10, 3 * seed + offset), *rows[name], TRAINING, seed)
            if name == "F":
                network = refitted(network, rows["M1"], TRAINING, seed)
            with torch.no_grad():
                right = (network.forward(images[0]).argmax(1) == images[1]).double().mean()
            accuracy[name].append(100 * float(right))
            designs[name].append(Tangent(network, "*", images[0][:IMAGES], batch_size=IMAGES))
        if context.progress:
            context.progress(number + 1, len(context.seeds))
    found = similarities(designs)
    arms = {name: {"all": values} for name, values in found.items()}
    notes = {"accuracy on mnist's test rows": accuracy, "spectra": _spectra(designs), "images": IMAGES}
    return Result(arms, {}, context.seeds, seeds_gate(context.seeds), notes)


def _spectra(designs: Mapping[str, Sequence[Design]]) -> dict[str, list[float]]:
    """The largest eigenvalues of J Jᵀ on the first pictures, over their sum; of the first network of each source."""
    shown = {}
    for name, group in designs.items():
        values = torch.linalg.eigvalsh(ntk(group[0].take(torch.arange(SPECTRUM))).double()).flip(0)
        shown[name] = (values[:20] / values.sum()).tolist()
    return shown


def _likes(result: Result) -> tuple[np.ndarray, np.ndarray]:
    like = result.one("M1-M2").ravel()
    unlike = np.concatenate([result.one(name).ravel() for name in ("M1-F", "M2-F")])
    return like, unlike


def area(like: np.ndarray, unlike: np.ndarray) -> float:
    """The share of (like, unlike) pairs in which the like one is larger, ties counting half."""
    return float(mannwhitneyu(like, unlike).statistic) / (like.size * unlike.size)


def _apart(result: Result) -> Outcome:
    return bound(np.array([area(*_likes(result))]), at_least=0.95, what="AUC of (M1, M2) over (M, F)")


def _multiple(result: Result) -> Outcome:
    like, unlike = _likes(result)
    ratio = np.median(like) / np.median(unlike)
    return bound(np.array([ratio]), at_least=3, what="median similarity of (M1, M2) over that of (M, F)")


_MIXED = relabel({f"{a}-{b}": "M1-M2" for a, b in itertools.islice(PAIRS, 1, None)})

MEASURED: dict[str, Measured] = {
    "ntk-fig5": Measured(run, {"a": _apart, "b": _multiple}, {"a": _MIXED, "b": _MIXED}),
}
