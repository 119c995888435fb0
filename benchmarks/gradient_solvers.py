"""Gradient features: time to the convex optimum, beside the paper's training schedule, and what the models score.

``solve``: the full model (last layer and gradients of the topmost block) on one problem, from the same start (w₁ the
solved head, w₂ zero). *Ours* is the solver that ``regraft adapt --method gradient`` uses. Peer: the paper's schedule,
Adam with batches of 64 for 80,000 steps halved each 20,000, followed for a bounded number of steps. Both are asked for
an objective within a thousandth of the optimum, F ≤ 1.001 F*, F* by Newton to a duality gap of 1e-7. ``peer_s`` is the
schedule's time to there, or, where it does not get there within the bound, the time of its whole 80,000 steps at the
pace measured (``reached`` says which). Looks at the objective are not counted. All seconds are processor seconds of
this process, so that a busy machine does not favour either side. ``error``: our relative excess.

``models``: accuracy of activation, gradient and full on held-out rows, every choice cross-validated inside the
training rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import Row, empty_store, note, parsed, parser, report, timed
from regraft.data import Manifest, scan
from regraft.features import Tangent
from regraft.graft import Gradients, adapt, gradient_features
from regraft.graft.adapted.tangent import PREFIX, prior_deviations
from regraft.graft.gradient.fit import Both, Labels, head_problem
from regraft.heads import ConvexProblem, Response, minimise
from regraft.heads.convex.minibatch import ADAM, minibatch
from regraft.heads.convex.path import PathFit
from regraft.heads.convex.problem import Trace
from regraft.heads.convex.subspacepath import SubspacePath
from regraft.linear import Blocks, Dense, FeatureDesign
from regraft.network import Network, load

EXCESS = 1e-3
TEST_ROWS = 700
DECAY = 1e-6  # of the penalty ½ decay ‖·‖² of Mu, Liang & Li (2020), §4, on parameters under the scale of the prior


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--parts", default="solve,models", help="what to measure (default: %(default)s)")
    options.add_argument("--set", default="usps", help="images of the data pack (default: %(default)s)")
    options.add_argument("--weights", default="mobilenet_v1_0.5_160", help="backbone (default: %(default)s)")
    options.add_argument("--rows", type=int, default=300, help="training rows (default: %(default)s)")
    options.add_argument("--steps", type=int, default=1500, help="of the schedule, at most (default: %(default)s)")
    arguments = parsed(options, "weights", "images")
    steps = min(arguments.steps, 300) if arguments.quick else arguments.steps
    network = load(str(arguments.data / "weights" / arguments.weights))
    manifest = rows_of(arguments.data / "images" / arguments.set, arguments.rows)
    name = f"{arguments.set} {arguments.rows} rows, {arguments.weights}"
    rows = []
    if "solve" in arguments.parts:
        rows += solves(name, network, manifest, steps, quick=arguments.quick)
    if "models" in arguments.parts:
        rows += models(name, network, manifest, quick=arguments.quick)
    columns = ("case", "ours_s", "peer", "peer_s", "ratio", "speedup", "reached", "error", "accuracy")
    report("gradient_solvers", rows, arguments.json, columns=columns, threads=torch.get_num_threads())


def rows_of(folder: Path, rows: int) -> Manifest:
    """So many training rows, balanced, and the first test rows."""
    whole = scan(folder).limit(rows, 0)
    test = whole.rows_of("test")[:TEST_ROWS]
    return whole.take(np.concatenate([whole.rows_of("train"), test]))


def solves(name: str, network: Network, manifest: Manifest, steps: int, *, quick: bool) -> list[Row]:
    """Time to the optimum at the paper's penalty and at one that cross-validation takes."""
    train = manifest.take(manifest.rows_of("train"))
    tangent = Tangent(network, None, train, of="embedding").prepare()
    note(f"{name}: " + "; ".join(tangent.path))
    target = train.target
    if target is None:
        raise SystemExit("the rows need labels")
    response = Response.of(target.kind, target.classes, target.values)
    features = FeatureDesign({"embedding": Dense(tangent.outputs)}, response.n_outputs)
    both = Both(features, tangent, torch.arange(len(train)), "full")
    labels = Labels.of(response, torch.ones(len(train), 1, dtype=torch.float64))
    prior = {PREFIX + key: value for key, value in prior_deviations(tangent.shapes, "ntk").items()}
    found = []
    for what, strength in (("penalties 1e-4 of the scale", 1e-4), ("the paper's penalty 1e-6", None)):
        first = DECAY / both.scale if strength is None else strength
        activation = head_problem(both, labels, first)
        head = minimise(activation, "newton", gap=1e-8)
        weight = torch.cat(list(head.coefficients.values())).T
        design = both.design(weight)
        unit = 1.0 if strength is None else _unit(design, prior)
        second = DECAY if strength is None else strength * unit
        penalties = {key: second / prior[key] ** 2 if key in prior else first * both.scale for key in design.shapes}
        problem = ConvexProblem(design, labels.loss, labels.values, labels.weights, penalties)
        zero = {key: torch.zeros(shape) for key, shape in design.shapes.items()}
        start = Blocks({**zero, **dict(head.coefficients)})
        steep = tangent.through(weight).renamed(PREFIX)
        ours = partial(_ours, partial(SubspacePath, activation, head, steep, steep, prior), second)
        found.append(_race(f"{name}, {what}", problem, ours, start, prior, steps))
        if quick:
            break
    return found


def _unit(design: Any, prior: dict[str, float]) -> float:
    """The mean square of a row's gradient features under the prior, by four probes."""
    generator, total = torch.Generator().manual_seed(0), 0.0
    for _ in range(4):
        signs = torch.randint(2, (design.n_rows, design.n_outputs), generator=generator) * 2.0 - 1.0
        found = design.adjoint(signs)
        total += sum(float((found[key] * value).square().sum()) for key, value in prior.items())
    return total / (4 * design.n_rows * design.n_outputs)


def _ours(path: Callable[[], SubspacePath], strength: float) -> tuple[PathFit, Blocks]:
    made = path()
    fit = made.solve(strength, EXCESS)
    return fit, made.coefficients(fit)


def _race(
    name: str,
    problem: ConvexProblem,
    solve: Callable[[], tuple[PathFit, Blocks]],
    start: Blocks,
    prior: dict[str, float],
    steps: int,
) -> Row:
    best = minimise(problem, "newton", start=start, gap=1e-7)
    aim = (1 + EXCESS) * best.objective
    began = time.process_time()
    ours, coefficients = solve()
    ours_s = time.process_time() - began
    note(
        f"{name}: F* {best.objective:.6g}, start {problem.at(start).objective:.6g}; {ours.status.message}, "
        f"{ours_s:.2f} s"
    )
    clock = _Clock(problem)
    fit = minibatch(problem, ADAM, deviations=prior, start=start, max_iterations=steps, objective=aim,
                    every=max(1, steps // 20), progress=clock)  # fmt: skip
    spent, done = clock.spent, fit.status.iterations
    reached = fit.objective <= aim
    pace = spent / max(1, done)
    peer_s = spent if reached else pace * ADAM.steps
    note(f"{name}: schedule at {fit.objective:.6g} after {done} steps, {pace * 1e3:.2f} ms a step")
    return Row(
        name,
        ours_s,
        f"Adam, batches of {ADAM.batch}",
        peer_s,
        None,
        problem.at(coefficients).objective / best.objective - 1,
        {
            "speedup": peer_s / ours_s,
            "speedup_whole_schedule": pace * ADAM.steps / ours_s,
            "reached": f"step {done}" if reached else f"not in {done} steps",
            "optimum": best.objective,
            "optimum_gap": best.gap,
            "start": problem.at(start).objective,
            "solver": _outcome(ours),
            "schedule": {"steps": done, "seconds": spent, "objective": fit.objective, "path": clock.path},
            "parameters": problem.design.n_coefficients,
        },
    )


def _outcome(fit: PathFit) -> dict[str, Any]:
    return {"products": fit.products, "directions": fit.status.iterations, "relative_gap": fit.status.residual}


class _Clock:
    """The time of the steps alone: a look at the objective takes one apply and one adjoint, timed and left out."""

    def __init__(self, problem: ConvexProblem) -> None:
        trace = Trace()
        u = torch.zeros(problem.design.n_coefficients)
        u[0] = 1e-6
        problem.point(u, problem.plain(u, trace), trace)
        began = time.process_time()
        problem.point(u, problem.plain(u, trace), trace)
        self.look = time.process_time() - began
        self.spent, self.path = 0.0, []
        self.began = time.process_time() + self.look

    def __call__(self, steps: int, gap: float, objective: float) -> None:
        now = time.process_time()
        self.spent += max(0.0, now - self.began - self.look)
        self.path.append([steps, self.spent, objective])
        self.began = time.process_time()


def models(name: str, network: Network, manifest: Manifest, *, quick: bool) -> list[Row]:
    """What each mode scores on rows that had no part in any choice, and how long the whole run takes."""
    found = []
    for mode in ("activation", "gradient", "full"):
        strengths = (1e-2, 1e-4) if quick else None
        recipe = gradient_features(Gradients(mode=mode), strengths)
        with empty_store():
            run, seconds, _ = timed(partial(adapt, manifest, network, method=recipe, folds=3 if quick else 5))
        chosen = next(c for c in run.record.candidates if c.chosen)
        score = run.score
        note(
            f"{name}, {mode}: {score.value:.4f} [{score.low:.4f}, {score.high:.4f}], {chosen.name}, "
            f"{chosen.strength:.2g}"
        )
        figure = run.record.figures.get("gradient", {})
        found.append(
            Row(
                f"{name}, {mode}",
                seconds,
                more={
                    "accuracy": score.value,
                    "interval": [score.low, score.high],
                    "chosen": [chosen.name, chosen.strength],
                    "shares": figure.get("shares"),
                    "test_rows": len(manifest.rows_of("test")),
                },
            )
        )
    return found


if __name__ == "__main__":
    main()
