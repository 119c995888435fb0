"""The search behind a Select stage: which scores, by which solver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from regraft.graft.stages.features import Select
from regraft.heads import (
    AdamScores,
    ByLayer,
    ExactGroupLasso,
    FirstGradient,
    LayerGroups,
    RandomScores,
    Relevance,
    Response,
    Scorer,
    Selection,
    Stability,
    Status,
    Variance,
    select,
    select_reference,
)
from regraft.linear import FeatureDesign

__all__ = ["choose_features", "ladder", "ranked_by", "scorer_of"]

#: With what the ridge heads judge features whose scores have penalties of another unit: from strong to weak.
_STRONGEST, _WEAKEST = 1e-2, 1e-3


def scorer_of(stage: Select, seed: int, told: Callable[[Status], None] | None = None) -> Scorer | None:
    """What ranks the features; ``None`` for the fast search's own scores.

    Args:
        stage: not of the reference solver.
        seed: of random scores and random halves.
        told: called with how each fit behind the scores ended, where they are certified.
    """
    if stage.by == "layer-lasso":
        return LayerGroups(tuple(sorted(stage.grid, reverse=True)), told=told)
    inner: Scorer | None = None
    if stage.solver == "exact":
        inner = ExactGroupLasso(tuple(sorted(stage.grid, reverse=True)), told=told)
    elif stage.score != "relevance":
        scorers: dict[str, Scorer] = {
            "random": RandomScores(seed),
            "variance": Variance(),
            "gradient": FirstGradient(),
            "stability": Stability(seed=seed),
        }
        inner = scorers[stage.score]
    return inner if stage.by == "feature" else ByLayer(inner or Relevance())


def ranked_by(stage: Select) -> str:
    """The name of the scores."""
    if stage.solver == "reference":
        return AdamScores.name
    return (scorer_of(stage, 0) or Relevance()).name


def ladder(stage: Select) -> tuple[float, ...]:
    """The strengths of the search's cells, strongest first, one for each penalty of the scores: these themselves, or
    for scores of another unit than the ridge heads' (``exact``, ``layer-lasso``) as many from 1e-2 to 1e-3."""
    own = sorted({float(value) for value in stage.grid}, reverse=True)
    if stage.solver != "exact" and stage.by != "layer-lasso":
        return tuple(own)
    if len(own) == 1:
        return (_WEAKEST,)
    return tuple(_STRONGEST * (_WEAKEST / _STRONGEST) ** (k / (len(own) - 1)) for k in range(len(own)))


def choose_features(
    stage: Select,
    designs: Mapping[str, FeatureDesign],
    response: Response,
    *,
    folds: Any,
    metric: str,
    forms: Sequence[str],
    class_weight: Any,
    seed: int,
    more: Mapping[str, Mapping[str, FeatureDesign]] | None = None,
    told: Callable[[Status], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Selection:
    """What the stage keeps, and the head on it.

    Scores whose λ has another unit than the ridge heads' (``exact``, ``layer-lasso``) are judged at as many strengths
    of these, from 1e-2 to 1e-3 in equal ratios, the strongest with the strongest.

    Args:
        stage: the search.
        designs: by target size.
        response, folds, metric, forms, class_weight, seed: as in :func:`regraft.heads.select`. The heads of the
            reference search are what its protocol says, so ``forms`` has no say there.
        more: by key of ``designs``, the same features scaled otherwise: tried where that size was the best, and
            by the reference search, whose grid has no such step, beside all others.
        told: as in :func:`scorer_of`.
        progress: called with (done, in all) as the search goes on.
    """
    shared: dict[str, Any] = {
        "folds": folds,
        "metric": metric,
        "fractions": stage.fractions,
        "class_weight": class_weight,
        "seed": seed,
        "progress": progress,
    }
    if stage.solver == "reference":
        everything = {**designs, **{key: d for others in (more or {}).values() for key, d in others.items()}}
        return select_reference(everything, response, strengths=stage.grid, **shared)
    scorer = scorer_of(stage, seed, told)
    return select(
        designs, response, strengths=ladder(stage), forms=forms, scorer=scorer, more=more,
        wider=stage.wider, weaker=stage.weaker, tolerance=stage.tolerance, **shared,
    )  # fmt: skip
