"""Fisher products: the exact one and the finite difference of paper 001, beside what autograd and curvlinops give.

A product is F v for a random v, F the Fisher matrix of the mean cross-entropy of one batch in *all* parameters. Every
figure is in units of one gradient of that loss on the same batch: the median over the repetitions, each product over
the gradient of its own turn, with the least and the largest behind it (``times_gradient``, ``times_gradient_range``).

``exact``: ``regraft.diagnose.fisher``. ``difference``: ``DifferenceFisher``. ``linearize``: ``torch.func.linearize``
and the backward pass of a graph that is kept. ``double``: the divergence KL(p ‖ p) differentiated twice, anew at every
product; ``double_kept``: the same with the graph of its gradient kept. ``curvlinops``: its ``GGNLinearOperator``, where
it is installed (it is no dependency, for it asks for torchvision and seven packages more). What is made once
(``made_s``) is not part of a product. ``gradient_last``: the gradient itself with channels last in memory, which the
exact product uses where it helps; the unit is the gradient as PyTorch computes it when nobody asks for that.

``error``: ‖F̃v − Fv‖ / ‖Fv‖ of ours, Fv by ``torch.func`` in float64; ``errors``: of each. Where a unit stands at the
kink of a ReLU to rounding, float32 may take the other side, and all float32 products but the difference may be off
alike. ``steps``: the error of the finite difference against the exact product by step, the median over vectors.
"""

from __future__ import annotations

import copy
import importlib
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from common import Row, interleaved, note, parser, report, synchronised
from regraft.diagnose import DifferenceFisher, fisher, product_error
from regraft.network import ArrayPreprocess, Network, from_module
from regraft.network.architectures import build
from regraft.reproduce.sources import pack_network

STEPS = (1e-3, 3e-4, 1e-4, 3e-5)


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--repeats", type=int, default=15, help="turns (default: %(default)s)")
    options.add_argument("--device", default="cpu", help="where the networks run (default: %(default)s)")
    arguments = options.parse_args()
    torch.backends.cudnn.allow_tf32 = False  # on a GPU, for all alike
    repeats = min(arguments.repeats, 5) if arguments.quick else arguments.repeats
    rows = []
    for name, network, size in _cases(arguments.data, arguments.quick):
        rows.append(_row(name, network.to(arguments.device), size, repeats))
        note(f"{name}: {rows[-1].more['times_gradient']}")
    names = ("exact", "difference", "linearize", "double", "double_kept", "curvlinops", "gradient_last")
    flat = [Row(r.case, r.ours_s, r.peer, r.peer_s, r.floor_s, r.error, {**r.more, **_shown(r, names)}) for r in rows]
    columns = ("case", *names, "error", "difference_error")
    more = {"device": arguments.device, "threads": torch.get_num_threads(), "unit": "gradients"}
    report("fisher", flat, arguments.json, columns=columns, **more)


def _shown(row: Row, names: tuple[str, ...]) -> dict[str, Any]:
    """The figures of a row as columns of the table."""
    return {**{name: row.more["times_gradient"].get(name) for name in names},
            "difference_error": row.more["errors"]["difference"]}  # fmt: skip


def _cases(data: Path, quick: bool) -> list[tuple[str, Network, int]]:
    torch.manual_seed(0)
    mlp = build("mlp", {"classes": 10, "size": 28, "width": 512, "depth": 4, "in_channels": 1})
    small = build("s4", {"classes": 10})
    cases = [
        ("MLP 784-512×4-10", from_module(mlp, ArrayPreprocess((1, 28, 28)), name="mlp"), 256),
        ("S4 (four convolutions)", from_module(small, ArrayPreprocess((3, 32, 32)), name="s4"), 64),
    ]
    if (data / "weights").is_dir():
        cases.append(("CIFAR ResNet-20", pack_network("R20", data), 64))
        if not quick:
            cases.append(("MobileNetV1-0.25 128 px", pack_network("V1a", data), 32))
    else:
        note(f"no data pack at {data}: the pretrained networks are left out")
    return cases


def _row(name: str, network: Network, size: int, repeats: int) -> Row:
    batch = network.example(size)
    params = {key: value.detach().clone().requires_grad_(True) for key, value in network.params.items()}
    leaves = list(params.values())
    vector = torch.randn(sum(leaf.numel() for leaf in leaves), generator=torch.Generator().manual_seed(1))
    vector = vector.to(network.device)
    with torch.no_grad():
        outputs = network(params, {}, batch)
    labels = outputs.argmax(1)
    made: dict[str, float] = {}

    def timed(key: str, make: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = make()
        made[key] = time.perf_counter() - began
        return result

    exact = timed("exact", lambda: fisher(network, batch, batch_size=size))
    difference = timed("difference", lambda: DifferenceFisher(network, batch, batch_size=size))
    if list(exact.shapes) != list(params):
        raise RuntimeError(f"{name}: the parameters come in another order")
    alternatives: dict[str, Callable[[], Any]] = {
        "gradient": lambda: torch.autograd.grad(functional.cross_entropy(network(params, {}, batch), labels), leaves),
        "exact": lambda: exact.apply(vector),
        "difference": lambda: difference.apply(vector),
        "linearize": timed("linearize", lambda: _linearized(network, params, batch, vector)),
        "double": lambda: _double(network, params, batch, outputs, vector),
        "double_kept": timed("double_kept", lambda: _double_kept(network, params, batch, outputs, vector)),
    }
    if isinstance(batch, Tensor) and batch.ndim == 4 and batch.shape[1] > 1:
        alternatives["gradient_last"] = _gradient_last(network, batch, labels)
    peer = timed("curvlinops", lambda: _curvlinops(network, batch, labels, vector))
    if peer is not None:
        alternatives["curvlinops"] = peer
    ready = {key: synchronised(run, network.device) for key, run in alternatives.items()}
    seconds, results = interleaved(ready, repeats=repeats, warmups=2)
    wanted = _truth(network, batch, vector)
    products = {key: _flat(value).double() for key, value in results.items() if not key.startswith("gradient")}
    errors = {key: float((value - wanted).norm() / wanted.norm()) for key, value in products.items()}
    ratios = {key: [a / b for a, b in zip(seconds[key].every, seconds["gradient"].every)] for key in seconds}
    reference = "curvlinops" if peer is not None else "double"
    probes = 2 if repeats <= 5 else 5
    more = {
        "times_gradient": {key: statistics.median(values) for key, values in ratios.items()},
        "times_gradient_range": {key: [min(values), max(values)] for key, values in ratios.items()},
        "errors": errors,
        "steps": {
            step: product_error(DifferenceFisher(network, batch, step=step), exact, probes=probes).median
            for step in STEPS
        },
        "made_s": made,
        "rows": size,
        "parameters": len(vector),
        "bytes_per_row": exact.design.cost.bytes_per_row,
        "path": list(exact.design.path),
    }
    return Row.timed(
        name,
        seconds["exact"],
        peer=(reference, seconds[reference]),
        floor=seconds["gradient"],
        error=errors["exact"],
        more=more,
    )


def _gradient_last(network: Network, batch: Tensor, labels: Tensor) -> Callable[[], Any]:
    """The gradient with channels last in memory, as our products keep what they can."""
    module = _Whole(network).to(memory_format=torch.channels_last)
    leaves = [value.requires_grad_(True) for value in module.parameters()]
    given = batch.contiguous(memory_format=torch.channels_last)
    return lambda: torch.autograd.grad(functional.cross_entropy(module(given), labels), leaves)


def _flat(product: Any) -> Tensor:
    return product if isinstance(product, Tensor) else torch.cat([part.reshape(-1) for part in product])


def _pieces(params: dict[str, Tensor], vector: Tensor) -> dict[str, Tensor]:
    pieces = vector.split([value.numel() for value in params.values()])
    return {key: piece.view(value.shape) for (key, value), piece in zip(params.items(), pieces)}


def _curved(outputs: Tensor, step: Tensor) -> Tensor:
    """The Hessian of the mean cross-entropy in the logits, times a step."""
    chance = torch.softmax(outputs, 1)
    return chance * (step - (chance * step).sum(1, keepdim=True)) / len(outputs)


def _linearized(network: Network, params: dict[str, Tensor], batch: Any, vector: Tensor) -> Callable[[], Any]:
    fixed, pieces = {key: value.detach() for key, value in params.items()}, _pieces(params, vector)
    with warnings.catch_warnings(), network.policy.differentiable():
        warnings.simplefilter("ignore")  # of a constant that its graph folds
        outputs, push = torch.func.linearize(lambda p: network(p, {}, batch), fixed)
    kept = network(params, {}, batch)

    def product() -> Any:
        with torch.no_grad():
            step = _curved(outputs, push(pieces))
        return torch.autograd.grad(kept, list(params.values()), step, retain_graph=True)

    return product


def _divergence(network: Network, params: dict[str, Tensor], batch: Any, outputs: Tensor) -> tuple[Tensor, ...]:
    """The gradient, with its graph, of the mean KL(p ‖ p(θ')) at θ' = θ."""
    logs = torch.log_softmax(network(params, {}, batch), 1)
    value = functional.kl_div(logs, torch.log_softmax(outputs, 1), reduction="batchmean", log_target=True)
    return torch.autograd.grad(value, list(params.values()), create_graph=True)


def _double(network: Network, params: dict[str, Tensor], batch: Any, outputs: Tensor, vector: Tensor) -> Any:
    with network.policy.differentiable():
        gradient = _divergence(network, params, batch, outputs)
        pieces = _pieces(params, vector).values()
        return torch.autograd.grad(gradient, list(params.values()), list(pieces))


def _double_kept(
    network: Network, params: dict[str, Tensor], batch: Any, outputs: Tensor, vector: Tensor
) -> Callable[[], Any]:
    with network.policy.differentiable():
        gradient = _divergence(network, params, batch, outputs)
    pieces, leaves = list(_pieces(params, vector).values()), list(params.values())
    return lambda: torch.autograd.grad(gradient, leaves, pieces, retain_graph=True)


def _curvlinops(network: Network, batch: Any, labels: Tensor, vector: Tensor) -> Callable[[], Any] | None:
    try:
        library = importlib.import_module("curvlinops")
    except ImportError as error:
        note(f"curvlinops is left out: {error}")
        return None
    module = _Whole(network)
    named = dict(module.named_parameters())
    params: Any = {f"inner.{key}": named[f"inner.{key}"] for key in network.params}
    for value in params.values():
        value.requires_grad_(True)
    loss = torch.nn.CrossEntropyLoss()
    try:
        operator = library.GGNLinearOperator(module, loss, params, [(batch, labels)], check_deterministic=False)
    except (TypeError, AttributeError):  # earlier versions take a list
        operator = library.GGNLinearOperator(
            module, loss, list(params.values()), [(batch, labels)], check_deterministic=False
        )
    return lambda: operator @ vector


class _Whole(torch.nn.Module):
    """The network's own module, whose outputs are logits."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.inner = copy.deepcopy(network.module)

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x)
        return out if isinstance(out, Tensor) else out.logits


def _truth(network: Network, batch: Any, vector: Tensor) -> Tensor:
    """F v in float64."""
    params = {key: value.double() for key, value in network.params.items()}
    buffers = {key: b.double() if b.is_floating_point() else b for key, b in network.buffers.items()}

    def outputs(p: Any) -> Tensor:
        return network(p, buffers, batch.double())

    with network.policy.differentiable():
        found, moved = torch.func.jvp(outputs, (params,), (_pieces(params, vector.double()),))
        pulled = torch.func.vjp(outputs, params)[1](_curved(found, moved))[0]
    return _flat(list(pulled.values()))


if __name__ == "__main__":
    main()
