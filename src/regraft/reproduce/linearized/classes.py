"""Rows ntk-eq4, ntk-fig4-acc and ntk-fig4-cal: linearised networks under a categorical likelihood (Eq. 4, Fig. 4).

Three ways to a posterior, all with one prior scale, that of the highest Laplace evidence: the most probable logits
(MAP), Laplace's Gaussian about them, and stochastic variational inference over the weights, begun at the MAP. The
*finite NTK* has mean zero, the *linearised network* the network itself as its mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regraft.data import Manifest
from regraft.features import Form, Tangent, form_error, ntk, ntk_adjoints, ntk_within_rows
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.outputs import logits
from regraft.graft.pretraining.pretrain import pretrain
from regraft.graft.stages.config import Schedule, TrainConfig
from regraft.heads import Laplace, Response, ece, laplace, nll, scale_by_evidence, variational
from regraft.heads.gp.variational import Descent
from regraft.linear import Design
from regraft.network import Network, load
from regraft.reproduce.arms import Arm, Bench, Place, seeds_gate
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import Measured, by_seed, without_tasks
from regraft.reproduce.result import Result, swap
from regraft.reproduce.row import Context
from regraft.reproduce.sources import source_folder
from regraft.reproduce.tasks import KINDS, task
from regraft.reproduce.words import about, at_least, bound, greater

__all__ = ["FIGURE4", "MEASURED", "by_kernel", "digits_network", "figures", "inferred", "kernels_of", "three_starts"]

WAYS = ("MAP", "Laplace", "VI")
TRAIN, TEST = 80, 200  # digits of ntk-eq4: the kernel of all outputs with all is written out
LAYERS = ("conv4.*", "bn4.*", "fc.*")  # of its S4 that are linearised
EPOCHS = 8
DESCENT = Descent(steps=300, batch=40, lr=0.02)
ROWS, SEEDS = 2000, 3  # of Fig. 4
STEPS = 500  # of its variational inference, sixteen epochs
BATCH = 64  # rows a pass
MODELS = ("linearised network", "finite NTK")


# ------------------------------------------------------------------------------------------ inference


def _mapped(train: Design, fit: Laplace) -> Any:
    """The MAP's weights, s Jᵀ a, of the prior N(0, s I)."""
    weights = fit.weights[:, :, None].to(train.dtype)
    return ntk_adjoints(train, weights).map(lambda block: fit.scale * block[0])


@dataclass(frozen=True, eq=False)
class Kernels:
    """Tangents of the rows, and their kernels in one form: of ``train`` (``gram``), of ``test`` with it (``cross``) and
    of each row of ``test`` with itself (``prior``)."""

    train: Design
    test: Design
    form: Form
    gram: Tensor
    cross: Tensor
    prior: Tensor


_MEMORY = 2**33
"""Bytes of derivatives held at a time, four times the default: a ResNet-56 takes dozens of passes over all rows."""


def kernels_of(
    train: Design, test: Design, form: Form, told: Callable[[str], Callable[[int, int], None] | None] = lambda _: None
) -> Kernels:
    """The kernels between all outputs (``full``), or the mean of the outputs' own (``shared``).

    ``told(what)`` gives what is called with the rows done and in all of one kernel.
    """
    own = ntk_within_rows(test)
    prior = own if form == "full" else own.diagonal(dim1=1, dim2=2).mean(1)
    sides = {"kernel": (train,), "kernel with the test rows": (test, train)}
    gram, cross = (ntk(*rows, form=form, memory=_MEMORY, progress=told(what)) for what, rows in sides.items())
    return Kernels(train, test, form, gram, cross, prior)


def by_kernel(
    kernels: Kernels, targets: Tensor, centre: tuple[Tensor, Tensor] | None
) -> tuple[dict[str, Tensor], Laplace]:
    """Class probabilities (M, C) by MAP and Laplace, and the fit: see :func:`inferred`."""
    before, there = centre if centre is not None else (None, None)
    fit, _ = scale_by_evidence(kernels.gram, targets, mean=before)
    rows = kernels.cross, kernels.prior, there
    return {"MAP": fit.probabilities(*rows, by="map"), "Laplace": fit.probabilities(*rows)}, fit


def inferred(
    kernels: Kernels, targets: Tensor, centre: tuple[Tensor, Tensor] | None, descent: Descent
) -> tuple[dict[str, Tensor], Laplace]:
    """Class probabilities (M, C) by every way, and the fit of the first two.

    Args:
        kernels: those of MAP and Laplace; variational inference uses every weight.
        targets: one-hot, (N, C).
        centre: the mean function at the rows of both parts; zero if ``None``.
        descent: of variational inference.
    """
    probabilities, fit = by_kernel(kernels, targets, centre)
    start = _mapped(kernels.train, fit) if kernels.form == "full" else None
    before, there = centre if centre is not None else (None, None)
    found = variational(kernels.train, targets, base=before, prior=fit.scale**0.5, descent=descent, start=start)
    return {**probabilities, "VI": found.probabilities(kernels.test, there)}, fit


# ----------------------------------------------------------------------------------------------- Eq. 4


def digits_network(rows: Manifest, seed: int, context: Context) -> Network:
    """An S4 trained on digits at 32 px, kept in the cache."""
    config = TrainConfig(epochs=EPOCHS, schedule=Schedule(warmup=20), seed=seed)
    folder = source_folder(context.cache, f"S4-sup-digits-{seed}", config)
    pretrain(rows, output=folder, arch="s4", size=32, config=config)
    return load(str(folder))


def three_starts(gram: Tensor, targets: Tensor, scale: float, seed: int) -> tuple[list[float], float]:
    """The MAP's loss −log p(y | f) + ½ aᵀ s K a from zero and from two draws, and the loss where one draw began."""
    generator = torch.Generator().manual_seed(seed)
    starts = [torch.zeros_like(targets)]
    starts += [torch.randn(targets.shape, generator=generator, dtype=torch.float64) for _ in range(2)]
    losses = []
    for start in starts:
        fit = laplace(gram, targets, scale=scale, start=start)
        losses.append(_loss(targets, fit.mode, fit.weights))
    shared = scale * gram.double()
    drawn = (shared @ starts[1].reshape(-1)).view_as(targets) if len(gram) == targets.numel() else shared @ starts[1]
    return losses, _loss(targets, drawn, starts[1])


def _loss(targets: Tensor, logits: Tensor, weights: Tensor) -> float:
    """With mean zero."""
    return float(-(targets * torch.log_softmax(logits, 1)).sum() + 0.5 * (weights * logits).sum())


def _classes(manifest: Manifest) -> Tensor:
    return torch.as_tensor(manifest.labels.values).long()


def generalised(rows: Manifest, network: Network, seed: int) -> dict[str, float]:
    """Figures of the finite NTK on some digits.

    Returns:
        accuracies by way; ``loss apart``: the largest relative difference of the MAP's losses; ``loss apart at the
        start``; ``least eigenvalue`` of Laplace's covariances over the largest prior variance, and of the prior less
        twice what the data explain.
    """
    train, held = rows.part("train").limit(TRAIN, seed), rows.part("test")
    test = held.take(np.arange(min(TEST, len(held))))  # drawn by the seed already
    one_hot = functional.one_hot(_classes(train), len(network.about.classes)).double()
    here, there = (Tangent(network, list(LAYERS), part, batch_size=100) for part in (train, test))
    kernels = kernels_of(here, there, "full")
    probabilities, fit = inferred(kernels, one_hot, None, replace(DESCENT, seed=seed))
    losses, first = three_starts(kernels.gram, one_hot, fit.scale, seed)
    covariance = fit.covariance(kernels.cross, kernels.prior)
    prior = fit.scale * kernels.prior.double()
    unit = float(prior.diagonal(dim1=1, dim2=2).max())
    least = min(losses)
    truth = _classes(test)
    return {
        **{f"{way} accuracy": 100 * float((p.argmax(1) == truth).double().mean()) for way, p in probabilities.items()},
        "loss apart": (max(losses) - least) / abs(least),
        "loss apart at the start": (first - least) / abs(least),
        "least eigenvalue": float(torch.linalg.eigvalsh(covariance).min()) / unit,
        "least eigenvalue, explained twice": float(torch.linalg.eigvalsh(2 * covariance - prior).min()) / unit,
    }


def run_digits(context: Context) -> Result:
    """Every seed: its digits, its S4."""
    context.mini_only()

    def of(seed: int) -> dict[str, float]:
        rows = task("digits", context.data, seed)
        return generalised(rows, digits_network(rows, seed, context), seed)

    arms = without_tasks(by_seed(context, of))
    notes = {"rows": [TRAIN, TEST], "linearised": list(LAYERS), "network": f"S4, {EPOCHS} epochs of 1,000 digits"}
    return Result(arms, {}, context.seeds, seeds_gate(context.seeds), notes)


def _one_loss(result: Result) -> Outcome:
    return bound(result.one("loss apart"), at_most=1e-6, statistic="max", what="losses of three starts apart")


def _semidefinite(result: Result) -> Outcome:
    return bound(
        result.one("least eigenvalue"), at_least=-1e-8, statistic="min", what="least eigenvalue over the prior variance"
    )


def _near_map(result: Result) -> Outcome:
    centre = result.one("MAP accuracy")
    return all_of([about(result.one(f"{way} accuracy"), centre, 2, names=(way, "MAP")) for way in WAYS[1:]])


def _halved(result: Result) -> Result:
    """Ways that have lost half of what they had right."""
    halves = {f"{way} accuracy": {"all": [v / 2 for v in result.one(f"{way} accuracy")]} for way in WAYS[1:]}
    return Result({**result.arms, **halves}, result.axes, result.seeds, result.gates, result.notes)


# -------------------------------------------------------------------------------------------- Figure 4


def figures(probabilities: Tensor, manifest: Manifest) -> dict[str, float]:
    """Accuracy in per cent, negative log-likelihood, expected calibration error in per cent."""
    response = Response.of(manifest.labels.kind, manifest.labels.classes, manifest.labels.values)
    right = (probabilities.argmax(1) == _classes(manifest)).double().mean()
    return {
        "accuracy": 100 * float(right),
        "NLL": nll(response, probabilities),
        "ECE": 100 * ece(response, probabilities),
    }


def _sides(bench: Bench, place: Place, batch_size: int) -> tuple[Tangent, Tangent]:
    """Of all weights, at the training and the test rows."""
    network, rows = bench.network(place.network, place.seed), bench.rows(place.task, place.seed)
    here, there = (Tangent(network, "*", rows.part(part), batch_size=batch_size) for part in ("train", "test"))
    return here, there


def _outputs(bench: Bench, place: Place, part: str) -> Tensor:
    """The network's own, without the activations that a tangent would keep for its products."""
    network = bench.network(place.network, place.seed)
    rows = ManifestRows.of(network, bench.rows(place.task, place.seed).part(part), workers=0)
    return logits(network.module, rows, bench.context.device).double()


def _centre(model: str, bench: Bench, place: Place) -> tuple[Tensor, Tensor] | None:
    """The mean function of a model at the rows of both parts."""
    return (_outputs(bench, place, "train"), _outputs(bench, place, "test")) if model == MODELS[0] else None


def _one_hot(bench: Bench, place: Place, classes: int) -> Tensor:
    return functional.one_hot(_classes(bench.rows(place.task, place.seed).part("train")), classes).double()


def _by_kernel(bench: Bench, place: Place, batch_size: int) -> dict[str, Any]:
    """Of both models MAP and Laplace with one kernel for all outputs, and what was ``said``."""
    here, there = _sides(bench, place, batch_size)

    def told(what: str) -> Callable[[int, int], None]:
        return bench.told(f"{what} of {place.network}, seed {place.seed}")

    kernels = kernels_of(here, there, "shared", told)
    test, one_hot = bench.rows(place.task, place.seed).part("test"), _one_hot(bench, place, here.n_outputs)
    found: dict[str, Any] = {}
    for model in MODELS:
        probabilities, fit = by_kernel(kernels, one_hot, _centre(model, bench, place))
        said = {"scale": fit.scale, "residual": fit.status.residual}
        found[model] = {**{way: figures(each, test) for way, each in probabilities.items()}, "said": said}
    return found


KERNEL = Arm("linearized-classes-kernel", 1, _by_kernel)
"""Nearly half of what Figure 4 costs: what is kept of the kernels is what came of them."""


def _by_weights(bench: Bench, place: Place, model: str, steps: int, batch_size: int) -> dict[str, Any]:
    """Of one model variational inference with every weight, and what was ``said``."""
    here, there = _sides(bench, place, batch_size)
    scale = bench.measure(KERNEL, place.network, place.task, place.seed, batch_size=batch_size)[model]["said"]["scale"]
    before, after = _centre(model, bench, place) or (None, None)
    told = bench.told(f"{model}, steps with {place.network}, seed {place.seed}")
    found = variational(
        here,
        _one_hot(bench, place, here.n_outputs),
        base=before,
        prior=scale**0.5,
        descent=Descent(steps=steps, seed=place.seed),
        progress=lambda done, total, _: told(done, total),
    )
    test = bench.rows(place.task, place.seed).part("test")
    return {"VI": figures(found.probabilities(there, after), test), "said": {"VI": found.status.message}}


WEIGHTS = Arm("linearized-classes-weights", 1, _by_weights)


def _figure4(bench: Bench, place: Place, steps: int = STEPS, batch_size: int = BATCH) -> dict[str, Any]:
    """Of the network and, by model and way, of its linearisations at all weights."""
    test = bench.rows(place.task, place.seed).part("test")
    found: dict[str, Any] = {"network": figures(torch.softmax(_outputs(bench, place, "test"), 1), test)}
    where = place.network, place.task, place.seed
    by_model = bench.measure(KERNEL, *where, batch_size=batch_size)
    for model in MODELS:
        weights = bench.measure(WEIGHTS, *where, model=model, steps=steps, batch_size=batch_size)
        each = {**by_model[model], **weights, "said": {**by_model[model]["said"], **weights["said"]}}
        found |= {f"{model}, {what}": value for what, value in each.items()}
    found["form error"] = form_error(_sides(bench, place, batch_size)[0], "shared")
    return found


FIGURE4 = Arm("linearized-classes", 1, _figure4)
"""The network beside its linearisations; the error of one kernel for all outputs is said."""


def bench_of(context: Context) -> Bench:
    """2,000 labelled rows of cifar10, three seeds.

    Raises:
        RecipeError: at scale full.
    """
    context.mini_only()
    return Bench(
        context.first(SEEDS),
        tasks=("cifar10",),
        rows=partial(task, rows=ROWS),
        kinds=KINDS,
    )


def measured_on(bench: Bench, networks: Sequence[str] = ("R20", "R56"), **parameters: Any) -> Result:
    """Both networks on every seed."""
    arms: dict[str, dict[str, list[float]]] = {}
    notes: dict[str, Any] = {}
    places = {name: [Place(name, bench.tasks[0], seed) for seed in bench.seeds] for name in networks}
    every = list(chain.from_iterable(places.values()))
    bench.ahead(FIGURE4, every, **parameters)
    weights = {"steps": STEPS, "batch_size": BATCH, **parameters}
    for model in reversed(MODELS):  # before it waits for another run's, which begins with the first
        bench.ahead(WEIGHTS, bench.unknown(FIGURE4, every, **parameters), model=model, **weights)
    for number, name in enumerate(networks):
        for value in (bench.measure(FIGURE4, name, place.task, place.seed, **parameters) for place in places[name]):
            for what in ("network", *(f"{model}, {way}" for model in MODELS for way in WAYS)):
                for figure, number_of in value[what].items():
                    arms.setdefault(f"{what}: {figure}", {}).setdefault(name, []).append(number_of)
            notes.setdefault("form error", {}).setdefault(name, []).append(value["form error"])
        if bench.context.progress:
            bench.context.progress(number + 1, len(networks))
    return Result(arms, {}, bench.seeds, seeds_gate(bench.seeds, SEEDS), notes)


def run_figure4(context: Context) -> Result:
    """Both rows have the same numbers."""
    return measured_on(bench_of(context))


def _near(model: str, margin: float) -> Any:
    """As in the paper's figure, by variational inference."""

    def check(result: Result) -> Outcome:
        own, network = f"{model}, VI: accuracy", "network: accuracy"
        return all_of(
            [
                at_least(
                    result.arm(own, [name])[0],
                    result.arm(network, [name])[0],
                    margin,
                    names=(f"{model}, {name}", "net"),
                )
                for name in result.arms[own]
            ]
        )

    return check


def _over_confident(result: Result) -> Outcome:
    return all_of(
        [
            greater(
                result.arm(f"{model}, VI: {figure}", [name])[0], result.arm(f"network: {figure}", [name])[0],
                names=(f"{figure} of the {model}, {name}", "the network's"),
            )
            for figure in ("ECE", "NLL")
            for model in MODELS
            for name in result.arms[f"network: {figure}"]
        ]
    )  # fmt: skip


MEASURED: dict[str, Measured] = {
    "ntk-eq4": Measured(
        run_digits,
        {"a": _one_loss, "b": _semidefinite, "c": _near_map},
        {
            "a": swap("loss apart", "loss apart at the start"),
            "b": swap("least eigenvalue", "least eigenvalue, explained twice"),
            "c": _halved,
        },
    ),
    "ntk-fig4-acc": Measured(
        run_figure4,
        {"a": _near(MODELS[0], 3), "b": _near(MODELS[1], 5)},
        {
            "a": swap(f"{MODELS[0]}, VI: accuracy", "network: NLL"),
            "b": swap(f"{MODELS[1]}, VI: accuracy", "network: NLL"),
        },
    ),
    "ntk-fig4-cal": Measured(run_figure4, {"": _over_confident}, {"": swap(f"{MODELS[0]}, VI: ECE", "network: ECE")}),
}
