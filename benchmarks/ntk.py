"""Tangent kernels: Gram matrices, products and evidence, beside what `torch.func`, autograd and gpytorch give.

``gram``: ``regraft.features.ntk`` against ``torch.func.vmap(jacrev)`` in chunks of rows with one product of the whole
Jacobian with itself (``peer_times`` for a tangent that is there, ``whole_times`` with its making), and against
PyTorch's "NTK vector product" recipe (a JVP of a VJP for every pair of rows), which is timed on a few rows and *scaled*
by the number of pairs (``pairs_s``). ``error``: largest difference from float64 on a few rows, relative to the largest
entry; ``peer_error``: that of the Jacobian's product.
``product``: one K v of the operator ``tangent.gram()``, against J (Jᵀ v) by double backward, anew and with its graph
kept. ``evidence``: Gram matrix and evidence of n = 10,000 rows at one noise level, against gpytorch's conjugate
gradients and stochastic log determinant on the same matrix (its error is that of the evidence a row, in nats) and
against ours without the matrix, to a residual of 1e-2, which gives no evidence. Only where asked for: ``large``, that
alone on ``--rows`` rows, and ``operator``, gpytorch's evidence on our products, the matrix never being there, beside
ours.

Seconds are CPU-seconds of this process; with ``--device cuda``, which ``gram`` alone knows, those of the clock. Inputs
of ``evidence`` and ``large`` are normal with deviations k^-½.
"""

from __future__ import annotations

import importlib
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from common import Row, interleaved, note, parser, report, synchronised
from regraft.features import Tangent, ntk
from regraft.heads import Posterior, condition
from regraft.heads.gp.iterative import Iteration
from regraft.linear import Operator
from regraft.network import ArrayPreprocess, Network, from_module
from regraft.network.resnet import cifar_resnet
from regraft.record.ledger import peak_bytes

CHUNK, FEW, PAIRS = 50, 4, 8
RESIDUAL, SHARE = 1e-2, 0.05  # of conjugate gradients; the noise over the kernel's mean diagonal


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--parts", default="gram,product,evidence", help="what to measure (default: %(default)s)")
    options.add_argument("--repeats", type=int, default=3, help="turns of gram and product (default: %(default)s)")
    options.add_argument("--device", default="cpu", help="where gram is made (default: %(default)s)")
    options.add_argument("--rows", type=int, default=100_000, help="of large (default: %(default)s)")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # on a GPU, for all alike
    quick, parts, rows = arguments.quick, arguments.parts.split(","), []
    repeats = 1 if quick else arguments.repeats
    if "gram" in parts:
        n = 100 if quick else 500
        rows.append(_gram("MLP, 1 output", mlp(1), torch.randn(n, 784), repeats, arguments.device))
        rows.append(_gram("MLP, 10 outputs", mlp(10), torch.randn(20 if quick else 50, 784), repeats, arguments.device))
        rows.append(_gram("ResNet-20", resnet(), torch.randn(n, 3, 32, 32), repeats, arguments.device))
        rows.append(_gram("ViT", vit(), torch.randn(40 if quick else 200, 3, 32, 32), repeats, arguments.device))
    if "product" in parts:
        rows.append(_product(500 if quick else 2000, repeats))
    if "evidence" in parts:
        rows += _evidence(2000 if quick else 10_000)
    if "operator" in parts:
        rows.append(_without_matrix(2000 if quick else 10_000))
    if "large" in parts:
        rows.append(_iterated(arguments.rows))
    columns = ("case", "ours_s", "peer", "peer_s", "peer_times", "whole_times", "pairs_times", "kept_times")
    columns += ("error", "peer_error")
    more = {"device": arguments.device, "threads": torch.get_num_threads()}
    more["unit"] = "CPU-seconds" if arguments.device == "cpu" else "seconds"
    report("ntk", rows, arguments.json, columns=columns, **more)


# ------------------------------------------------------------------------------------------- networks


def mlp(outputs: int) -> Network:
    """820,481 parameters with one output."""
    torch.manual_seed(0)
    layers = (nn.Linear(784, 800), nn.Tanh(), nn.Linear(800, 240), nn.Tanh(), nn.Linear(240, outputs))
    return from_module(nn.Sequential(*layers), ArrayPreprocess((784,)), name="mlp")


def resnet() -> Network:
    """The CIFAR ResNet-20 with one output."""
    torch.manual_seed(0)
    network = from_module(cifar_resnet(20), ArrayPreprocess((3, 32, 32)), name="cifar-resnet20")
    return network.with_head(torch.randn(1, 64) * 0.1)


class Block(nn.Module):
    """Attention and two linear layers, normalised before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.first, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.first(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = parts[0] @ parts[1].mT / parts[0].shape[-1] ** 0.5
        x = x + self.out((scores.softmax(-1) @ parts[2]).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    """Patches of 4 × 4 pixels, a class token, learnt positions, one output."""

    def __init__(self, width: int = 96, depth: int = 6, heads: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, 65, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.linear(self.norm(self.blocks(x))[:, 0])


def vit() -> Network:
    """A tiny vision transformer: 65 tokens of 96 numbers, six blocks."""
    torch.manual_seed(0)
    return from_module(Transformer(), ArrayPreprocess((3, 32, 32)), name="tiny-vit")


# ---------------------------------------------------------------------------------------------- gram


def _gram(case: str, network: Network, x: Tensor, repeats: int, device: str) -> Row:
    network, x = network.to(device), x.to(device)
    tangent = Tangent(network, "*", x, batch_size=100)
    tangent.tape  # noqa: B018 - the check of its rules is made once
    alternatives: dict[str, Callable[[], Tensor]] = {
        "ours": lambda: ntk(tangent),
        "whole": lambda: ntk(Tangent(network, "*", x, batch_size=100)),
        "jacobian": lambda: _by_jacobian(network, x),
        "pairs": lambda: _by_pairs(network, x[:PAIRS]),
    }
    clock = time.process_time if network.device.type == "cpu" else time.perf_counter
    ready = {key: synchronised(run, network.device) for key, run in alternatives.items()}
    seconds, results = interleaved(ready, repeats=repeats, clock=clock)
    exact = _by_jacobian(network, x[:FEW].double())
    size = len(exact)
    errors = {key: float((results[key][:size, :size] - exact).abs().max() / exact.abs().max()) for key in seconds}
    scaled = seconds["pairs"].median * (len(x) / PAIRS) ** 2
    more = {
        "rows": len(x),
        "parameters": tangent.n_coefficients,
        "outputs": tangent.n_outputs,
        "path": list(tangent.tape.path),
        "peer_times": _ratio(seconds["jacobian"].every, seconds["ours"].every),
        "peer_times_every": [a / b for a, b in zip(seconds["jacobian"].every, seconds["ours"].every)],
        "whole_s": seconds["whole"].median,
        "whole_times": _ratio(seconds["jacobian"].every, seconds["whole"].every),
        "pairs_s": scaled,
        "pairs_rows": PAIRS,
        "pairs_times": scaled / seconds["ours"].median,
        "peer_error": errors["jacobian"],
        "pairs_error": errors["pairs"],
    }
    times = f"{more['peer_times']:.3g} times, {more['whole_times']:.3g} with its making"
    note(f"{case}: vmap(jacrev) {times}; pairs {more['pairs_times']:.3g} times (scaled)")
    return Row.timed(case, seconds["ours"], peer=("vmap(jacrev)", seconds["jacobian"]), error=errors["ours"], more=more)


def _ratio(above: tuple[float, ...], below: tuple[float, ...]) -> float:
    """The median of the turns' ratios."""
    return statistics.median(a / b for a, b in zip(above, below))


def _single(network: Network, dtype: torch.dtype) -> tuple[dict[str, Tensor], Callable[[Any, Tensor], Tensor]]:
    """Parameters in a dtype, and f of one row."""
    params = {name: value.detach().to(dtype) for name, value in network.module.named_parameters()}
    buffers = {
        name: value.to(dtype) if value.is_floating_point() else value for name, value in network.module.named_buffers()
    }

    def one(given: Any, row: Tensor) -> Tensor:
        return torch.func.functional_call(network.module, (given, buffers), (row[None],))[0]

    return params, one


def _by_jacobian(network: Network, x: Tensor) -> Tensor:
    """J Jᵀ from Jacobians of some rows at a time: (N·C, N·C)."""
    params, one = _single(network, x.dtype)
    jacobian = torch.vmap(torch.func.jacrev(one), (None, 0))
    parts = [torch.cat([j.flatten(2) for j in jacobian(params, some).values()], 2) for some in x.split(CHUNK)]
    whole = torch.cat(parts).flatten(0, 1)
    return whole @ whole.T


def _by_pairs(network: Network, x: Tensor) -> Tensor:
    """ "NTK vector product" of PyTorch's tutorial on neural tangent kernels: (N·C, N·C)."""
    params, one = _single(network, x.dtype)

    def pair(left: Tensor, right: Tensor) -> Tensor:
        output, back = torch.func.vjp(lambda given: one(given, left), params)

        def column(vector: Tensor) -> Tensor:
            return torch.func.jvp(lambda given: one(given, right), (params,), back(vector))[1]

        return torch.vmap(column)(torch.eye(output.numel(), dtype=x.dtype, device=x.device))

    found = torch.vmap(torch.vmap(pair, (None, 0)), (0, None))(x, x)  # [i, j, c, d]
    return found.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)


# ------------------------------------------------------------------------------------------- product


def _product(n: int, repeats: int) -> Row:
    network, x = mlp(1), torch.randn(n, 784)
    operator = Tangent(network, "*", x, batch_size=100).gram()
    vector = torch.randn(n, 1)
    params = {name: value.detach().requires_grad_(True) for name, value in network.module.named_parameters()}

    def graph() -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        outputs = torch.func.functional_call(network.module, params, (x,))
        dummy = torch.zeros_like(outputs, requires_grad=True)
        return outputs, dummy, torch.autograd.grad(outputs, list(params.values()), dummy, create_graph=True)

    def times(outputs: Tensor, dummy: Tensor, back: tuple[Tensor, ...]) -> Tensor:
        weights = torch.autograd.grad(outputs, list(params.values()), vector, retain_graph=True)
        return torch.autograd.grad(back, dummy, weights, retain_graph=True)[0]

    kept = graph()
    alternatives = {
        "ours": lambda: operator.apply(vector),
        "double": lambda: times(*graph()),
        "kept": lambda: times(*kept),
    }
    operator.apply(vector)  # A and G are kept from the first product on
    seconds, results = interleaved(alternatives, repeats=max(repeats, 5), clock=time.process_time)
    dense = ntk(Tangent(network, "*", x[:200], batch_size=100, dtype=torch.float64))
    exact = dense @ vector[:200].double()
    found = Tangent(network, "*", x[:200], batch_size=100).gram().apply(vector[:200])
    more = {
        "rows": n,
        "peer_times": _ratio(seconds["double"].every, seconds["ours"].every),
        "kept_s": seconds["kept"].median,
        "kept_times": _ratio(seconds["kept"].every, seconds["ours"].every),
        "peer_difference": float((results["ours"] - results["double"]).norm() / results["ours"].norm()),
    }
    error = float((found - exact).norm() / exact.norm())
    return Row.timed(
        "product, MLP", seconds["ours"], peer=("double backward", seconds["double"]), error=error, more=more
    )


# ------------------------------------------------------------------------------------------ evidence


def _problem(n: int) -> tuple[Tangent, Tensor]:
    """Rows with a spectrum that falls, and targets that depend on a few directions of them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 784, generator=generator) * torch.arange(1, 785) ** -0.5
    y = torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.2 * torch.randn(n, generator=generator)
    return Tangent(mlp(1), "*", x, batch_size=500), y - y.mean()


def _solved(tangent: Tangent, y: Tensor) -> tuple[Tensor, float, Posterior, float, float]:
    """Gram matrix, noise and posterior; CPU-seconds of the first, and of all."""
    began = time.process_time()
    gram = ntk(tangent)
    middle = time.process_time()
    noise = SHARE * float(gram.diagonal().mean())
    found = condition(gram, y, noise, method="mixed")
    return gram, noise, found, middle - began, time.process_time() - began


def _evidence(n: int) -> list[Row]:
    tangent, y = _problem(n)
    gram, noise, found, gram_s, seconds = _solved(tangent, y)
    note(f"evidence of {n} rows: {found.evidence:.2f} in {seconds:.1f} CPU-seconds")
    more = {"rows": n, "gram_s": gram_s, "evidence": found.evidence, "parameters": tangent.n_coefficients}
    exact = condition(gram.double(), y.double(), noise, method="cholesky").evidence if n <= 4000 else None
    error = None if exact is None else abs(found.evidence - exact) / n
    peer, other = _gpytorch(gram, y, noise)
    del gram
    if other is not None:
        other_s = other["seconds"] + more["gram_s"]
        more |= {"peer_solve_s": other["seconds"], "peer_times": other_s / seconds}
        more["peer_error"] = abs(other["evidence"] - found.evidence) / n
    row = Row(f"evidence, MLP, {n} rows", seconds, peer, None if other is None else other_s, None, error, more)
    return [row, _iterated(n)]


def _gpytorch(gram: Tensor | Operator, y: Tensor, noise: float) -> tuple[str, dict[str, float] | None]:
    """log p(y) by conjugate gradients and Lanczos quadrature with its own settings, the Gram matrix being there, or
    with products alone: without its preconditioner then, which reads rows of the matrix."""
    try:
        operators: Any = importlib.import_module("linear_operator")
    except ImportError:
        return "gpytorch is not installed", None
    settings, columns = operators.settings, 0

    class Products(operators.LinearOperator):
        """What it asks of a kernel that is not written out; it wants a tensor to be made of."""

        def _matmul(self, vectors: Tensor) -> Tensor:
            nonlocal columns
            columns += vectors.shape[-1]
            return gram.apply(vectors) if isinstance(gram, Operator) else gram @ vectors

        def _size(self) -> torch.Size:
            return torch.Size((len(y), len(y)))

        def _transpose_nonbatch(self) -> Products:
            return self

    written = isinstance(gram, Tensor)
    kernel = operators.to_linear_operator(gram) if written else Products(torch.zeros(1))
    preconditioned = settings.max_preconditioner_size.value() if written else 0
    began = time.process_time()
    torch.manual_seed(0)
    with (
        torch.no_grad(),
        settings.max_cholesky_size(0),
        settings.max_preconditioner_size(preconditioned),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        system = kernel.add_diagonal(torch.full((len(y),), noise))
        fit, determinant = system.inv_quad_logdet(y[:, None], logdet=True)
    evidence = -0.5 * float(fit + determinant + len(y) * torch.log(torch.tensor(2 * torch.pi)))
    found = {"seconds": time.process_time() - began, "evidence": evidence, "columns": float(columns)}
    return "gpytorch's CG" if written else "gpytorch's CG on our products", found


def _without_matrix(n: int) -> Row:
    """Our evidence with the matrix, gpytorch's of products with the same operator."""
    tangent, y = _problem(n)
    _, noise, found, _, seconds = _solved(tangent, y)
    peer, other = _gpytorch(tangent.gram(), y, noise)
    more: dict[str, Any] = {"rows": n, "evidence": found.evidence}
    if other is not None:
        more |= {"peer_times": other["seconds"] / seconds, "columns": other["columns"]}
        more["peer_error"] = abs(other["evidence"] - found.evidence) / n
    return Row(f"evidence, MLP, {n} rows", seconds, peer, None if other is None else other["seconds"], more=more)


def _iterated(n: int) -> Row:
    """α without the matrix."""
    tangent, y = _problem(n)
    operator = tangent.gram()
    some = ntk(tangent.take(torch.arange(min(n, 500))))
    noise = SHARE * float(some.diagonal().mean())
    iteration = Iteration(rank=min(100, n // 10), tol=RESIDUAL)
    began = time.process_time()
    found = condition(operator, y, noise, method="cg", iteration=iteration)
    seconds = time.process_time() - began
    note(f"{n} rows by conjugate gradients: {seconds:.1f} CPU-seconds; {found.status.message}")
    status, peak = found.status, peak_bytes()
    more = {"rows": n, "products": status.iterations, "residual": status.residual, "rank": iteration.rank, "peak": peak}
    return Row(f"conjugate gradients, MLP, {n} rows", seconds, more=more)


if __name__ == "__main__":
    main()
