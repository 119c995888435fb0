"""The toy of paper 004 (Ren et al., ICLR 2023, Appendix B.1): a perceptron from all digits to three distorted ones.

MLP4 is trained on mnist; the target are the digits 0 to 2, each picture turned and zoomed at random. One trajectory of
head probing gives the heads of every τ, and fine-tuning begins at some of them. What a seed gives, for all the toy's
rows together, is one arm. As in the paper: 50 epochs of fine-tuning, a constant rate of 1e-4 for both stages; SGD with
momentum 0.9 in batches of 128, as everywhere in it. Ours: 500 rows a class (the page's), turns of up to 45 degrees,
zooms of 1 to 1.5 times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from regraft.data import Manifest, PixelImages, joined, scan
from regraft.data.hashing import hash_rows
from regraft.diagnose import drift, energy
from regraft.features import Taps, plan
from regraft.graft.adapted.model import Adapted
from regraft.graft.evidence.exchange import head_exchange
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.rows import order
from regraft.graft.loop.train import Optimiser, Schedule, TrainConfig
from regraft.graft.problem import Task
from regraft.graft.stages.training import Probe
from regraft.graft.training.finetune import finetune
from regraft.graft.training.instruments import Instruments
from regraft.graft.training.probing import probing_heads
from regraft.linear import Blocks, Dense
from regraft.network import Network
from regraft.reproduce.arms import Arm, Backbone, Bench, Place
from regraft.reproduce.packs import DATA
from regraft.reproduce.row import Context
from regraft.reproduce.sources import perceptron
from regraft.reproduce.taskhead.settings import pooled
from regraft.reproduce.tasks import classes_of

__all__ = [
    "BATCH",
    "EPOCHS",
    "LONG",
    "MOMENTUM",
    "POWERS",
    "RATE",
    "STEPS",
    "SWEEP",
    "TOY",
    "bench_of",
    "distorted",
    "kernel_norms",
    "probed_long",
    "target",
]

RATE, MOMENTUM, BATCH, EPOCHS = 1e-4, 0.9, 128, 50
LONG = 50_000
POWERS = (0, *(2**k for k in range(11)))
SWEEP = (0, 1, 4, 16, 64, 256, 1024, LONG)
"""The τ whose heads are looked at, and those that fine-tuning begins at."""
CLASSES, OF_A_CLASS = 3, 500
STEPS = EPOCHS * -(-CLASSES * OF_A_CLASS // BATCH)
TURN, ZOOM = 45.0, 1.5
PROBES = 30  # rows between which the kernel is measured
_TEST_SEED = 1_000_000


# ------------------------------------------------------------------------------------------- the rows


def distorted(pictures: np.ndarray, seed: int) -> np.ndarray:
    """Grey pictures ``(N, H, W)`` uint8, each turned by up to ±45 degrees and zoomed in 1 to 1.5 times, bilinear."""
    rng = np.random.default_rng(seed)
    angle = np.deg2rad(rng.uniform(-TURN, TURN, len(pictures)))
    zoom = rng.uniform(1.0, ZOOM, len(pictures))
    cosine, sine, zero = np.cos(angle) / zoom, np.sin(angle) / zoom, np.zeros(len(pictures))
    theta = np.stack([np.stack([cosine, -sine, zero], 1), np.stack([sine, cosine, zero], 1)], 1)
    images = torch.from_numpy(pictures).float()[:, None]
    grid = functional.affine_grid(torch.from_numpy(theta).float(), list(images.shape), align_corners=False)
    turned = functional.grid_sample(images, grid, align_corners=False)
    found: np.ndarray = turned[:, 0].round().clamp(0, 255).to(torch.uint8).numpy()
    return found


def target(name: str, data: Path, seed: int) -> Manifest:
    """Part ``train``: 500 rows a class, drawn and distorted by the seed; part ``test``: the same for every seed."""
    whole = _digits(data)
    parts = {
        "train": (whole.part("train").limit(CLASSES * OF_A_CLASS, seed), seed),
        "test": (whole.part("test"), _TEST_SEED),
    }
    return joined({part: _changed(manifest, own) for part, (manifest, own) in parts.items()}, name)


@lru_cache(maxsize=1)
def _digits(data: Path) -> Manifest:
    return classes_of(scan(data / DATA["mnist"]), CLASSES)


def _changed(manifest: Manifest, seed: int) -> Manifest:
    pictures = np.stack([np.asarray(manifest.inputs.read(row)) for row in range(len(manifest))])
    grey = pictures if pictures.ndim == 3 else pictures[..., 0]
    inputs = PixelImages(distorted(grey, seed), manifest.name)
    ids = manifest.ids
    return Manifest(manifest.name, inputs, ids, hash_rows(inputs, ids), manifest.target, manifest.split)


def _source(data: Path, cache: Path, seed: int) -> Network:
    return perceptron(data / DATA["mnist"], seed, cache)[0]


def bench_of(context: Context) -> Bench:
    """Where the toy is measured: network ``MLP4``, task ``toy``.

    Raises:
        RecipeError: at scale full.
    """
    context.mini_only()
    backbones = {"MLP4": Backbone(_source, 128, ())}
    return Bench(context, tasks=("toy",), backbones=backbones, rows=target, kinds={"toy": "near"})


# ----------------------------------------------------------------------------------------- the kernel


@torch.no_grad()
def kernel_norms(network: Network, batch: Tensor) -> Tensor:
    """``‖κ(j, n)‖_F`` ``(N, N)`` of all pairs, ``κ(j, n) = (∂z_j/∂B)(∂z_n/∂B)ᵀ``, of an MLP, exactly.

    With ``s_l = W_l a_{l−1} + b_l``, ``a_l = relu(s_l)`` and ``J_l = ∂z/∂s_l`` ``(h, w)``, the derivative in layer l's
    weights and bias is a product of ``J_l`` and ``(a_{l−1}, 1)``, so

        κ(j, n) = Σ_l (a_{l−1}(j)·a_{l−1}(n) + 1) J_l(j) J_l(n)ᵀ.

    :func:`regraft.diagnose.feature_kernel` gives the same for any network, at many times the cost.
    """
    layers = [part for name, part in network.module.named_modules() if isinstance(part, nn.Linear)][:-1]
    inputs, slopes, value = [], [], torch.flatten(batch, 1).double()
    for layer in layers:
        inputs.append(value)
        value = value @ layer.weight.double().T + layer.bias.double()
        slopes.append((value > 0).double())
        value = value.clamp_min(0)
    kernel, back = torch.zeros(()), torch.diag_embed(slopes[-1])
    for number in reversed(range(len(layers))):
        same = inputs[number] @ inputs[number].T + 1
        kernel = kernel + same[:, :, None, None] * torch.einsum("jab,ncb->jnac", back, back)
        if number:
            back = back @ layers[number].weight.double() * slopes[number - 1][:, None, :]
    return torch.linalg.matrix_norm(kernel)


# ------------------------------------------------------------------------------------------ the longest τ


def probed_long(start: Adapted, features: Tensor, codes: Tensor, epochs: int, seed: int) -> Adapted:
    """The head of :func:`regraft.graft.training.probing.probing_heads` after very many epochs, by the same steps.

    Softmax regression written out in float32, for 50,000 epochs are 600,000 steps of a tiny layer: half a minute here,
    where automatic differentiation takes ten. The batches are the training loop's.
    """
    (block,) = start.plan.blocks
    rows, answers = features.float().numpy(), np.eye(CLASSES, dtype=np.float32)[codes.numpy()]
    weight = start.readout.coefficients[block.name].float().numpy().copy()
    bias = start.readout.intercept.float().numpy().copy()
    velocity, shift = np.zeros_like(weight), np.zeros_like(bias)
    per_epoch = -(-len(rows) // BATCH)
    rate, momentum = np.float32(RATE), np.float32(MOMENTUM)
    for epoch in range(epochs):
        for batch in order(len(rows), seed, epoch, per_epoch):
            index = batch.numpy()
            inputs = rows[index]
            outputs = inputs @ weight + bias
            outputs = np.exp(outputs - outputs.max(1, keepdims=True))
            outputs /= outputs.sum(1, keepdims=True)
            pull = (outputs - answers[index]) / np.float32(len(index))
            velocity = momentum * velocity + inputs.T @ pull
            shift = momentum * shift + pull.sum(0)
            weight -= rate * velocity
            bias -= rate * shift
    held = Blocks({block.name: torch.from_numpy(weight)})
    readout = replace(start.readout, coefficients=held, intercept=torch.from_numpy(bias).double(), form="probed")
    return replace(start, readout=readout)


# ---------------------------------------------------------------------------------------------- the arm


def _toy(bench: Bench, place: Place, sweep: Sequence[int] = SWEEP, powers: Sequence[int] = POWERS) -> dict[str, Any]:
    """By τ as text: the head's start (``heads``), the training from it (``tuned``); the exchange matrix."""
    network, whole = bench.network(place.network, place.seed), bench.rows(place.task, place.seed)
    manifest, held = whole.part("train"), whole.part("test")
    rows = ManifestRows.of(network, manifest, workers=0)
    wanted = plan(network, [Taps(("embedding",), (None,))])
    before = pooled(network, wanted, rows)
    task = Task(manifest.labels, None, "accuracy", seed=place.seed)
    probe = Probe(lr=RATE, batch_size=BATCH)
    taus = sorted({0, *sweep, *powers})
    short = [tau for tau in taus if tau < LONG]
    heads = probing_heads(network, wanted, Dense(before), rows.labels, task, probe, short).by_tau
    for tau in taus[len(short) :]:
        heads[tau] = probed_long(heads[0], before, rows.labels, tau, place.seed)
    tuned, models = {}, []
    for tau in sweep:
        found, model = _tune(heads[tau], manifest, rows, task, before)
        tuned[str(tau)] = found
        models.append(model)
    return {
        "heads": {str(tau): _start(heads[tau], before, task) for tau in taus},
        "tuned": tuned,
        "sweep": list(sweep),
        "exchange": (100 * head_exchange(models, held)).tolist(),
    }


def _start(head: Adapted, features: Tensor, task: Task) -> dict[str, float]:
    """The energy of all training rows under a head, the mean of ``p₀[y]``, per cent right."""
    (block,) = head.plan.blocks
    outputs = features @ head.readout.coefficients[block.name].float() + head.readout.intercept.float()
    found = energy(outputs, task.response)
    truth = float("nan") if found.truth is None else float(found.truth.mean())
    return {"energy": found.mean, "truth": truth, "accuracy": 100 * (found.right or 0.0)}


def _tune(
    head: Adapted, manifest: Manifest, rows: ManifestRows, task: Task, before: Tensor
) -> tuple[dict[str, Any], Adapted]:
    """Fine-tune everything; how far the features of all training rows moved, and what Proposition 1 needs."""
    norms: list[float] = []

    def note(_: int, module: nn.Module) -> None:
        norms.append(float(torch.linalg.matrix_norm(module.get_parameter("weights.0").detach(), 2)))

    config = TrainConfig(
        epochs=EPOCHS, batch_size=BATCH, optimiser=Optimiser(RATE, MOMENTUM, 0.0, nesterov=False),
        schedule=Schedule("constant"), seed=task.seed,
    )  # fmt: skip
    watch = Instruments("cheap", task.seed)
    found = finetune(head, manifest, config, task=task, rows=rows, on_epoch=note, watch=watch)
    network = found.adapted.network
    moved = drift(before, pooled(network, head.plan, rows))
    probes = rows.inputs(torch.arange(0, len(rows), max(1, len(rows) // PROBES))[:PROBES])
    kernels = [float(kernel_norms(each, probes).max()) for each in (head.network, network)]
    last = found.outcome.history[-1]
    return {
        "change": moved.change, "distance": moved.distance, "dot": moved.dot, "norm": moved.norm,
        "cosine": moved.cosine, "norm before": moved.norm_before, "direction": watch.figure()["direction"]["norms"],
        "kernel": max(kernels), "head": max(norms), "loss": last.loss, "accuracy": 100 * (last.train_score or 0.0),
    }, found.adapted  # fmt: skip


TOY = Arm("taskhead-toy", 1, _toy)
"""Everything that a seed gives."""
