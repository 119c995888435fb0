"""What the chosen features say about the task, as findings over
:func:`regraft.graft.frozen.selected.selection_figure`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from regraft.record import Finding

__all__ = ["sees_labels", "selection_findings"]

_LAST = 0.95  # of the kept features
_UNSTABLE = 0.5  # of the way from chance to equal sets
_COSTLY = 1 / 5  # of what a head on all features stores
_LATE = ("embedding", "logits")
_BLIND = ("random", "variance")  # scores that no label has a say in


def selection_findings(figure: Mapping[str, Any], *, trained: bool = False, guesses: bool = False) -> Iterator[Finding]:
    """Each observation with what to try; those that do not hold are silent.

    Args:
        figure: of a Head2Toe run.
        trained: the features were trained after they were chosen, so what to try or to store is not to be read off
            the choice.
        guesses: the run scores no better than an answer that is always the same, so the choice may be noise.
    """
    yield _kept(figure)
    yield from _uncertified(figure)
    if not trained and not guesses and sees_labels(figure):
        yield from _early(figure)
        yield from _last(figure)
    yield from _unstable(figure)
    yield from _edge(figure)
    if not trained:
        yield from _costly(figure)


def sees_labels(figure: Mapping[str, Any]) -> bool:
    """Whether labels have a say in the scores: where features lie that chance or their variance chose, says nothing
    about the task."""
    return (figure.get("scorer") or {}).get("score") not in _BLIND


def _kept(figure: Mapping[str, Any]) -> Finding:
    used = [layer for layer in figure["layers"] if layer["kept"]]
    norms = "norms taken again over the kept features" if figure["normalised"] else "norms taken over all features"
    return Finding(
        "features-kept",
        f"The head keeps {figure['kept']:,} of {figure['width']:,} features, "
        f"from {len(used)} of {len(figure['layers'])} taps.",
        "info",
        figure["kept"],
        "features",
        detail=f"Target size {figure['size']}, fraction {figure['fraction']:g}, {_penalty(figure['scorer'])}; {norms}.",
    )


def _penalty(scorer: Mapping[str, Any]) -> str:
    own, ridge = scorer["strength"], scorer["ridge_strength"]
    said = f"ranked by {scorer['name']}"
    said += " without a penalty" if own is None else f", penalty of the scores {own:g} {scorer['unit']}"
    return said if ridge is None else f"{said}, ridge penalty of the heads that judged them {ridge:g}"


def _uncertified(figure: Mapping[str, Any]) -> Iterator[Finding]:
    certificate = figure["scorer"]["certificate"]
    if certificate is None or not certificate["unconverged"]:
        return
    yield Finding(
        "scores-not-converged",
        f"{certificate['unconverged']} of {certificate['fits']} fits behind the scores did not reach their tolerance.",
        "warning",
        certificate["gap"],
        "relative duality gap",
        detail="The largest gap between a fit's objective and what no fit can go below is "
        f"{100 * certificate['gap']:.2g} % of the objective; features were ranked by these fits all the same.",
        advice="Take stronger penalties: in Python, give Select larger strengths.",
    )


def _early(figure: Mapping[str, Any]) -> Iterator[Finding]:
    """The kept features lie earlier than a blind draw among all features would, in every fold."""
    folds = figure["folds"]
    depths = [figure["depth"], *(folds["depths"] if folds else ())]
    if max(depths) >= figure["depth_all"]:
        return
    yield Finding(
        "early-layers-chosen",
        "The head draws on earlier layers than a blind choice of features would.",
        "advice",
        figure["depth"],
        "of the depth",
        detail=f"The kept features lie at {100 * figure['depth']:.0f} % of the depth on average"
        + (f" (folds: {100 * min(depths):.0f} to {100 * max(depths):.0f} %)" if folds else "")
        + f", all features at {100 * figure['depth_all']:.0f} %. Tasks far from what the backbone was trained for tend "
        "to choose so.",
        advice="A probe of the last layer may lose much here. Training the backbone may gain more: "
        "compare with --method finetune.",
    )


def _last(figure: Mapping[str, Any]) -> Iterator[Finding]:
    """Nearly all kept features are the last layer's, of which a blind draw would take fewer."""
    late = [layer for layer in figure["layers"] if layer["kind"] in _LATE]
    share = sum(layer["kept"] for layer in late) / max(1, figure["kept"])
    if share < _LAST or sum(layer["features"] for layer in late) >= _LAST * figure["width"]:
        return
    yield Finding(
        "last-layer-enough",
        f"{100 * share:.0f} % of the kept features come from the last layer.",
        "advice",
        share,
        "of the kept features",
        detail="The backbone's own embedding and outputs were preferred to what earlier layers have to add.",
        advice="Compare with --method probe, which stores one layer's head.",
    )


def _unstable(figure: Mapping[str, Any]) -> Iterator[Finding]:
    """Overlap of the folds' choices, corrected for chance: (o − c) / (1 − c) (Kuncheva, 2007)."""
    folds = figure["folds"]
    if folds is None or folds["chance"] >= 1:
        return
    index = (folds["overlap"] - folds["chance"]) / (1 - folds["chance"])
    if index >= _UNSTABLE:
        return
    yield Finding(
        "unstable-selection",
        f"Two folds agree on {100 * folds['overlap']:.0f} % of their features.",
        "advice",
        folds["overlap"],
        "overlap",
        detail=f"By chance it would be {100 * folds['chance']:.1f} %. Folds share most of their rows, so a choice "
        "that the task determines would hardly change. The score stands: every fold was predicted with features "
        "chosen without it.",
        advice="Do not read meaning into single features. More rows, or a larger fraction, make the choice firmer.",
    )


def _edge(figure: Mapping[str, Any]) -> Iterator[Finding]:
    grid = sorted({cell["fraction"] for cell in figure["grid"]})
    if len(grid) < 2 or figure["fraction"] not in (grid[0], grid[-1]) or figure["fraction"] == 1:
        return
    largest = figure["fraction"] == grid[-1]
    yield Finding(
        "fraction-at-edge",
        f"The {'largest' if largest else 'smallest'} fraction of the grid ({figure['fraction']:g}) was chosen.",
        "advice",
        figure["fraction"],
        "of the features",
        detail=f"The grid runs from {grid[0]:g} to {grid[-1]:g}; the best fraction may lie beyond it.",
        advice="Compare with --method all-layers, which keeps every feature."
        if largest
        else "Fewer features may do as well: in Python, give Select smaller fractions.",
    )


def _costly(figure: Mapping[str, Any]) -> Iterator[Finding]:
    if not figure["stored_bytes"] or figure["stored_bytes"] <= _COSTLY * figure["whole_bytes"]:
        return
    lean = next(cell for cell in figure["grid"] if cell["lean"])
    smaller = not lean["chosen"] and lean["stored_bytes"] < figure["stored_bytes"] and not figure.get("drawn")
    yield Finding(
        "selection-saves-little",
        "The chosen head stores more than a fifth of what a head on all features would.",
        "advice",
        figure["stored_bytes"] / figure["whole_bytes"],
        "of the bytes",
        detail=f"It takes {figure['stored_bytes']:,} bytes, a head on all features {figure['whole_bytes']:,}."
        + (
            f" Within one standard error of the best of its penalty, target size {lean['size']} with fraction "
            f"{lean['fraction']:g} takes at most {lean['stored_bytes']:,}."
            if smaller
            else ""
        ),
        advice="If storage counts, take the smaller head: --tolerance 1 (fast and exact search)."
        if smaller
        else "If storage counts, give Select smaller fractions in Python; if not, compare with --method all-layers.",
    )
