"""Which stages of a recipe that trains go together: what would be passed over in silence is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regraft.errors import RecipeError
from regraft.graft.stages.features import Features, Select, Solve
from regraft.graft.stages.gradient import Gradients, SetHead
from regraft.graft.stages.posterior import Posterior
from regraft.graft.stages.training import Probe, Reinitialise, Train

__all__ = ["check_training"]

_LATE: tuple[list[type], ...] = ([], [Features, Solve], [Features, Select, Solve])


def check_training(name: str, stages: Sequence[Any]) -> None:
    """Refuse stages of which a training would leave one aside.

    Raises:
        RecipeError: weights are drawn anew after another stage, a head is probed that nothing trains, more than one
            head or plan of features stands before the training, or derivatives, or what follows it is no head on the
            trained network's features.
    """
    if any(isinstance(stage, Reinitialise) for stage in stages[1:]):
        _refuse(name, "weights are drawn anew before all else", "one Reinitialise, as the first stage", stages)
    places = [place for place, stage in enumerate(stages) if isinstance(stage, Train)]
    early, late = (stages[: places[0]], stages[places[0] + 1 :]) if places else (stages, ())
    if places and any(isinstance(stage, SetHead | Gradients | Posterior) for stage in early):
        _refuse(name, "a training begins with a head on features, and derivatives are of the network as it is",
                "Features and a Probe or Solve before Train", stages)  # fmt: skip
    heads = [stage for stage in early if isinstance(stage, Probe | Solve)]
    probed = any(isinstance(stage, Probe) for stage in heads)
    if (len(heads) > 1 and (probed or places)) or (probed and not places):
        _refuse(name, "the head that is probed is the one that training begins with", "one Probe or Solve, then Train",
                stages)  # fmt: skip
    if places and sum(isinstance(stage, Features) for stage in early) > 1:
        _refuse(name, "the head that training begins with reads one plan of features", "one Features before Train",
                stages)  # fmt: skip
    if strange := [type(stage).__name__ for stage in late if not isinstance(stage, Features | Select | Solve)]:
        raise RecipeError(
            f"recipe {name!r}: a head that is solved after a training reads features of its layers",
            expected="Features, Select and Solve after Train, or nothing",
            got=", ".join(strange),
            do=f"leave {strange[0]} out, or put it before Train",
        )
    if [type(stage) for stage in late] not in _LATE:
        _refuse(name, "a head is solved after a training on features of its layers, all or chosen ones",
                "Features and Solve after Train, and Select between them or not", stages)  # fmt: skip
    if places and stages[places[0]].or_frozen:
        _check_or_frozen(name, stages)


def _check_or_frozen(name: str, stages: Sequence[Any]) -> None:
    """Refuse the choice of a frozen backbone where layers of it, or under the head, are new: there is no head on it as
    it came that could be kept."""
    new = ""
    for stage in stages:
        if isinstance(stage, Probe) and (stage.hidden or stage.aspp):
            new = f"Probe(hidden={stage.hidden})" if stage.hidden else "Probe(aspp=True)"
        elif isinstance(stage, Reinitialise) and stage.blocks is not None:
            new = f"Reinitialise({stage.blocks})"
    if new:
        raise RecipeError(
            f"recipe {name!r} may keep the backbone as it comes, but its head has layers that are trained with it",
            expected="a linear head on the backbone as it comes before Train(or_frozen=True)",
            got=new,
            do="leave these layers out, or or_frozen",
        )


def _refuse(name: str, what: str, expected: str, stages: Sequence[Any]) -> None:
    raise RecipeError(
        f"recipe {name!r}: {what}", expected=expected, got=" → ".join(type(stage).__name__ for stage in stages),
        do="leave the stages out that would be passed over",
    )  # fmt: skip
