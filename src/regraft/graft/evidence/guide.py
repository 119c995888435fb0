"""What to try next with the head: a phenomenon of the run, the hypothesis behind it, what to do about it.

The user guide of Ren, Guo, Bae, Sutherland, "How to prepare your task head for finetuning", ICLR 2023, §5.1 and §5.3:
"phenomenon → hypothesis → solution", each to be verified by the score on held-out rows. It is read off a record's
figures alone, so a saved record gives the same advice as the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from regraft.graft.evidence.advice import sees_labels
from regraft.record import Finding

__all__ = ["guide"]

_ALL = 0.995  # an accuracy that is written as 100 %
_SURE = 0.9  # mean p[y] from which little energy is left: all rows may be right by a hair, and almost all of it there
_MOST, _FAST = 0.9, 4  # "HP-train-acc converges to 90%+ very fast": the paper's grid of τ is 0, 1, 2, 4, …
_TOLD = (
    0.5  # of the rows that the commonest class, named for all, would get wrong: so many right are no fit of it alone
)
_WEAK = 0.5
_LONG, _SETTLED = 8, 0.05  # epochs of probing before it may be called settled: its second half gains less than this
_RESTS = 0.95  # of the energy at half of a probing is there at its end: below it the head goes on learning
_LOW = 0.5  # of the depth
_LAYERS = {"mlp": "a hidden layer", "aspp": "layers that look around each position"}


def guide(figures: Mapping[str, Any], *, guesses: bool = False) -> Iterator[Finding]:
    """The advice for a record; what does not hold is silent.

    Args:
        figures: of the record: ``training`` where the backbone was trained, ``selection`` or ``layers`` where a head
            on the layers of the frozen backbone says which of them the task needs.
        guesses: the run scores no better than an answer that is always the same: where its head reads may be noise.
    """
    trained = figures.get("training")
    if trained is not None:
        yield from _exhausted(trained)
        yield from _weak(trained)
        yield from _fast(trained)
        yield from _opposed(trained)
    if not guesses:
        yield from _low_level(figures)


def _exhausted(trained: Mapping[str, Any]) -> Iterator[Finding]:
    accuracy, probing = _start(trained), trained.get("probing")
    if accuracy is None or accuracy < max(_ALL, _fitted(trained)) or (probing is not None and len(probing["taus"]) > 1):
        return  # among several τ the held-out rows have chosen already
    truth = _truth(trained)
    if truth is None or truth < _SURE:
        return
    way = "--method finetune, which probes the head and chooses for how long"
    if probing is not None:
        way = f"a --tau below {probing['chosen']}, or --tau auto"
    yield Finding(
        "energy-exhausted",
        "The head fitted all training rows before the backbone began to move.",
        "advice",
        accuracy,
        "of the training rows",
        detail=f"It gave the right class at least {int(100 * truth)} % on average, which leaves little energy: the "
        "features hardly adapt, which is right only where they fit the task as they are.",
        advice=f"Try {way}, and keep it if the held-out score agrees.",
    )


def _weak(trained: Mapping[str, Any]) -> Iterator[Finding]:
    accuracy, probing = _start(trained), trained.get("probing")
    stronger = "mlp" if probing is None else probing.get("stronger", "mlp")
    if accuracy is None or accuracy >= _WEAK or stronger is None:
        return
    if probing is not None and not _settled(probing, float(trained.get("commonest") or 0.0)):
        return
    layers = _LAYERS[stronger]
    way = "--method finetune with --head mlp" if probing is None else f"a head with {layers} (--head {stronger})"
    yield Finding(
        "head-too-weak",
        f"The prepared head fits {100 * accuracy:.0f} % of the training rows.",
        "advice",
        accuracy,
        "of the training rows",
        detail="A head that cannot fit the features leaves much energy however long it is probed, and the features are "
        f"rewritten more than a head with {layers} would need.",
        advice=f"If the features should be kept, try {way} and a long --tau.",
    )


def _fast(trained: Mapping[str, Any]) -> Iterator[Finding]:
    probing = trained.get("probing")
    if probing is None or probing["smoothing"] > 0:
        return
    most = max(_MOST, _fitted(trained))
    reached = next((epoch for epoch, value in enumerate(probing["curve"], 1) if value and value >= most), None)
    if reached is None or reached > _FAST:
        return
    when = "epoch" if reached == 1 else f"{reached} epochs"
    yield Finding(
        "probing-fast",
        f"Head probing fitted {100 * most:.0f} % of the training rows in its first {when}.",
        "advice",
        reached,
        "epochs",
        detail="So few epochs lie between a random head and one without energy that tau can hardly set a mild "
        "adaptation between them.",
        advice="Try --smoothing 0.1, which keeps some energy however long the head is probed.",
    )


def _opposed(trained: Mapping[str, Any]) -> Iterator[Finding]:
    probing, smoothing = trained.get("probing"), trained.get("smoothing") or 0.0
    if probing is None or probing["chosen"] == 0 or probing["smoothing"] >= smoothing:
        return  # a head that was not probed is prepared for no labels
    yield Finding(
        "smoothing-opposes",
        "Labels are smoothed more in training than in head probing.",
        "warning",
        smoothing,
        "smoothing",
        detail="The head is prepared for harder labels than it is then trained on, which sends features back.",
        advice="Smooth the probing's labels at least as much as the training's.",
    )


def _low_level(figures: Mapping[str, Any]) -> Iterator[Finding]:
    depths = _depths(figures)
    if not depths or max(depths) >= _LOW:
        return
    folds = depths[1:]
    yield Finding(
        "low-level-target",
        "The head draws on the lower half of the network.",
        "advice",
        depths[0],
        "of the depth",
        detail=(f"Of the folds {100 * min(folds):.0f} to {100 * max(folds):.0f} %. " if folds else "")
        + "Lower layers hold simple features (edges and textures of images), higher ones what the backbone was "
        "trained to tell, which may not help here and may stand in the way.",
        advice="Try --method finetune, of a network with blocks with --partial 1: the topmost one is drawn anew and "
        "trained with the head.",
    )


def _start(trained: Mapping[str, Any]) -> float | None:
    """The share of training rows that the head got right when everything began to move."""
    seen = trained.get("instruments") or {}
    accuracy = (seen.get("energy") or {}).get("accuracy")
    probing = trained.get("probing")
    if accuracy is None and probing is not None:
        accuracy = next((row["accuracy"] for row in probing["taus"] if row["tau"] == probing["chosen"]), None)
    return None if accuracy is None else float(accuracy)


def _fitted(trained: Mapping[str, Any]) -> float:
    """The share of training rows that a head has right which tells classes apart, and does not name the commonest."""
    commonest = float(trained.get("commonest") or 0.0)
    return commonest + _TOLD * (1 - commonest)


def _truth(trained: Mapping[str, Any]) -> float | None:
    """What that head gave the right class on average, or a bound below it: ``p[y] ≥ 1 − ‖e_y − p‖``."""
    seen, probing = trained.get("instruments") or {}, trained.get("probing")
    truth = (seen.get("energy") or {}).get("truth")
    if truth is None and probing is not None:
        left = next((row.get("energy") for row in probing["taus"] if row["tau"] == probing["chosen"]), None)
        truth = None if left is None else 1 - left
    return None if truth is None else float(truth)


def _settled(probing: Mapping[str, Any], commonest: float) -> bool:
    """Whether training began from a probed head, and its probing came to rest: below half of the rows, but not where
    a head that has hardly begun is, which names one class, nor with energy that goes on to fall."""
    known = [value for value in probing["curve"] if value is not None]
    if probing["chosen"] == 0 or len(known) < _LONG or known[-1] - known[len(known) // 2] > _SETTLED:
        return False
    energies = [row.get("energy") for row in probing["taus"] if 2 * row["tau"] >= len(probing["curve"])]
    left = [value for value in energies if value is not None]
    falls = len(left) > 1 and left[-1] < _RESTS * left[0]
    return commonest + _SETTLED < known[-1] < _WEAK and not falls


def _depths(figures: Mapping[str, Any]) -> list[float]:
    """Mean depths of what a head on the frozen backbone's layers reads: of all rows, then of each fold."""
    selection = figures.get("selection")
    if selection is not None:
        if selection.get("tuned") or not sees_labels(selection):
            return []
        folds = selection.get("folds")
        return [float(selection["depth"]), *(float(depth) for depth in (folds["depths"] if folds else ()))]
    layers = figures.get("layers") or []
    if "training" in figures or len(layers) < 2:
        return []  # a refitted head reads a tuned network
    return [sum(layer["share"] * layer["depth"] for layer in layers)]
