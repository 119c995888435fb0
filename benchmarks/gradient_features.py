"""Gradient features: a step of the linear model on a network's tangents, beside fine-tuning the same block.

A *step* is J w, the gradient of the loss by the outputs, and Jᵀ of it, for a batch of 64 rows whose prefix (all
that lies below the block) is cached. Floor: the gradient of the same loss by the same block's parameters, from the
same cached input. Peer: ``torch.func.jvp`` and ``vjp`` on the same suffix. ``error``: largest difference of our
gradient from that in float64, relative to the largest entry (``torch_func_error``: the peer's; where a unit stands
at ReLU's kink to rounding, float32 may fall on the other side). ``times_fine_tuning``: median over the repetitions of
ours over the floor within one repetition, for machines whose speed drifts.

Memory: peak of a process that takes the step, of one that only runs the network, and of one that writes out the
Jacobian (in MB; ``jacobian_mb`` is what its numbers alone need).
"""

from __future__ import annotations

import copy
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from common import ROOT, Row, interleaved, note, parser, report, synchronised
from regraft.features import Tangent
from regraft.linear import Blocks
from regraft.network import ArrayPreprocess, Network, from_module, load
from regraft.network.resnet import cifar_resnet

BATCH = 64


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--device", default="cpu", help="where the network runs (default: %(default)s)")
    options.add_argument("--parts", default="step,memory", help="what to measure (default: %(default)s)")
    options.add_argument(
        "--peak", choices=("network", "tangent", "jacobian"), help="one process's peak memory, for the benchmark itself"
    )
    arguments = options.parse_args()
    if arguments.peak:
        _peak_of(arguments.peak)
        return
    torch.backends.cudnn.allow_tf32 = False  # on a GPU, for all alike
    parts, rows = arguments.parts.split(","), []
    if "step" in parts:
        cases = _cases(arguments.data, arguments.device, arguments.quick)
        rows += [_step(case, 10 if arguments.quick else 40) for case in cases]
    if "memory" in parts:
        rows.append(_memory())
    more = {"device": arguments.device, "threads": torch.get_num_threads()}
    columns = ("case", "ours_s", "peer", "peer_s", "ratio", "floor_s", "times_floor", "times_fine_tuning", "error")
    report("gradient_features", rows, arguments.json, columns=columns, **more)


def resnet() -> Network:
    """The CIFAR ResNet-20 with running statistics that are not those of a fresh network."""
    torch.manual_seed(0)
    module = _normalising(cifar_resnet(20, 10))
    return from_module(module, ArrayPreprocess((3, 32, 32)), name="cifar-resnet20")


def _normalising(module: nn.Module) -> nn.Module:
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 2)
    return module


@dataclass(frozen=True)
class Case:
    """A network, a selection of parameters, and the module's own code from the selected block upwards."""

    name: str
    network: Network
    select: str
    below: tuple[str, ...]  # modules whose inputs are cached for fine-tuning
    upwards: Callable[..., Tensor]  # (module, those inputs) → logits


def _cases(data: Any, device: str, quick: bool) -> list[Case]:
    network = resnet().to(device)
    block = network.blocks[-1]

    def above(module: nn.Module, x: Tensor) -> Tensor:
        return module.linear(module.get_submodule(block)(x).mean((2, 3)))

    def last(module: nn.Module, x: Tensor, inside: Tensor) -> Tensor:
        part = module.get_submodule(block)
        return module.linear(torch.relu(part.bn2(part.conv2(inside)) + x).mean((2, 3)))

    cases = [
        Case("ResNet-20, last block", network, f"{block}.*", (block,), above),
        Case("ResNet-20, last convolution", network, f"{block}.conv2.*", (block, f"{block}.conv2"), last),
    ]
    folder = data / "weights" / "mobilenet_v1_0.5_160"
    if not quick and folder.is_dir():
        small = load(str(folder)).to(device)
        paths = [f"mobilenet_v1.layer.{number}" for number in range(22, 26)]

        def top(module: nn.Module, x: Tensor) -> Tensor:
            for path in paths:
                x = module.get_submodule(path)(x)
            return module.classifier(module.mobilenet_v1.pooler(x).flatten(1))

        cases.append(Case(f"{folder.name}, last two blocks", small, "*.layer.2[2345].*", (paths[0],), top))
    if device != "cpu":  # where the networks above are too small to fill it
        cases += _large(device)
    return cases


def _large(device: str) -> list[Case]:
    """A ResNet-50 with random weights on images of 224 pixels: its last block, and its last stage."""
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    module = _normalising(ResNetForImageClassification(ResNetConfig(num_labels=100)))
    network = from_module(module, ArrayPreprocess((3, 224, 224)), name="resnet-50").to(device)
    stage = "resnet.encoder.stages.3.layers"

    def above(first: int) -> Callable[..., Tensor]:
        def run(module: nn.Module, x: Tensor) -> Tensor:
            for number in range(first, 3):
                x = module.get_submodule(f"{stage}.{number}")(x)
            return module.classifier(module.resnet.pooler(x))

        return run

    return [
        Case("ResNet-50, last block", network, f"{stage}.2.*", (f"{stage}.2",), above(2)),
        Case("ResNet-50, last stage", network, f"{stage}.*", (f"{stage}.0",), above(0)),
    ]


def _step(case: Case, repeats: int) -> Row:
    name, network, select = case.name, case.network, case.select
    batch = network.example(BATCH)
    ours = Tangent(network, select, batch).prepare()
    plain = Tangent(network, select, batch, fast=False).prepare()
    note(f"{name}: " + "; ".join(ours.path))
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, ours.n_outputs, (BATCH,), generator=generator).to(network.device)
    drawn = {key: torch.randn(shape, generator=generator) * 1e-2 for key, shape in ours.shapes.items()}
    weights = Blocks(drawn).to(network.device)
    alternatives = {
        "ours": lambda: _linear_step(ours, weights, labels),
        "torch.func": lambda: _linear_step(plain, weights, labels),
        "fine-tuning": _fine_tuning(case, batch, labels),
    }
    ready = {key: synchronised(run, network.device) for key, run in alternatives.items()}
    seconds, results = interleaved(ready, repeats=repeats, warmups=3)
    ratios = [a / b for a, b in zip(seconds["ours"].every, seconds["fine-tuning"].every)]
    exact = Tangent(network, select, batch, fast=False, dtype=torch.float64)
    truth = _linear_step(exact, weights.to(torch.float64), labels).flatten()
    errors = {
        key: float((results[key].flatten() - truth).abs().max() / truth.abs().max()) for key in ("ours", "torch.func")
    }
    more = {
        "torch_func_error": errors["torch.func"],
        "times_fine_tuning": statistics.median(ratios),
        "times_fine_tuning_spread": [min(ratios), max(ratios)],
        "torch_func_times_fine_tuning": statistics.median(
            a / b for a, b in zip(seconds["torch.func"].every, seconds["fine-tuning"].every)
        ),
        "path": list(ours.path),
        "parameters": ours.n_coefficients,
        "bytes_per_row": ours.cost.bytes_per_row,
    }
    return Row.timed(
        name,
        seconds["ours"],
        peer=("torch.func.jvp + vjp", seconds["torch.func"]),
        floor=seconds["fine-tuning"],
        error=errors["ours"],
        more=more,
    )


def _linear_step(design: Tangent, weights: Blocks, labels: Tensor) -> Blocks:
    """The gradient of the mean cross-entropy of f + J w by w."""
    chance = torch.softmax(design.outputs + design.apply(weights), dim=1)
    chance[torch.arange(len(labels), device=labels.device), labels] -= 1
    return design.adjoint(chance / len(labels))


def _fine_tuning(case: Case, batch: Tensor, labels: Tensor) -> Callable[[], Any]:
    """The gradient of the mean cross-entropy by the selected parameters, from the cached input of their block."""
    module, kept = copy.deepcopy(case.network.module), []
    hooks = [
        module.get_submodule(path).register_forward_pre_hook(lambda _, given: kept.append(given[0].clone()))
        for path in case.below
    ]
    with torch.no_grad():
        expected = case.network.forward(batch)
        module(batch)
    for hook in hooks:
        hook.remove()
    names = case.network.select(case.select)
    params = [parameter.requires_grad_(True) for name, parameter in module.named_parameters() if name in names]
    if not torch.allclose(case.upwards(module, *kept), expected, atol=1e-4):
        raise RuntimeError(f"{case.name}: the code from the block upwards is not the network's")

    def step() -> Any:
        return torch.autograd.grad(functional.cross_entropy(case.upwards(module, *kept), labels), params)

    return step


# ------------------------------------------------------------------------------------------- memory


def _peak_of(what: str) -> None:
    """Print the peak memory of this process in MB after one piece of work."""
    network = resnet()
    select, batch = f"{network.blocks[-1]}.*", network.example(BATCH)
    names = network.select(select)
    if what == "tangent":
        tangent = Tangent(network, select, batch)
        weights = Blocks({name: torch.randn(shape) for name, shape in tangent.shapes.items()})
        tangent.adjoint(tangent.apply(weights))
    elif what == "jacobian":
        params = {name: network.params[name] for name in names}
        torch.func.jacrev(lambda p: network(p, {}, batch))(params)
    else:
        network.forward(batch)
    # Not ru_maxrss, which starts at the parent's size.
    status = Path("/proc/self/status").read_text()
    print(next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")))


def _memory() -> Row:
    peaks = {}
    for what in ("network", "tangent", "jacobian"):
        command = [sys.executable, __file__, "--peak", what]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        peaks[what] = float(done.stdout)
    network = resnet()
    tangent = Tangent(network, None, network.example(3))
    numbers = BATCH * tangent.n_outputs * tangent.n_coefficients
    more = {
        "peak_mb": peaks,
        "above_network_mb": {what: peaks[what] - peaks["network"] for what in ("tangent", "jacobian")},
        "jacobian_mb": numbers * 4 / 2**20,
        "cached_mb": tangent.cost.bytes_per_row * BATCH / 2**20,
    }
    note(f"memory: {more}")
    return Row("ResNet-20, last block: peak memory", more=more)


if __name__ == "__main__":
    main()
