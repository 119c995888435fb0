"""The stages of *Gradients as Features*."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from regraft.errors import RecipeError
from regraft.heads import SOLVERS
from regraft.wording import some

__all__ = ["Gradients", "SetHead"]


@dataclass(frozen=True)
class SetHead:
    """Put the solved head on the backbone: ω, a frozen copy. Below a zero head every derivative is zero."""

    needs: ClassVar[tuple[str, ...]] = ("readout",)
    yields: ClassVar[tuple[str, ...]] = ("head",)


@dataclass(frozen=True)
class Gradients:
    """The derivatives of the head's logits by some of the backbone's parameters θ₂, beside or instead of the features.

    Attributes:
        select: patterns over parameter names; ``None`` is the topmost block, or without blocks the topmost layer
            with its normalisation (:attr:`regraft.network.Network.topmost`).
        mode: ``full`` (features and gradients), ``gradient`` (gradients alone) or ``activation`` (features alone).
        prior: see :func:`regraft.graft.adapted.tangent.prior_deviations`.
        solver: ``auto``: all strengths together (:mod:`regraft.heads.convex.path`); or each strength by a solver of
            :func:`regraft.heads.minimise`.
        iterations: the most that the solver may take for one fit; its own limit if ``None``.
    """

    select: tuple[str, ...] | None = None
    mode: Literal["activation", "gradient", "full"] = "full"
    prior: Literal["ntk", "unit"] = "ntk"
    solver: str = "auto"
    iterations: int | None = None

    row_space: ClassVar[int] = 600  # independent outputs of all rows up to which fits work on the rows' kernel
    needs: ClassVar[tuple[str, ...]] = ("head", "labels")
    yields: ClassVar[tuple[str, ...]] = ("design",)

    @property
    def read(self) -> str:
        """What the head reads, in words."""
        if self.mode == "activation":
            return "last layer"
        gradients = f"gradients of {'the topmost block' if self.select is None else some(self.select)}"
        return gradients if self.mode == "gradient" else f"last layer and {gradients}"

    @classmethod
    def few(cls, rows: int, outputs: int, *, classes: bool) -> bool:
        """Whether so many rows have a kernel: of C outputs, and of C classes, whose scores sum to zero, C − 1."""
        return rows * (max(1, outputs - 1) if classes else outputs) <= cls.row_space

    def __post_init__(self) -> None:
        for what, value, known in (
            ("mode", self.mode, ("full", "gradient", "activation")),
            ("prior", self.prior, ("ntk", "unit")),
            ("solver", self.solver, SOLVERS),
        ):
            if value not in known:
                raise RecipeError(f"the {what} {value!r} of gradient features is unknown", expected=", ".join(known))
        if self.select is not None and not (self.select and all(isinstance(name, str) for name in self.select)):
            raise RecipeError(
                "no parameters are chosen for gradient features",
                expected="at least one pattern, such as 'layer4.*'",
                got=f"{self.select!r}",
                do="leave it out for the topmost block",
            )
        if self.mode == "activation" and self.solver != "auto":
            raise RecipeError(
                "mode 'activation' has no gradients to solve for", got=f"solver {self.solver!r}", do="leave it out"
            )
