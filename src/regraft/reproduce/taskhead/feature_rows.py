"""The rows of paper 004 on what fine-tuning does to features: trends by τ (Figs. 3, 11, 13-15), the kernel (Fig. 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regraft.diagnose import Kernel, feature_kernel
from regraft.features import Taps, plan
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.problem import Task
from regraft.graft.stages.config import Optimiser, Schedule, TrainConfig, Tuning
from regraft.graft.stages.training import TAUS, Probe
from regraft.graft.training.finetune import finetune
from regraft.graft.training.probing import probing_heads
from regraft.linear import Dense
from regraft.network import reinitialised
from regraft.reproduce.arms import Arm, Bench, Place, seeds_gate
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import Measured, reverse_axis, still
from regraft.reproduce.result import Result, swap
from regraft.reproduce.row import Context
from regraft.reproduce.taskhead import settings, toy
from regraft.reproduce.taskhead.settings import ADAPTED, STRONG
from regraft.reproduce.taskhead.sweep_rows import REGIME, Setting, name_of
from regraft.reproduce.taskhead.toy import LONG, SWEEP, TOY
from regraft.reproduce.taskhead.toy_rows import RECIPE, series
from regraft.reproduce.words import at_least, bound, series_correlation, share

__all__ = ["KERNELS", "MEASURED", "kernels", "trends"]

MEASURES = ("change", "cosine", "dot", "norm")
JUDGED: tuple[Setting, ...] = ((STRONG, "tiny20"), ("S4-rot", "tiny20"))
SHOWN: tuple[Setting, ...] = (("S4-vae", "tiny20"),)
PROBES, LOGS = 50, 12  # rows between which the kernel is measured, epochs after which
RATE = 1e-2  # of training while it is measured
STARTS: dict[str, tuple[bool, int]] = {
    "random": (True, 0),
    "HP 0": (False, 0),
    "HP 8": (False, 8),
    "HP 64": (False, 64),
}
"""Figure 6's four: whether the backbone is random, and τ."""


# -------------------------------------------------------------------------------------- trends by τ


def trends(
    small: Bench, large: Bench, judged: Sequence[Setting] = JUDGED, shown: Sequence[Setting] = SHOWN,
    taus: Sequence[int] = TAUS,
) -> Result:  # fmt: skip
    """How far and where to the features have moved after fine-tuning, by τ.

    Args:
        small, large: the toy's bench and the sources'.
        judged, shown: what is judged, and what the notes show beside it (the paper's own sources without labels do not
            always follow). "S4-sup, S4-rot, -vae (shown)" is read as strictly as it can be: S4-vae alone is not judged.
        taus: of the sources; the toy has its own.
    """
    found = small.over_seeds(TOY, "MLP4", "toy")
    arms: dict[str, dict[str, list[Any]]] = {}
    swept = {setting: _swept(large, setting, taus) for setting in (*judged, *shown)}
    for what in MEASURES:
        arms[f"MLP4 {what}"] = series(found, "tuned", what, SWEEP)
        for setting in judged:
            arms[f"{setting[0]} {what}"] = {setting[1]: _entry(swept[setting], what)}
    notes = {
        **RECIPE,
        "training of the S4": f"{REGIME}, at τ = {_middle(taus)}; at every other τ its rate",
        "rates of the S4": {name_of(setting): [row[0]["rate"] for row in rows] for setting, rows in swept.items()},
        "shown": {f"{setting[0]} {what}": _entry(swept[setting], what) for setting in shown for what in MEASURES},
    }
    return Result(arms, {"τ MLP4": list(SWEEP), "τ": list(taus)}, small.seeds, seeds_gate(small.seeds), notes)


def _middle(taus: Sequence[int]) -> int:
    """The τ at which the rate is chosen: the one in the middle."""
    return sorted(taus)[len(taus) // 2]


def _swept(bench: Bench, setting: Setting, taus: Sequence[int]) -> list[list[dict[str, Any]]]:
    """The arm's values by seed and τ, all of a seed at one rate: features that train faster move farther."""
    begun = bench.over_seeds(ADAPTED, *setting, tau=_middle(taus))
    for seed, value in zip(bench.seeds, begun):
        for tau in taus:
            if tau != _middle(taus):
                bench.ahead(ADAPTED, [Place(*setting, seed)], tau=tau, rate=value["rate"])
    return [
        [
            value if tau == _middle(taus) else bench.measure(ADAPTED, *setting, seed, tau=tau, rate=value["rate"])
            for tau in taus
        ]
        for seed, value in zip(bench.seeds, begun)
    ]


def _entry(rows: list[list[dict[str, Any]]], what: str) -> list[list[Any]]:
    return [[value[what] for value in row] for row in rows]


def _networks(result: Result) -> list[str]:
    return [name.removesuffix(" change") for name in result.arms if name.endswith(" change")]


def _axis(result: Result, network: str) -> np.ndarray:
    return result.axis("τ MLP4" if network == "MLP4" else "τ")


def _moves_less(result: Result) -> Outcome:
    return all_of(
        [
            series_correlation(
                _axis(result, name), result.one(f"{name} change"), -0.9, side="<=", names=("τ", f"‖Δz‖² of {name}")
            )
            for name in _networks(result)
        ]
    )


def _turns_less(result: Result) -> Outcome:
    return all_of(
        [
            series_correlation(_axis(result, name), result.one(f"{name} cosine"), 0.9, names=("τ", f"cos of {name}"))
            for name in _networks(result)
        ]
    )


def _inside(axis: np.ndarray, curves: np.ndarray, what: str) -> Outcome:
    """The mean curve is highest between both ends of τ: the page asks for a maximum there, and for no interval."""
    mean = curves.mean(axis=0)[np.argsort(axis, kind="stable")]
    best = int(mean.argmax())
    steps = min(best, len(mean) - 1 - best) if np.isfinite(mean).all() else np.nan
    said = f"steps from the maximum of {what} (τ = {np.sort(axis)[best]:g}) to the nearer end"
    return bound([steps], at_least=1, what=said)


def _rises_and_falls(result: Result) -> Outcome:
    return all_of(
        [
            _inside(_axis(result, name), result.one(f"{name} {what}"), f"{what} of {name}")
            for name in _networks(result)
            for what in ("dot", "norm")
        ]
    )


def _ends_apart(result: Result) -> Outcome:
    axis, change = _axis(result, "MLP4"), result.one("MLP4 change")
    first, last = change[:, int(axis.argmin())], change[:, int(axis.argmax())]
    return at_least(first, 5 * last, names=("‖Δz‖² at τ=0", f"5 × that at τ={LONG:,}"))


def _run_trends(context: Context) -> Result:
    return trends(toy.bench_of(context), settings.bench_of(context, ("tiny20",)))


# ----------------------------------------------------------------------------------------- the kernel


def _kernels(bench: Bench, place: Place, random: bool, tau: int, logs: int = LOGS) -> dict[str, Any]:
    """``norm`` of the kernel after each epoch of fine-tuning, and its ``gap`` from one to the next."""
    network, manifest = bench.network(place.network, place.seed), bench.rows(place.task, place.seed).part("train")
    if random:
        network = reinitialised(network, place.seed)
    rows = ManifestRows.of(network, manifest, workers=0)
    network = settings.settled_on(network, rows)  # else the first epochs move the kernel by settling alone
    wanted = plan(network, [Taps(("embedding",), (None,))])
    features = settings.pooled(network, wanted, rows)
    task = Task(manifest.labels, None, "accuracy", seed=place.seed)
    probe = Probe(lr=1e-2, batch_size=128)
    head = probing_heads(network, wanted, Dense(features), rows.labels, task, probe, [tau]).by_tau[tau]
    probes: Tensor = rows.inputs(torch.arange(0, len(rows), max(1, len(rows) // PROBES))[:PROBES])
    norms: list[float] = []
    gaps: list[float] = []
    held: list[Kernel] = []

    def note(epoch: int, module: nn.Module) -> None:
        if epoch:  # the ends of epochs
            now = feature_kernel(module.result().network, probes, directions=8, seed=place.seed)  # type: ignore[operator]
            norms.append(now.norm)
            gaps.extend(before.gap(now) for before in held)
            held[:] = [now]

    config = TrainConfig(
        epochs=logs, batch_size=64, optimiser=Optimiser(RATE, weight_decay=0.0, nesterov=False),
        schedule=Schedule("constant"), seed=place.seed,
    )  # fmt: skip
    tuned = finetune(head, manifest, config, tuning=Tuning(norms="trained"), task=task, rows=rows, on_epoch=note)
    scores = [epoch.train_score for epoch in tuned.outcome.history]
    return {"norm": norms, "gap": gaps, "accuracy": scores}


KERNELS = Arm("taskhead-kernel", 2, _kernels)
"""The kernel of 50 rows' features, by sketches of 8 directions, along a fine-tuning."""


def kernels(bench: Bench, setting: Setting = (STRONG, "fashion")) -> Result:
    """``k_gap / k_norm`` between the ends of consecutive epochs, for the four starts."""
    arms: dict[str, dict[str, list[Any]]] = {}
    accuracy: dict[str, Any] = {}
    for name, (random, tau) in STARTS.items():
        found = bench.over_seeds(KERNELS, *setting, random=random, tau=tau)
        arms[name] = {setting[1]: [[gap / norm for gap, norm in zip(each["gap"], each["norm"])] for each in found]}
        accuracy[name] = [each["accuracy"] for each in found]
    notes = {"source": setting[0], "training accuracy by epoch": accuracy, "kernel": "50 rows, 8 random directions"}
    return Result(arms, {"epoch": list(range(2, LOGS + 1))}, bench.seeds, seeds_gate(bench.seeds), notes)


def _slower(result: Result) -> Outcome:
    pretrained = np.stack([result.one(name) for name in STARTS if name != "random"])
    fewer = np.moveaxis(pretrained < result.one("random"), 1, -1)  # starts, epochs, seeds
    return share(fewer.reshape(-1, fewer.shape[-1]), 0.9, what="logs at which the pretrained kernel moves less")


MEASURED: dict[str, Measured] = {
    "th-fig3-13-15": Measured(
        _run_trends,
        {"a": _moves_less, "b": _turns_less, "c": _rises_and_falls, "d": _ends_apart},
        {
            "a": swap("MLP4 change", "MLP4 cosine"),
            "b": swap("MLP4 change", "MLP4 cosine"),
            "c": still("MLP4 norm"),
            "d": reverse_axis("τ MLP4"),
        },
    ),
    "th-fig6": Measured(
        lambda context: kernels(settings.bench_of(context, ("fashion",))),
        {"": _slower},
        {"": swap("random", "HP 8")},
    ),
}
