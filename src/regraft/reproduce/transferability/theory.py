"""Section 6 and Appendix C of paper 002 by really training: a wide network on P, then on Q, beside its limits.

The rows of a seed: 200 of scikit-learn's digits, scaled to unit norm, the first 100 as P. Labels are ±1, even against
odd. Target labels go in ten equal steps from those (share 0) to random signs (share 1): (1 − s) y + s ε.
The rates are η = 1 / λ_max(H∞). Pretraining and training from scratch take 500 plain steps and fine-tuning 2,000
(Theorem 3's), and all go on by strides until ‖f − y‖² is a thousandth of ‖y‖².
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from regraft.diagnose import Feasibility, feasibility, gram, unit_rows
from regraft.files import atomic_path, canonical_json, digest, read_json, write_json
from regraft.reproduce.transferability.wide import OFF, TwoLayer, descend, drawn

__all__ = ["LOGGED", "Part", "Plan", "Trained", "Transfer", "measured", "transfer"]

LOGGED = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 1500, 2000)  # plain steps whose losses are kept
_VERSION = 1
Part = Literal["targets", "scratch"]


@dataclass(frozen=True)
class Plan:
    """What is trained, and for how long.

    Attributes:
        rows: n_P = n_Q.
        scale: κ.
        mixes: target labels, from those of P to random ones.
        plain: plain steps of fine-tuning.
        early: plain steps of pretraining and from scratch.
        until: the relative residual ‖f − y‖ / ‖y‖ at which training ends.
        strides: the most strides.
        paired: whether the network starts from f = 0 by units in pairs of opposite signs.
    """

    rows: int = 100
    scale: float = 0.01
    mixes: int = 10
    plain: int = 2000
    early: int = 500
    until: float = math.sqrt(1e-3)
    strides: int = 3000
    paired: bool = False

    @property
    def shares(self) -> list[float]:
        """Of random labels, by target."""
        return np.linspace(0, 1, self.mixes).tolist()


@dataclass(frozen=True, eq=False)
class Transfer:
    """The rows and labels of a seed, float64.

    Attributes:
        source_x, target_x: ``(n, d)`` of unit norm.
        source_y: ``(n,)``.
        targets: ``(mixes, n)``, y_Q by share of random labels.
    """

    source_x: Tensor
    source_y: Tensor
    target_x: Tensor
    targets: Tensor

    @cached_property
    def source_gram(self) -> Tensor:
        """H_P."""
        return gram(self.source_x)

    @cached_property
    def target_gram(self) -> Tensor:
        """H_Q."""
        return gram(self.target_x)

    def limits(self, mix: int) -> Feasibility:
        """What Theorems 1 and 2 say of a target."""
        return feasibility(self.source_x, self.source_y, self.target_x, self.targets[mix], halves=0)


@lru_cache(maxsize=8)
def transfer(seed: int, plan: Plan) -> Transfer:
    """The rows of a seed."""
    digits = load_digits()
    generator = np.random.default_rng(seed)
    rows = generator.permutation(len(digits.data))[: 2 * plan.rows]
    x = unit_rows(torch.from_numpy(digits.data[rows]))
    y = torch.from_numpy(1.0 - 2.0 * (digits.target[rows] % 2))
    noise = torch.from_numpy(generator.choice([-1.0, 1.0], plan.rows))
    shares = torch.tensor(plan.shares, dtype=torch.float64)[:, None]
    targets = (1 - shares) * y[plan.rows :] + shares * noise
    return Transfer(x[: plan.rows], y[: plan.rows], x[plan.rows :], targets)


class Trained:
    """The networks of one seed and width, trained once and their numbers kept.

    Args:
        seed: of rows, labels and first weights.
        width: m.
        plan: how.
        folder: of the kept numbers and of the pretrained weights.
    """

    def __init__(self, seed: int, width: int, plan: Plan, folder: Path) -> None:
        self.rows = transfer(seed, plan)
        self.plan, self.width, self.folder = plan, width, folder
        self.origin = drawn(width, self.rows.source_x.shape[1], plan.scale, seed, paired=plan.paired)
        self._key = {"version": _VERSION, "off": OFF, "seed": seed, "width": width, **vars(plan)}

    def _path(self, part: str, kind: str) -> Path:
        return self.folder / f"{digest(canonical_json(self._key))[:16]}-{part}.{kind}"

    def _kept(self, part: str, measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The numbers of a part, measured once; with the CPU-seconds that they took."""
        path = self._path(part, "json")
        value = read_json(path)
        if value is None:
            began = time.process_time()
            value = {**measure(), "cpu_seconds": 0.0}
            value["cpu_seconds"] = time.process_time() - began
            write_json(path, value)
        return dict(value)

    @cached_property
    def pretrained(self) -> dict[str, Any]:
        """Training on P from W(0): ``moved``, ``residual``, ``steps``, ``u`` (outputs on P at the start)."""
        return self._kept("source", self._pretrain)

    def _pretrain(self) -> dict[str, Any]:
        rows, plan, watch = self.rows, self.plan, _Watch(self.origin, self.rows.source_x, self.rows.source_gram)
        found = descend(
            self.origin,
            rows.source_x,
            rows.source_y,
            _rate(rows.source_gram),
            plain=plan.early,
            until=plan.until,
            strides=plan.strides,
            visit=watch,
        )
        with atomic_path(self._path("source", "npy")) as path, open(path, "wb") as file:
            np.save(file, found.network.weights.numpy(), allow_pickle=False)
        before, after = self.origin.active(rows.source_x), found.network.active(rows.target_x)
        cross = (rows.source_x @ rows.target_x.T) * (before @ after.T).double() / self.width  # Z_P(0)ᵀ Z_Q(P)
        limit = gram(rows.source_x, rows.target_x)
        return {
            **watch.numbers(),
            **_end(found),
            "start": float((self.origin.outputs(rows.source_x).double() - rows.source_y).norm()),
            "distance": float((found.network.weights - self.origin.weights).double().square().sum()),
            "cross gap": float((cross - limit).norm()),
            "outputs": self._outputs(found.network),
            "outputs, first": self._outputs(self.origin),
        }

    def _outputs(self, network: TwoLayer) -> list[float]:
        found: list[float] = network.outputs(self.rows.target_x).double().tolist()
        return found

    def _source(self) -> TwoLayer:
        """W(P); trained again where the cache was cleared of it."""
        _ = self.pretrained
        if not self._path("source", "npy").is_file():
            self._pretrain()
        weights = np.load(self._path("source", "npy"), allow_pickle=False)
        return TwoLayer(torch.from_numpy(weights), self.origin.signs)

    def fine_tuned(self, mix: int) -> dict[str, Any]:
        """Training on a target from W(P)."""
        return self._kept(f"target-{mix}", lambda: self._train(self._source(), mix, self.plan.plain))

    def scratch(self, mix: int) -> dict[str, Any]:
        """Training on a target from W(0)."""
        return self._kept(f"scratch-{mix}", lambda: self._train(self.origin, mix, self.plan.early))

    def _train(self, start: TwoLayer, mix: int, plain: int) -> dict[str, Any]:
        rows, plan, watch = self.rows, self.plan, _Watch(self.origin, self.rows.target_x, self.rows.target_gram)
        rate = _rate(rows.target_gram)
        found = descend(
            start,
            rows.target_x,
            rows.targets[mix],
            rate,
            plain=plain,
            until=plan.until,
            strides=plan.strides,
            visit=watch,
        )
        least = float(torch.linalg.eigvalsh(rows.target_gram)[0])
        promised = found.losses[0] * (1 - rate * least / 2) ** np.arange(plain + 1)
        above = np.asarray(found.losses) > promised * (1 + 1e-6)  # the first is equal to its own bound
        logged = [step for step in LOGGED if step <= plain]
        return {
            **watch.numbers(),
            **_end(found),
            "distance": float((found.network.weights - start.weights).double().square().sum()),
            "flips": float((found.network.active(rows.target_x) != watch.first).float().mean()),
            "violations": int(above.sum()),
            "loss": [found.losses[step] for step in logged],
            "promised": [float(promised[step]) for step in logged],
        }


def _rate(matrix: Tensor) -> float:
    return 1.0 / float(torch.linalg.eigvalsh(matrix)[-1])


def _end(found: Any) -> dict[str, Any]:
    return {
        "residual": found.residual,
        "steps": found.steps,
        "strides": found.strides,
        "converged": found.converged,
    }


class _Watch:
    """Extremes over the visited steps of a descent, of how far units moved from W(0) and how far H(k) is from H∞.

    Between them both go further: on one seed ‖H(k) − H∞‖ reaches 19.9 where the visited steps have 17.9.
    """

    def __init__(self, origin: TwoLayer, x: Tensor, limit: Tensor) -> None:
        self.origin, self.x, self.limit = origin, x.to(origin.weights.dtype), limit
        self.inner = x @ x.T / origin.width
        self.first = origin.active(self.x)
        self.moved, self.gap, self.least = 0.0, 0.0, math.inf

    def __call__(self, network: TwoLayer) -> None:
        active = network.active(self.x)
        kernel = self.inner * (active @ active.T).double()
        self.moved = max(self.moved, float(network.moved(self.origin).max()))
        self.gap = max(self.gap, float((kernel - self.limit).norm()))
        self.least = min(self.least, float(torch.linalg.eigvalsh(kernel)[0]))

    def numbers(self) -> dict[str, float]:
        return {"moved": self.moved, "gap": self.gap, "least": self.least}


def measured(seed: int, width: int, plan: Plan, folder: Path, parts: Collection[Part]) -> dict[str, Any]:
    """Numbers of a seed and ``width``: ``source`` always; ``targets`` and ``scratch`` by mix, if they are asked for."""
    trained, mixes = Trained(seed, width, plan, folder), range(plan.mixes)
    return {
        "width": width,
        "source": trained.pretrained,
        "targets": [trained.fine_tuned(mix) for mix in mixes] if "targets" in parts else [],
        "scratch": [trained.scratch(mix) for mix in mixes] if "scratch" in parts else [],
    }
