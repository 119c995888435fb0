"""Checkpoints of one pretraining: how transfer rises with it, and where it begins to fall."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regraft.diagnose.transfer.ranking import Ranking
from regraft.errors import RecipeError
from regraft.network import Network
from regraft.record import Finding

__all__ = ["Course", "checkpoints"]

# by the last number of a name: epoch-008, checkpoint-500, global_step1000; no seed, fold or size
_COUNTED = re.compile(r"(?<![a-z])(epoch|step|iter|iteration|checkpoint|ckpt)s?[\W_]*(\d+)(?!.*\d)", re.IGNORECASE)


@dataclass(frozen=True)
class Course:
    """Where each backbone stands in its pretraining.

    Attributes:
        at: epochs or steps, rising; in the order of the backbones.
        word: what is counted, from the folders' names: ``epoch``, ``step``, ``iter``, ``checkpoint``, ….
    """

    at: tuple[int, ...]
    word: str

    def figure(self, names: Sequence[str], order: Ranking) -> dict[str, Any]:
        """The curve as data: each stage's score with its interval."""
        places = {place.name: place for place in order.places}
        points = [
            {"at": at, "name": name, "value": places[name].value, "low": places[name].low, "high": places[name].high}
            for at, name in zip(self.at, names)
        ]
        return {"word": self.word, "points": points}

    def findings(self, names: Sequence[str], order: Ranking) -> tuple[Finding, ...]:
        """What pretraining gave over its first stage, and whether its end is past the best.

        The best stage was chosen among all, so its lead over the last one flatters it: a fall is called real only
        where the last stage is also not first in 97.5 % of the resamples, each of which chooses its own best.
        """
        best, first, last = order.places[0].name, names[0], names[-1]
        end = next(place for place in order.places if place.name == last)
        gain = order.between(last, first)
        title = f"Transfer {'rises' if gain.value > 0 else 'falls'} from {first} to {last}"
        title += "" if gain.real else ", but the rows do not bear it out"
        if gain.value == 0:
            title = f"Transfer is the same at {first} and {last}"
        said = [Finding("pretraining-gain", title, "info", gain.value, "", gain.low, gain.high)]
        if order.places[0].value == end.value:
            title = f"Transfer is best at the end, {last}" + ("" if best == last else f", and as good at {best}")
            return (*said, Finding("pretraining-peak", title, "info"))
        fall = order.between(best, last)
        over = (fall.value, "", fall.low, fall.high)
        if fall.real and end.rank_low > 1:
            title, advice = f"Transfer is best at {best} and falls until {last}", f"Take {best}, or pretrain no longer."
            return (*said, Finding("pretraining-peak", title, "advice", *over, advice=advice))
        title = f"Transfer is best at {best}, but the rows do not tell it from the end, {last}"
        return (*said, Finding("pretraining-peak", title, "info", *over))


def checkpoints(models: Sequence[str | Network]) -> tuple[tuple[str | Network, ...], Course | None]:
    """A folder of backbone folders stands for all of them, in the order of what their names count, or by name.

    Returns:
        the backbones, and where they stand; ``None`` where they are not the checkpoints of one folder, or their names
        do not all count epochs, steps, iterations or checkpoints.

    Raises:
        RecipeError: a folder of fewer than two backbones.
    """
    only = models[0] if len(models) == 1 else None
    if not isinstance(only, str) or not Path(only).is_dir() or (Path(only) / "config.json").is_file():
        return tuple(models), None
    found = sorted(path.parent for path in Path(only).glob("*/config.json"))
    if len(found) < 2:
        raise RecipeError(f"{only} is no folder of checkpoints", expected="two or more backbone folders in it",
                          got=f"{len(found)}")  # fmt: skip
    stages = [(int(n[2]), n[1].lower(), str(path)) for path in found if (n := _COUNTED.search(path.name))]
    if len({at for at, _, _ in stages}) < len(found) or len({word for _, word, _ in stages}) > 1:
        return tuple(str(path) for path in found), None
    stages.sort()
    return tuple(path for _, _, path in stages), Course(tuple(at for at, _, _ in stages), stages[0][1])
