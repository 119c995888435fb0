"""The stages of recipes that leave linearity: new weights, head probing, training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from regraft.errors import RecipeError
from regraft.graft.stages.augment import Augment
from regraft.graft.stages.config import Optimiser, TrainConfig, Tuning, is_number, is_whole

__all__ = ["SGD_RATES", "TAUS", "Probe", "Reinitialise", "Train"]

#: The lengths of head probing, in epochs, of Ren et al. (ICLR 2023).
TAUS: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 32, 64, 128, 200)
#: Learning rates to choose from by SGD: from a backbone as it comes, and from one whose every weight was drawn anew.
SGD_RATES: tuple[tuple[float, ...], tuple[float, ...]] = ((3e-2, 1e-2, 3e-3), (1e-1, 3e-2, 1e-2))
_LONGEST = 10**6  # epochs of head probing, beyond which a τ is a slip of the key


def _fine_tuning() -> TrainConfig:
    return TrainConfig(steps=500, batch_size=64, optimiser=Optimiser(lr=1e-3, weight_decay=0.0, nesterov=False))


@dataclass(frozen=True)
class Reinitialise:
    """Draw the backbone's weights anew from the run's seed: training from scratch, or of a partial backbone.

    Attributes:
        blocks: how many of the last blocks; ``None``: everything.
    """

    blocks: int | None = None

    needs: ClassVar[tuple[str, ...]] = ("network",)
    yields: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Probe:
    """Head probing: train a random head alone for τ epochs on the frozen features of one tap.

    One trajectory gives the heads of every τ: SGD with momentum 0.9 and without decay at a constant rate.

    Attributes:
        tau: epochs; ``auto`` chooses among ``taus`` by the score after training.
        taus: the candidates.
        lr, batch_size: of the trajectory; ``None``: 0.01 and 64 rows. Of masks a batch is one of positions, and
            ``None`` stands for 0.1 and the positions of 16 images; with ``aspp`` it is one of images, and 16 of them.
        hidden: units of a hidden layer of ReLUs under the head, which becomes part of the trained network; 0: none.
        augmented: probe on images augmented as in training, with the backbone run at every step, and not on the
            features of one pass.
        aspp: of masks: layers that look around each position (:class:`regraft.graft.adapted.aspp.Aspp`) under the head.
        smoothing: s, of its labels ``(1 − s) e_y + s / C``; the paper's η is 1 − s. Training itself has hard labels
            unless its configuration says otherwise, and its η should be no less than this one.

    Raises:
        RecipeError: a τ that is no whole number from 0 to 1,000,000, units that are no whole number from 0 on, rows a
            step that are none from 1 on, a rate that is not above 0, or smoothing outside [0, 1).
    """

    tau: int | Literal["auto"] = "auto"
    taus: tuple[int, ...] = TAUS
    lr: float | None = None
    batch_size: int | None = None
    smoothing: float = 0.0
    hidden: int = 0
    augmented: bool = False
    aspp: bool = False

    needs: ClassVar[tuple[str, ...]] = ("design", "labels")
    yields: ClassVar[tuple[str, ...]] = ("readout",)

    def __post_init__(self) -> None:
        wrong = [tau for tau in self.candidates if not (is_whole(tau, 0) and tau <= _LONGEST)]
        if wrong or not self.taus:
            raise RecipeError("tau is out of range", expected=f"0 to {_LONGEST:,} epochs, or auto", got=repr(wrong))
        if not is_whole(self.hidden, 0):
            raise RecipeError("the hidden layer is out of range", expected="0 units or more", got=repr(self.hidden))
        if not 0 <= self.smoothing < 1:
            raise RecipeError("the smoothing is out of range", expected="[0, 1)", got=repr(self.smoothing))
        if self.batch_size is not None and not is_whole(self.batch_size, 1):
            raise RecipeError("rows a step of head probing", expected="1 or more", got=repr(self.batch_size))
        if self.lr is not None and not (is_number(self.lr) and 0 < self.lr < math.inf):
            raise RecipeError("the rate of head probing", expected="a number above 0", got=repr(self.lr))

    def filled(self, lr: float, batch_size: int) -> Probe:
        """With these where none are given."""
        return replace(
            self,
            lr=lr if self.lr is None else self.lr,
            batch_size=batch_size if self.batch_size is None else self.batch_size,
        )

    @property
    def candidates(self) -> tuple[int, ...]:
        """The values of τ to choose from, ascending."""
        return tuple(sorted(set(self.taus))) if self.tau == "auto" else (self.tau,)


@dataclass(frozen=True)
class Train:
    """Train the backbone and the head together from the readout before it.

    Attributes:
        config: how long and how; its learning rate is replaced by each of ``lrs`` in turn.
        lrs: the candidates, chosen on held-out rows; a single one is taken.
        widen: of several rates try further ones where the best is the highest or the lowest, or no better than the
            highest but for chance.
        tuning: what moves; BatchNorm on the batch's statistics (decision 0011).
        augment: of images in training.
        or_frozen: keep the frozen backbone with its head where training scores no better on the held-out rows (FT+
            of Evci et al. 2022).
    """

    config: TrainConfig = field(default_factory=_fine_tuning)
    lrs: tuple[float, ...] = SGD_RATES[0]
    widen: bool = True
    tuning: Tuning = field(default_factory=lambda: Tuning(norms="trained"))
    augment: Augment = field(default_factory=Augment)
    or_frozen: bool = False

    needs: ClassVar[tuple[str, ...]] = ("readout", "labels")
    yields: ClassVar[tuple[str, ...]] = ("network",)
    spends: ClassVar[tuple[str, ...]] = ("design",)  # features of the backbone as it was

    def __post_init__(self) -> None:
        if not self.lrs:
            raise RecipeError("there is no learning rate to try", expected="at least one")
        for lr in self.lrs:
            self.at(lr, 0)

    def at(self, lr: float, seed: int) -> TrainConfig:
        """The configuration at one learning rate and seed."""
        return replace(self.config, optimiser=replace(self.config.optimiser, lr=lr), seed=seed)
