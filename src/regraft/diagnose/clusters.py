"""Groups of runs by the distances of their weights: how well they are apart, and the paper's picture of them.

Not imported by ``regraft.diagnose`` itself, for scikit-learn's manifold package takes a while to load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_samples
from torch import Tensor

from regraft.diagnose.distances import check_distances, mds
from regraft.errors import DataError

__all__ = ["Silhouette", "silhouette", "tsne"]


@dataclass(frozen=True)
class Silhouette:
    """How well groups are apart.

    Attributes:
        values: of each run, in [−1, 1]: ``(b − a) / max(a, b)``, a its mean distance from its own group, b that from
            the nearest other; 0 for a run alone in its group.
        groups: the mean of each group, by name, in order of appearance.
    """

    values: tuple[float, ...]
    groups: dict[str, float]

    @property
    def mean(self) -> float:
        """The mean over runs."""
        return sum(self.values) / len(self.values)


def silhouette(distances: Tensor, groups: Sequence[str]) -> Silhouette:
    """The silhouette (Rousseeuw, 1987) of named groups of runs, by the distances themselves and not by a picture.

    Args:
        distances: ``(M, M)``, see :func:`regraft.diagnose.weight_distances`.
        groups: M names.

    Raises:
        DataError: no distances, names that do not fit, fewer than two groups or a group for every run.
    """
    check_distances(distances)
    names = list(dict.fromkeys(groups))
    if len(groups) != len(distances) or not 2 <= len(names) < len(groups):
        raise DataError(
            "groups of runs",
            expected=f"{len(distances)} names, of at least two groups and fewer groups than runs",
            got=f"{len(groups)} names of {len(names)} groups",
        )
    table = distances.double().clone().fill_diagonal_(0.0).cpu().numpy()
    values = silhouette_samples(table, np.asarray(groups), metric="precomputed")
    means = {name: float(values[np.asarray(groups) == name].mean()) for name in names}
    return Silhouette(tuple(values.tolist()), means)


def tsne(distances: Tensor, *, perplexity: float | None = None) -> Tensor:
    """A plane in which near runs stay near, ``(M, 2)`` float64: van der Maaten & Hinton (2008), by scikit-learn, exact.

    It begins at :func:`regraft.diagnose.mds`, so that equal distances give an equal picture. Only who is next to whom
    means anything in it: measure groups by :func:`silhouette`.

    Args:
        distances: ``(M, M)``.
        perplexity: about how many neighbours a run has; by default 30, or a third of the others where they are fewer.

    Raises:
        DataError: no distances, fewer than four runs, or a perplexity of M or more.
    """
    check_distances(distances)
    size = len(distances)
    chosen = min(30.0, (size - 1) / 3) if perplexity is None else perplexity
    if size < 4 or not 0 < chosen < size:
        raise DataError(
            "a picture by t-SNE",
            expected="at least four runs, and a perplexity above 0 and below their number",
            got=f"{size} runs, perplexity {chosen:g}",
        )
    begin = mds(distances).points
    scale = float(begin[:, 0].std())
    if scale == 0:
        raise DataError("a picture by t-SNE", expected="runs that differ", got=f"{size} equal ones")
    model = TSNE(metric="precomputed", init=(begin * (1e-4 / scale)).float().numpy(), perplexity=chosen, method="exact")
    table = distances.double().clone().fill_diagonal_(0.0).cpu().numpy()
    return torch.from_numpy(model.fit_transform(table)).double()
