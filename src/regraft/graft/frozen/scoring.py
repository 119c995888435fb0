"""What ranked the features, as plain JSON values: the score's name and meaning, its penalty, its certificate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regraft.graft.frozen.choosing import ladder, ranked_by
from regraft.graft.stages.features import Select
from regraft.heads import Selection, Status

__all__ = ["penalties", "scorer_figure"]

_MEANINGS = {
    "relevance": "the norm of the feature’s row of a ridge head’s coefficients",
    "stability": "the norm of the feature’s row of a ridge head’s coefficients, its mean over random halves of rows",
    "gradient": "the norm of the loss’s gradient by the feature’s row of coefficients, at zero coefficients",
    "variance": "the feature’s variance over the rows, blind to labels",
    "random": "drawn at random, blind to features and labels",
}
_EXACT = (
    "the norm of the feature’s row of the exact group lasso’s coefficients; outside its support at most zero, by how "
    "far the feature is from entering"
)
_ADAM = "the norm of the feature’s row of the coefficients at which Adam stopped on the group lasso"
_WITHOUT_PENALTY = ("random", "variance", "gradient")
_RIDGE, _ADDED, _LARGEST = "of the features’ mean squared norm", "as it stands in the loss", "of λ_max"


def scorer_figure(stage: Select, selection: Selection, fits: Sequence[Status]) -> dict[str, Any]:
    """What ranked the features.

    Args:
        stage: the search.
        selection: what it found.
        fits: how each fit behind the scores ended, where they are certified.

    Returns:
        ``name``; ``meaning``, of a feature's score; ``score``, of the stage; ``mean`` and ``share``, whether scores
        may be averaged over a layer, and their squares be added up; ``strength``, the penalty of the scores at the
        chosen cell, and ``strengths``, all that were tried, in ``unit`` (all ``None`` for scores without a penalty);
        ``ridge_strength``, the penalty of the heads that judged the cell where that is another number (``None``
        where it is the same, and where they have none); ``certificate``, ``None`` or the number of ``fits``, how many
        of them were left ``unconverged``, and the largest duality ``gap`` in parts of the objective.
    """
    norms = stage.by == "feature" and stage.solver != "exact"
    theirs = penalties(stage)
    own, tried = theirs[selection.strength], [*stage.grid, *(theirs[cell.strength] for cell in selection.table)]
    shared = stage.solver == "reference" or (own is not None and _unit(stage) == _RIDGE)
    return {
        "name": ranked_by(stage),
        "meaning": _meaning(stage),
        "score": stage.score,
        "mean": norms and stage.score != "random",
        "share": norms and stage.score not in ("random", "variance"),
        "strength": own,
        "strengths": None if own is None else sorted(set(tried), reverse=True),
        "unit": None if own is None else _unit(stage),
        "ridge_strength": None if shared else selection.strength,
        "certificate": {
            "fits": len(fits),
            "unconverged": sum(not fit.converged for fit in fits),
            "gap": max(fit.residual for fit in fits),
        }
        if fits
        else None,
    }


def _unit(stage: Select) -> str:
    if stage.solver == "exact" or stage.by == "layer-lasso":
        return _LARGEST
    return _ADDED if stage.solver == "reference" else _RIDGE


def penalties(stage: Select) -> dict[float, float | None]:
    """The strength of a search's cells → the penalty of its scores in their own unit, ``None`` where there is none."""
    own = sorted({float(value) for value in stage.grid}, reverse=True)
    of_cells = dict(zip((*ladder(stage), *stage.weaker), (*own, *stage.weaker), strict=True))
    return {cell: None if stage.score in _WITHOUT_PENALTY else value for cell, value in of_cells.items()}


def _meaning(stage: Select) -> str:
    if stage.by == "layer-lasso":
        return (
            "how many layers the feature’s own goes before in a lasso whose groups are layers, and below one how the "
            "feature ranks inside its layer"
        )
    inner = {"exact": _EXACT, "reference": _ADAM}.get(stage.solver, _MEANINGS[stage.score])
    if stage.by == "layer":
        return (
            "how many layers the feature’s own goes before by the mean of their features’ scores, and below one how "
            f"the feature ranks inside its layer; a feature’s score there is {inner}"
        )
    return inner
