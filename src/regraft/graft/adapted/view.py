"""From un-scaled blocks of features to the design that a head reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from regraft.heads import kept_design
from regraft.linear import FeatureDesign, Matrix, SignedRoot, UnitRows

__all__ = ["Scaling", "View"]

Scaling = Literal["none", "unit", "root", "root-unit"]
_STEPS: dict[str, tuple[Callable[[Matrix], Matrix], ...]] = {
    "none": (),
    "unit": (UnitRows,),
    "root": (SignedRoot,),
    "root-unit": (SignedRoot, UnitRows),
}


@dataclass(frozen=True, eq=False)
class View:
    """How blocks become ``Φ = [X_1 | X_2 | …] ⊗ I_C``.

    Attributes:
        scaling: of every block alike but the unscaled ones: ``none``; ``unit``, rows of unit norm; ``root``, signed
            square roots; ``root-unit``, both, one after the other.
        columns: block → kept columns (Head2Toe); blocks that are not named are left out. ``None`` keeps all.
        renormalised: rows are brought to unit norm again over the kept columns of each block that was scaled.
        unscaled: names of blocks whose values say more than their direction does, such as predicted numbers.
    """

    scaling: Scaling = "none"
    columns: Mapping[str, Tensor] | None = None
    renormalised: bool = False
    unscaled: tuple[str, ...] = ()

    def design(self, matrices: Mapping[str, Matrix], outputs: int) -> FeatureDesign:
        """The design of some rows' blocks for a head with ``outputs`` outputs."""
        scaled = {name: m for name, m in matrices.items() if self.columns is None or name in self.columns}
        for step in _STEPS[self.scaling]:
            scaled = {name: m if name in self.unscaled else step(m) for name, m in scaled.items()}
        design = FeatureDesign(scaled, outputs)
        if self.columns is None:
            return design
        unit = [name for name in scaled if "unit" not in self.scaling or name not in self.unscaled]
        return kept_design(design, self.columns, unit if self.renormalised else False)
