"""What findings may look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from regraft.data import Manifest
from regraft.graft.problem import Problem
from regraft.graft.protocol import Evaluation
from regraft.network import Network, Preprocess

__all__ = ["Context", "Scanned"]


class Scanned(Protocol):
    """What is known before the pass: rows, how many of them carry no label, and what reads the inputs."""

    @property
    def manifest(self) -> Manifest:
        """The rows that have a label."""
        ...

    @property
    def unlabelled(self) -> int:
        """How many have none."""
        ...

    @property
    def preprocess(self) -> Preprocess | None:
        """What reads the inputs, where the backbone is known."""
        ...


@dataclass(frozen=True, eq=False)
class Context:
    """What the checks may look at."""

    manifest: Manifest
    unlabelled: int
    fit: Problem
    evaluation: Evaluation
    figures: Mapping[str, Any] = field(default_factory=dict)
    network: Network | None = None

    @property
    def preprocess(self) -> Preprocess | None:
        """What reads the inputs, where the backbone is known."""
        return None if self.network is None else self.network.preprocess

    @property
    def scored(self) -> np.ndarray:
        """(N, C) targets of the rows that score, NaN where one is missing."""
        response = self.evaluation.main.response
        values: np.ndarray = response.values.numpy()
        return values if response.mask is None else np.where(response.mask.numpy(), values, np.nan)
