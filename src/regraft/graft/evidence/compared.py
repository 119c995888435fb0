"""Saved runs side by side: how far the features that they chose overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regraft.errors import ArtifactError
from regraft.graft.adapted.artifact import kept_columns
from regraft.heads import overlap
from regraft.record import Record

__all__ = ["Chosen", "chosen", "layer_overlap", "overlaps"]


@dataclass(frozen=True, eq=False)
class Chosen:
    """What a saved Head2Toe run chose.

    Attributes:
        name: of its folder.
        columns: block → kept indices.
        features: block → features there were at the chosen target size.
        size: the target size, and the scaling where several were tried.
        fingerprint: of the backbone.
        layers: tap → share of the kept features, whatever it was pooled to.
        depth: mean relative depth of the kept features.
        tuned: whether they are those of a network that the run itself trained.
    """

    name: str
    columns: Mapping[str, Tensor]
    features: Mapping[str, int]
    size: str
    fingerprint: str
    layers: Mapping[str, float]
    depth: float
    tuned: bool = False

    @property
    def kept(self) -> int:
        """How many."""
        return sum(map(len, self.columns.values()))

    @property
    def width(self) -> int:
        """Of how many."""
        return sum(self.features.values())


def chosen(folder: str | Path, name: str = "") -> Chosen | None:
    """The choice of a saved run, read from its record and its artifact without the backbone.

    Args:
        folder: of the run.
        name: what it is called; as its folder where empty.

    Returns:
        ``None`` for a run that chose no features.

    Raises:
        MissingPathError, ArtifactError: there is no record in ``folder``, or of a choice no whole artifact.
    """
    folder = Path(folder)
    record = Record.load(folder / "record.json")
    figure = record.figures.get("selection")
    if figure is None:  # a diagnosis, say, which has no artifact either
        return None
    if (columns := kept_columns(folder)) is None:
        return None
    try:
        shares: dict[str, float] = {}
        for layer in figure["layers"]:
            tap = str(layer["name"]).partition("[")[0]
            shares[tap] = shares.get(tap, 0.0) + layer["kept"] / figure["kept"]
        return Chosen(
            name or folder.resolve().name,
            columns,
            {str(layer["name"]): int(layer["features"]) for layer in figure["layers"]},
            str(figure["size"]),
            record.model["fingerprint"],
            shares,
            float(figure["depth"]),
            bool(figure.get("tuned", False)),
        )
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise ArtifactError(
            f"the record in {folder} does not say what was chosen",
            got=f"{type(error).__name__}: {error}",
            do="run `regraft adapt` again",
        ) from error


def layer_overlap(first: Chosen, second: Chosen) -> float:
    """Σ_l min(p_l, q_l) of the shares p, q of the kept features that the taps give: 1 for the same shares, 0 where
    no tap serves both. Unlike features, it compares different target sizes, too."""
    return sum(min(share, second.layers.get(tap, 0.0)) for tap, share in first.layers.items())


def _alike(one: Chosen, other: Chosen) -> bool:
    """Whether features of one name are the same in two runs of one backbone."""
    return one.features == other.features and (one is other or not (one.tuned or other.tuned))


def overlaps(runs: Sequence[Chosen]) -> dict[str, Any]:
    """Every run beside every other.

    Returns:
        ``features``, the matrix of :attr:`regraft.heads.Overlap.overlap`; ``chance``, that of random choices;
        ``layers``, the matrix of :func:`layer_overlap`. An entry is ``None`` where features are not the same
        ones (another backbone, other blocks, one that either run trained: the scaling makes no other features), or
        layers (another backbone).
    """
    features: list[list[float | None]] = []
    chance: list[list[float | None]] = []
    layers: list[list[float | None]] = []
    for one in runs:
        same = [one.fingerprint == other.fingerprint for other in runs]
        found = [
            overlap(one.columns, other.columns, one.width) if here and _alike(one, other) else None
            for here, other in zip(same, runs)
        ]
        features.append([None if pair is None else pair.overlap for pair in found])
        chance.append([None if pair is None else pair.chance for pair in found])
        layers.append([layer_overlap(one, other) if here else None for here, other in zip(same, runs)])
    return {"features": features, "chance": chance, "layers": layers}
