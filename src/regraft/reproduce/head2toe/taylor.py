"""Row h2t-taylor: fine-tuning, linearised, is a sum of activations times coefficients (Head2Toe, §3.1).

With z_l = W_l h_l + b_l the first-order change of an output F under a step Δ of all weights is

    Σ_l ⟨∂F/∂z_l, ΔW_l h_l + Δb_l⟩ = Σ_l Σ_i h_{l,i} c_{l,i}(x),   c_{l,i}(x) = Σ_j ΔW_{l,ji} ∂F/∂z_{l,j},

the bias being the coefficient of an activation that is 1. The coefficients depend on x; the paper's conjecture is
that they do so little enough for *one* linear head on all activations to stand for the fine-tuned network.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from regraft.data import Manifest, scan
from regraft.features import Taps, plan, sweep
from regraft.graft.adapted.model import Adapted
from regraft.graft.adapted.view import View
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.outputs import logits
from regraft.graft.loop.train import Optimiser, Schedule, TrainConfig
from regraft.graft.training.finetune import finetune
from regraft.graft.training.grafted import Grafted
from regraft.heads import Response, solve
from regraft.linear import Dense, FeatureDesign
from regraft.network import Network
from regraft.network.seeding import seeded
from regraft.reproduce.arms import seeds_gate
from regraft.reproduce.outcome import Outcome
from regraft.reproduce.packs import DATA
from regraft.reproduce.pieces import by_seed
from regraft.reproduce.result import Result, swap
from regraft.reproduce.row import Check, Context
from regraft.reproduce.sources import supervised_source
from regraft.reproduce.tasks import task
from regraft.reproduce.words import bound, share

__all__ = ["CHECKS", "DISTURB", "first_order", "gently", "identity_errors", "linear_fit", "perceptron", "run"]

WIDTHS = (64, 32, 32, 10)  # of the perceptron on scikit-learn's digits
GENTLE = TrainConfig(
    steps=300,
    batch_size=64,
    optimiser=Optimiser(lr=1e-3, weight_decay=0.0, clip=1.0),
    schedule=Schedule(warmup=10),
)
"""Found on other targets (mnist, usps): the logits move by 11 to 22 %, and the accuracy by a point."""
SOURCE, TARGET = "cifar10_jpeg75", "fashion"

Found = dict[str, float]


# --------------------------------------------------------------------------------------- the identity


def first_order(layers: Sequence[nn.Linear], inputs: Tensor, delta: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Activations times coefficients, layer by layer: the paper's sum, for a perceptron with ReLUs between layers.

    Args:
        layers: L linear layers.
        inputs: (n, d).
        delta: for each layer (ΔW, Δb).

    Returns:
        (L, n, C): what each layer contributes to the first-order change of each output.
    """
    activations, sums = [], []
    value = inputs
    for number, layer in enumerate(layers):
        activations.append(value)
        value = (value @ layer.weight.T + layer.bias).requires_grad_()
        sums.append(value)
        value = torch.relu(value) if number + 1 < len(layers) else value
    terms = []
    for output in range(value.shape[1]):
        slopes = torch.autograd.grad(value[:, output].sum(), sums, retain_graph=True)
        each = []
        for hidden, slope, (weight, bias) in zip(activations, slopes, delta):
            coefficients = slope @ weight  # c_{l,i}(x), (n, width)
            each.append((hidden * coefficients).sum(1) + slope @ bias)
        terms.append(torch.stack(each))
    return torch.stack(terms, dim=2).detach()


def perceptron(seed: int) -> tuple[list[nn.Linear], Tensor, list[tuple[Tensor, Tensor]]]:
    """A float64 perceptron trained on the digits 0-4, the rows of 5-9, and its step when it is fine-tuned on them."""
    loaded = load_digits()
    pixels = torch.from_numpy(loaded.data / 16.0)
    labels = torch.from_numpy(loaded.target).long()
    with seeded(seed):
        layers = [nn.Linear(a, b).double() for a, b in itertools.pairwise(WIDTHS)]
    module = nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])
    _descend(module, pixels[labels < 5], labels[labels < 5], 200, 0.1)
    before = [(layer.weight.detach().clone(), layer.bias.detach().clone()) for layer in layers]
    rows = pixels[labels >= 5]
    _descend(module, rows, labels[labels >= 5], 20, 0.01)
    delta = [(layer.weight.detach() - w, layer.bias.detach() - b) for layer, (w, b) in zip(layers, before)]
    with torch.no_grad():
        for layer, (weight, bias) in zip(layers, before):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    return layers, rows, delta


def _descend(module: nn.Module, inputs: Tensor, labels: Tensor, steps: int, rate: float) -> None:
    for _ in range(steps):
        module.zero_grad()
        functional.cross_entropy(module(inputs), labels).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= rate * parameter.grad  # type: ignore[operator,misc]


def identity_errors(seed: int) -> dict[str, float]:
    """Largest errors, relative to the largest first-order change, over rows and outputs.

    ``identity``: the paper's sum against the derivative by forward-mode differentiation. ``without a layer``: the
    same sum with the first layer's term left out. ``remainder``: the derivative against the true change.
    """
    layers, rows, delta = perceptron(seed)
    terms = first_order(layers, rows, delta)

    def outputs(*tensors: Tensor) -> Tensor:
        value = rows
        for number in range(len(layers)):
            value = value @ tensors[2 * number].T + tensors[2 * number + 1]
            value = torch.relu(value) if number + 1 < len(layers) else value
        return value

    weights = tuple(t.detach() for layer in layers for t in (layer.weight, layer.bias))
    steps = tuple(t for pair in delta for t in pair)
    value, slope = torch.func.jvp(outputs, weights, steps)  # type: ignore[misc]
    true = outputs(*(w + s for w, s in zip(weights, steps))) - value
    scale = float(slope.abs().max())
    return {
        "identity": float((terms.sum(0) - slope).abs().max()) / scale,
        "without a layer": float((terms[1:].sum(0) - slope).abs().max()) / scale,
        "remainder": float((true - slope).abs().max()) / scale,
    }


# ------------------------------------------------------------------------- a network that was fine-tuned


def gently(network: Network, manifest: Manifest, more: Manifest, seed: int, config: TrainConfig = GENTLE) -> Found:
    """Fine-tune all weights a little from a head that is solved first, and fit the logits by linear heads.

    The head is solved on the frozen last layer (logistic, its penalty chosen by 5 folds), so that the weights move
    little; then all weights are trained, the statistics of BatchNorm staying as they are. The fits need no labels,
    so they may have more rows than training had.

    Args:
        network: the source.
        manifest: the target; trained on its part ``train``, and R² is measured on its part ``test``.
        more: the rows that the linear heads are fitted on.
        seed: of folds and batches.
        config: how it is trained.

    Returns:
        ``all``, ``last``, ``first``: R² of ridge heads fitted to the fine-tuned network's logits: on the features of
        all layers, of the last one, and of the first alone; ``moved``: the relative change of the logits by training;
        ``head``, ``tuned``: test accuracies in points.
    """
    parts = {"train": manifest.part("train"), "test": manifest.part("test"), "more": more}
    features = {part: _features(network, rows) for part, rows in parts.items()}
    response = _response(parts["train"])
    names = list(features["train"])
    design = FeatureDesign({names[-1]: Dense(features["train"][names[-1]])}, response.n_outputs)
    head = solve(design, response, forms=("logistic",), folds=_folds(len(response), seed), metric="accuracy").readout
    wanted = plan(network, [Taps(("embedding",), (None,))])
    begin = Adapted(network, wanted, View("none"), head, response.kind, response.classes)
    rows = {part: ManifestRows.of(network, found, workers=0) for part, found in parts.items()}
    tuned = finetune(begin, parts["train"], dataclasses.replace(config, seed=seed), rows=rows["train"]).adapted
    before = logits(Grafted(begin), rows["test"])
    after = {part: logits(Grafted(tuned), rows[part]) for part in ("more", "test")}
    change, level = after["test"] - before, before - before.mean(0)
    labels = rows["test"].labels
    out = {
        "moved": float(change.norm() / level.norm()),
        "head": _points(before, labels),
        "tuned": _points(after["test"], labels),
    }
    for what, chosen in (("all", names), ("last", names[-1:]), ("first", names[:1])):
        x = {part: torch.cat([features[part][name] for name in chosen], 1) for part in after}
        out[what] = linear_fit(x, after, _folds(len(more), seed))
    return out


def _folds(rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(rows) % 5


def linear_fit(features: Mapping[str, Tensor], targets: Mapping[str, Tensor], folds: np.ndarray) -> float:
    """R² on the rows ``test`` of a ridge head fitted on ``more``, its penalty chosen by ``folds``.

    Features are standardised with the fitted rows' means and deviations, so that layers of any scale count.
    R² is one number over all outputs: 1 − Σ (y − f)² / Σ (y − ȳ)², ȳ each output's mean over the test rows.
    """
    mean, deviation = features["more"].mean(0), features["more"].std(0)
    scale = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    x = {part: Dense((value - mean) / scale) for part, value in features.items()}
    outputs = targets["more"].shape[1]
    response = Response.of("regression", [str(i) for i in range(outputs)], targets["more"].numpy())
    found = solve(FeatureDesign({"x": x["more"]}, outputs), response, folds=folds, metric="r2")
    predicted = found.readout.logits(FeatureDesign({"x": x["test"]}, outputs)).double()
    wanted = targets["test"].double()
    return float(1 - (wanted - predicted).square().sum() / (wanted - wanted.mean(0)).square().sum())


def _features(network: Network, manifest: Manifest) -> dict[str, Tensor]:
    """Features (N, width) by layer, pooled to about 512 each, the last layer last; no logits."""
    wanted = plan(network, [Taps(("activation", "embedding"), (512,))])
    store = sweep(network, manifest, wanted, workers=0)
    return {name: matrix.rows(slice(0, store.rows)).float() for name, matrix in store.matrices().items()}


def _response(manifest: Manifest) -> Response:
    return Response.of(manifest.labels.kind, manifest.labels.classes, manifest.labels.values)


def _points(outputs: Tensor, labels: Tensor) -> float:
    return 100.0 * float((outputs.argmax(1) == labels).double().mean())


# ------------------------------------------------------------------------------------------- the row


def run(context: Context) -> Result:
    """Both parts for every seed; the seed draws the perceptron, the source and the target's rows."""
    context.mini_only()
    identities = [identity_errors(seed) for seed in context.seeds]
    more = scan(context.data / DATA["fashion_mnist"]).part("train")

    def of(seed: int) -> Found:
        network, _ = supervised_source(context.data / DATA[SOURCE], seed, context.cache)
        return gently(network, task(TARGET, context.data, seed), more, seed)

    found = by_seed(context, of)
    arms = {
        "identity error": {"all": [e["identity"] for e in identities]},
        "identity error without a layer": {"all": [e["without a layer"] for e in identities]},
        "R² all layers": {"all": [f["all"] for f in found]},
        "R² last layer": {"all": [f["last"] for f in found]},
        "R² first layer": {"all": [f["first"] for f in found]},
    }
    notes = {
        "perceptron": "64-32-32-10, ReLU, float64: trained on the digits 0-4, fine-tuned on 5-9",
        "remainder of the first order": [e["remainder"] for e in identities],
        "fine-tuning": f"S4-sup of {SOURCE} on {TARGET}, {GENTLE.steps} steps of {GENTLE.batch_size} at "
        f"{GENTLE.optimiser.lr:g} from the solved head; the fits on the target's {len(more):,} images",
        "logits moved": [f["moved"] for f in found],
        "accuracy of the head": [f["head"] for f in found],
        "accuracy when tuned": [f["tuned"] for f in found],
    }
    return Result(arms, {}, context.seeds, seeds_gate(context.seeds), notes)


def _identity(result: Result) -> Outcome:
    return bound(result.one("identity error"), at_most=1e-10, statistic="max", what="largest relative error")


def _all_layers(result: Result) -> Outcome:
    better = result.one("R² all layers") > result.one("R² last layer")
    return share(better, 1.0, what="seeds in which R² of all layers is higher")


CHECKS: dict[str, Check] = {"a": _identity, "b": _all_layers}
DISTURB = {
    "a": swap("identity error", "identity error without a layer"),
    "b": swap("R² all layers", "R² last layer"),
}
