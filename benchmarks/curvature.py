"""The 20 largest Hessian eigenvalues of networks beside three peers: products, seconds, errors; products in gradients.

All searches ask for 20 eigenvalues at a tolerance of 1e-3, in float32, of the mean cross-entropy of one batch in all
parameters. Seconds are CPU seconds of one thread. Networks: an MLP 784-128-128-10 trained here on the pack's MNIST, and
the pack's CIFAR ResNet-20, each on real images.

``ours``: ``regraft.diagnose.curvature``, with the making of the graph. ``power``: the algorithm of PyHessian's
``eigenvalues`` (Yao et al., 2020), written here from its source: power iteration from a random vector, one eigenvalue
after the other, made orthogonal to those before at every step, until two estimates differ by less than the tolerance,
relatively, at most 100 products each; on our products, of one graph that is kept, as PyHessian keeps one for one batch.
It finds eigenvalues of the largest magnitude, negative ones too. ``arpack``: scipy's ``eigsh(which="LA")`` on our
products. ``curvlinops``: its ``HessianLinearOperator`` in ``eigsh``, where it is installed (it is no dependency).

``error``: the largest relative error of the 20 against Lanczos in float64 to 1e-6 (``errors``: of each alternative);
``inside``: whether each is inside its own bound. ``units``: a product in gradients of the same batch, the median over
turns and the range; ``ggn`` is that of ``regraft.diagnose.ggn``, ``double`` a Hessian product whose graph is made anew,
and ``forward`` one by forward over reverse mode.
"""

from __future__ import annotations

import importlib
import io
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor
from torch.nn import functional

from common import Row, interleaved, note, parsed, parser, report, timed
from regraft.diagnose import Hessian, Objective, curvature, ggn
from regraft.linear import Operator, lanczos
from regraft.network import ArrayPreprocess, Network, from_module
from regraft.network.architectures import build
from regraft.reproduce.sources import pack_network

K, TOL = 20, 1e-3
LIMIT = 400  # products of the power iteration where one takes long


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--repeats", type=int, default=9, help="turns of single products (default: %(default)s)")
    options.add_argument("--networks", default="mlp,resnet20", help="which (default: %(default)s)")
    arguments = parsed(options, "weights", "images")
    torch.set_num_threads(1)
    rows = []
    for name in arguments.networks.split(","):
        network, inputs, targets, limit = _case(name, arguments.data, arguments.quick)
        rows.append(_row(name, network, inputs, targets, limit, 3 if arguments.quick else arguments.repeats))
        note(json.dumps(rows[-1].more, indent=1, default=str))
    columns = ("case", "ours", "power", "arpack", "curvlinops", "error", "hessian", "ggn")
    flat = [Row(r.case, r.ours_s, r.peer, r.peer_s, r.floor_s, r.error, {**r.more, **_shown(r)}) for r in rows]
    report("curvature", flat, arguments.json, columns=columns, threads=1, unit="products; gradients a product")


def _shown(row: Row) -> dict[str, Any]:
    units = {name: row.more["units"][name]["median"] for name in ("hessian", "ggn")}
    return {**{name: found["products"] for name, found in row.more["searches"].items()}, **units}


def _case(name: str, data: Path, quick: bool) -> tuple[Network, Tensor, Tensor, int]:
    """(network, a preprocessed batch, targets, the power iteration's budget)."""
    if name == "resnet20":
        network = pack_network("R20", data)
        pictures, targets = _pictures(data / "images" / "cifar10_jpeg75" / "test.parquet", 16 if quick else 32)
        return network, network.preprocess.collate([network.preprocess(one) for one in pictures]), targets, LIMIT
    pictures, targets = _pictures(data / "images" / "mnist" / "train.parquet", 1000)
    inputs = torch.stack([torch.from_numpy(np.asarray(one.convert("L"), np.float32) / 255) for one in pictures])[
        :, None
    ]
    torch.manual_seed(0)
    module = build("mlp", {"classes": 10, "size": 28, "width": 128, "depth": 2, "in_channels": 1})
    optimiser = torch.optim.Adam(module.parameters(), 1e-3)
    for step in range(40):
        rows = torch.arange(100) + 100 * (step % 10)
        optimiser.zero_grad()
        found = module(inputs[rows])
        functional.cross_entropy(found, targets[rows]).backward()
        optimiser.step()
    rows = 256 if quick else 1000
    return from_module(module, ArrayPreprocess((1, 28, 28)), name="mlp"), inputs[:rows], targets[:rows], K * 100


def _pictures(file: Path, rows: int) -> tuple[list[Image.Image], Tensor]:
    table = pq.read_table(file).slice(0, rows)
    pictures = [Image.open(io.BytesIO(one["bytes"])).convert("RGB") for one in table["image"].to_pylist()]
    return pictures, torch.tensor(table["label"].to_pylist())


def _row(name: str, network: Network, inputs: Tensor, targets: Tensor, limit: int, repeats: int) -> Row:
    objective = Objective(network, inputs, targets, batch_size=len(inputs))
    units, timings = _units(network, objective, inputs, targets, repeats)
    truth = lanczos(Hessian(Objective(network, inputs, targets, dtype=torch.float64)), K, tol=1e-6, max_products=400)
    if not truth.converged:
        raise RuntimeError(f"{name}: {truth.message}")
    hessian = Hessian(objective)
    searches: dict[str, dict[str, Any]] = {}
    spectrum, seconds, _ = timed(lambda: curvature(objective, "hessian", K, tol=TOL))
    searches["ours"] = _found(spectrum.values, truth.values, spectrum.products, seconds)
    inside = ((spectrum.values - truth.values).abs() <= spectrum.bounds + truth.bounds).tolist()
    gauss, gauss_s, _ = timed(lambda: curvature(objective, "ggn", K, tol=TOL))
    (values, products), seconds, _ = timed(lambda: power_iteration(hessian, K, tol=TOL, limit=limit))
    searches["power"] = _found(values, truth.values, products, seconds)
    (values, products), seconds, _ = timed(lambda: _arpack(hessian.apply, objective.size))
    searches["arpack"] = _found(values, truth.values, products, seconds)
    peer = _curvlinops(network, inputs, targets)
    if peer is not None:
        (values, products), seconds, _ = timed(lambda: _arpack(peer, objective.size))
        searches["curvlinops"] = _found(values, truth.values, products, seconds)
    more = {
        "searches": searches,
        "inside": inside,
        "bounds": spectrum.bounds.tolist(),
        "values": spectrum.values.tolist(),
        "truth": truth.values.tolist(),
        "converged": spectrum.top.converged,
        "ggn_search": {"products": gauss.products, "seconds": gauss_s, "values": gauss.values.tolist()},
        "units": units,
        "rows": objective.rows,
        "parameters": objective.size,
        "loss": spectrum.loss,
        "gradient_norm": spectrum.gradient_norm,
    }
    ours, power = searches["ours"], searches["power"]
    return Row(name, ours["seconds"], "power", power["seconds"], timings["gradient"], ours["error"], more)


def _found(values: Tensor, truth: Tensor, products: int, seconds: float) -> dict[str, Any]:
    """What a search came to; errors of the algebraically largest, of as many as it found."""
    ordered = values.sort(descending=True).values
    wrong = (ordered - truth[: len(ordered)]).abs() / truth[: len(ordered)].abs()
    return {
        "products": products,
        "seconds": seconds,
        "eigenvalues": len(values),
        "negative": int((values < 0).sum()),
        "error": float(wrong.max()) if len(values) else None,
        "median_error": float(wrong.median()) if len(values) else None,
    }


def power_iteration(operator: Operator, k: int, *, tol: float, limit: int, most: int = 100) -> tuple[Tensor, int]:
    """PyHessian's ``eigenvalues(maxIter=100, tol=1e-3, top_n=k)``: the values, and the products that they took.

    ``limit`` products are the end: what is under way then is left out.
    """
    generator = torch.Generator().manual_seed(0)
    vectors: list[Tensor] = []
    values: list[float] = []
    products = 0
    while len(values) < k:
        vector = torch.randn(operator.shape[0], generator=generator)
        vector = vector / (vector.norm() + 1e-6)
        value: float | None = None
        for _ in range(most):
            if products == limit:
                return torch.tensor(values, dtype=torch.float64), products
            for other in vectors:
                vector = vector - (vector @ other) * other
            vector = vector / (vector.norm() + 1e-6)
            image = operator.apply(vector)
            products += 1
            current = float(image @ vector)
            vector = image / (image.norm() + 1e-6)
            if value is not None and abs(value - current) / (abs(value) + 1e-6) < tol:
                break
            value = current
        values.append(current)
        vectors.append(vector)
    return torch.tensor(values, dtype=torch.float64), products


def _arpack(product: Callable[[Tensor], Any], size: int) -> tuple[Tensor, int]:
    made = 0

    def matvec(vector: np.ndarray) -> np.ndarray:
        nonlocal made
        made += 1
        return np.asarray(product(torch.from_numpy(vector.astype(np.float32).reshape(-1))))

    operator = LinearOperator((size, size), matvec=matvec, dtype=np.float32)
    start = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    try:
        values = eigsh(operator, K, which="LA", tol=TOL, v0=start, return_eigenvectors=False)
    except ArpackNoConvergence as error:
        values = error.eigenvalues
    return torch.from_numpy(np.asarray(values, np.float64)), made


def _curvlinops(network: Network, inputs: Tensor, targets: Tensor) -> Callable[[Tensor], Any] | None:
    try:
        library = importlib.import_module("curvlinops")
    except ImportError as error:
        note(f"curvlinops is left out: {error}")
        return None
    named = {name: value.detach().clone().requires_grad_(True) for name, value in network.params.items()}
    module = network.module
    inner = dict(module.named_parameters())
    for name, value in named.items():
        inner[name].requires_grad_(True)
        if not torch.equal(inner[name], value):
            raise RuntimeError(f"{name} is another parameter in the module")
    loss, chosen = torch.nn.CrossEntropyLoss(), {name: inner[name] for name in named}
    try:
        operator = library.HessianLinearOperator(module, loss, chosen, [(inputs, targets)], check_deterministic=False)
    except (TypeError, AttributeError):  # earlier versions take a list
        listed = list(chosen.values())
        operator = library.HessianLinearOperator(module, loss, listed, [(inputs, targets)], check_deterministic=False)
    return lambda vector: (operator @ vector).detach()


def _units(
    network: Network, objective: Objective, inputs: Tensor, targets: Tensor, repeats: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """Products in gradients, each over the gradient of its own turn."""
    params = {name: value.detach().clone().requires_grad_(True) for name, value in network.params.items()}
    leaves, vector = list(params.values()), torch.randn(objective.size, generator=torch.Generator().manual_seed(1))
    hessian, gauss = Hessian(objective), ggn(objective)
    pieces = {n: p.view(params[n].shape) for n, p in zip(params, vector.split([v.numel() for v in leaves]))}

    def loss(point: Any) -> Tensor:
        return functional.cross_entropy(network(point, {}, inputs), targets)

    def anew() -> Any:
        gradient = torch.autograd.grad(loss(params), leaves, create_graph=True)
        return torch.autograd.grad(gradient, leaves, list(pieces.values()))

    fixed = {name: value.detach() for name, value in params.items()}
    with network.policy.differentiable():
        seconds, results = interleaved(
            {
                "gradient": lambda: torch.autograd.grad(loss(params), leaves),
                "hessian": lambda: hessian.apply(vector),
                "ggn": lambda: gauss.apply(vector),
                "double": anew,
                "forward": lambda: torch.func.jvp(torch.func.grad(loss), (fixed,), (pieces,))[1],
            },
            repeats=repeats,
            clock=time.process_time,
        )
    wanted = torch.cat([part.detach().reshape(-1) for part in results["double"]])
    if float((results["hessian"] - wanted).norm() / wanted.norm()) > 1e-3:
        raise RuntimeError("the products differ")
    units = {}
    for name, timing in seconds.items():
        ratios = [own / unit for own, unit in zip(timing.every, seconds["gradient"].every)]
        units[name] = {"median": statistics.median(ratios), "range": [min(ratios), max(ratios)]}
    return units, {name: timing.median for name, timing in seconds.items()}


if __name__ == "__main__":
    main()
