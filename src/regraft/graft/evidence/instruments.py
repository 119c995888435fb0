"""What the instruments of a training saw, as findings over its figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from regraft.record import Finding, counted

__all__ = ["instrument_findings"]


def instrument_findings(seen: Mapping[str, Any]) -> Iterator[Finding]:
    """A finding for each instrument that saw something, with what it cost.

    Args:
        seen: ``figures["training"]["instruments"]`` of a record.
    """
    yield from _energy(seen["energy"])
    if "drift" not in seen:  # of a training whose network is not kept
        return
    yield from _drift(seen["drift"])
    yield from _direction(seen["direction"])
    yield from _weights(seen["weights"])
    if "kernel" in seen:
        yield from _kernel(seen["kernel"])


def _energy(part: Mapping[str, Any]) -> Iterator[Finding]:
    if part["mean"] is None:
        yield Finding(
            "initial-energy",
            "The energy that training began with was not measured, nor where the labels' probabilities lay.",
            "not-applicable",
            detail=part.get("reason", ""),
        )
        return
    classes = part["truth"] is not None
    detail = f"Mean over {part['rows']:,} training rows of the distance between label and prediction."
    if classes:
        detail += (
            f" The head gave {100 * part['truth']:.0f} % to the right class on average and was right in "
            f"{100 * part['accuracy']:.0f} %."
        )
    yield Finding(
        "initial-energy",
        f"Training began with an average energy of {part['mean']:.3g}.",
        "info",
        part["mean"],
        "‖e_y − p₀‖" if classes else "‖y − p₀‖",
        detail=detail,
        cost_seconds=part["seconds"],
    )


def _drift(part: Mapping[str, Any]) -> Iterator[Finding]:
    before = part["norm_before"]
    share = f", {100 * part['change'] / before:.3g} % of what they were" if before > 0 else ""
    cosine = "undefined" if part["cosine"] is None else f"{part['cosine']:.3f}"
    yield Finding(
        "feature-drift",
        f"Training moved the features by {part['change']:.3g} in squared length{share}.",
        "info",
        part["change"],
        "‖z_T − z₀‖²",
        detail=f"On {part['rows']} fixed training rows, un-augmented: ‖z_T‖² {part['norm']:.4g} (before {before:.4g}), "
        f"z_Tᵀz₀ {part['dot']:.4g}, cos(z_T, z₀) {cosine}.",
        cost_seconds=part["seconds"],
    )


def _direction(part: Mapping[str, Any]) -> Iterator[Finding]:
    norms = part["norms"]
    if not norms:
        return
    mean = sum(norms) / len(norms)
    yield Finding(
        "feature-direction",
        f"The head's gradient had a norm of {mean:.3g} over the first {counted(len(norms), 'step')}.",
        "info",
        mean,
        "‖∇_v L‖",
        detail=f"From {norms[0]:.3g} to {norms[-1]:.3g}. Where it is large the head turns, and the features are pushed "
        "in directions that change from step to step.",
        cost_seconds=part["seconds"],
    )


def _weights(part: Mapping[str, Any]) -> Iterator[Finding]:
    if part["relative"] is None:
        return
    known = [layer for layer in part["layers"] if layer["relative"] is not None]
    most = max(known, key=lambda layer: layer["relative"], default=None)
    yield Finding(
        "weight-deviation",
        f"The backbone's weights moved by {100 * part['relative']:.3g} % of their norm.",
        "info",
        part["relative"],
        "‖W − W₀‖ / ‖W₀‖",
        detail="" if most is None else f"Most in {most['name']}: {100 * most['relative']:.3g} %.",
        cost_seconds=part["seconds"],
    )


def _kernel(part: Mapping[str, Any]) -> Iterator[Finding]:
    notes = part["notes"]
    if part["reason"] or len(notes) < 2:
        yield Finding(
            "kernel-drift",
            "The backbone's kernel was not followed.",
            "not-applicable",
            detail=part["reason"] or "The training was too short.",
        )
        return
    ratios = [note["gap"] / note["norm"] for note in notes[1:] if note["norm"] > 0]
    if not ratios:
        return
    epochs = ", ".join(str(note["epoch"]) for note in notes)
    yield Finding(
        "kernel-drift",
        f"The backbone's kernel moved by at most {100 * max(ratios):.3g} % of its norm from note to note.",
        "info",
        max(ratios),
        "k_gap / k_norm",
        detail=f"Over all pairs of {part['rows']} training rows, at epochs {epochs}, estimated from up to "
        f"{part['directions']} directions of the features: norm {notes[0]['norm']:.3g} before, "
        f"{notes[-1]['norm']:.3g} after. A kernel that stays is what the theory of head probing assumes.",
        cost_seconds=part["seconds"],
    )
