"""What methods that train cost: head probing, the choice of tau, a step beside a plain loop's and the HF Trainer's.

* ``heads``: the heads of every tau from one trajectory (``ours_s``), beside the trajectory of the longest tau alone.
* ``tau``: choosing tau by short trainings (``ours_s``), beside training every tau to its end; accuracy of what both
  choose on the held-out fifth and on test rows, which chose nothing. CPU seconds, one learning rate. Development data:
  digits (usps) and a rendered orientation through MobileNetV1-0.25 at 32 px.
* ``steps``: steps of the Train stage (its checkpoints, one in ten seconds, left out) beside a plain PyTorch loop over
  the same batches with the same optimiser and schedule, which keeps PyTorch's own memory layout (``error``: largest
  difference of the weights, relative to the largest weight); beside that loop in the layout that ours takes; and beside
  the Trainer of transformers where accelerate is at hand. ``speed``: the peer's seconds over ours, by turns.
* ``frozen``: steps where all but the last two blocks stay as they are, BatchNorm's statistics everywhere, which begin
  behind these (``ours_s``; ``pass_s``: the pass of 1,000 rows that finds what reaches them), beside the same through
  the whole network, and a plain loop.

    python benchmarks/finetune.py [--quick] [--json [PATH]] [--parts heads,tau,steps,frozen] [--data FOLDER]
"""

from __future__ import annotations

import copy
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from common import Row, interleaved, note, parsed, parser, report
from regraft.data import Manifest, holdout, joined, rendered, scan
from regraft.graft import METHODS, Adapted, Options, Probe, prepare
from regraft.graft.build import Tangents, problems, workshop
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.objective import Objective
from regraft.graft.loop.rows import order
from regraft.graft.loop.train import Optimiser, TrainConfig, Training
from regraft.graft.preparation import swept
from regraft.graft.problem import Task
from regraft.graft.stages.config import Tuning
from regraft.graft.training.finetune import grafted, training
from regraft.graft.training.problem import TrainingProblem
from regraft.graft.training.search import search
from regraft.graft.training.start import start
from regraft.network import Network
from regraft.record import Ledger
from regraft.reproduce.sources import pack_network

TAUS = METHODS["finetune"].probe.taus
TEST = 600
LR = 3e-3
PIXELS = 32


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--parts", default="heads,tau,steps,frozen", help="what to measure (default: %(default)s)")
    options.add_argument("--seeds", type=int, default=0, help="of the choice of tau (default: 2, or 1 with --quick)")
    arguments = parsed(options, "weights", "images")
    quick, parts, rows = arguments.quick, arguments.parts.split(","), []
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        if "heads" in parts:
            rows.append(_heads(_digits(arguments.data, 0), arguments.data, cache, 2 if quick else 5))
        if "tau" in parts:
            for seed in range(arguments.seeds or (1 if quick else 2)):
                rows.append(_tau("usps", _digits(arguments.data, seed), arguments.data, cache, seed, quick))
                if not quick:
                    rows.append(_tau("orientation", _turned(seed), arguments.data, cache, seed, quick))
        if "steps" in parts:
            rows += _steps(arguments.data, 2 if quick else 6, 4 if quick else 8)
        if "frozen" in parts:
            for name, pixels in (("V1a", 128),) if quick else (("V1a", 128), ("V2", 224)):
                rows += _frozen(name, pixels, arguments.data, 2 if quick else 6, 4)
    columns = ("case", "ours_s", "peer", "peer_s", "ratio", "speed", "ours_test", "peer_test", "error")
    report("finetune", rows, arguments.json, columns=columns, threads=torch.get_num_threads())


def _digits(data: Path, seed: int) -> Manifest:
    whole = scan(data / "images" / "usps")
    parts = {"train": whole.part("train").limit(1000, seed + 10), "test": whole.part("test").take(range(TEST))}
    return joined(parts, "usps")


def _turned(seed: int) -> Manifest:
    parts = {"train": rendered("orientation", 1000, seed + 17), "test": rendered("orientation", TEST, 2_000_000)}
    return joined(parts, "orientation")


@dataclass(frozen=True)
class Ready:
    """The four fifths that are trained on, the fifth that judges, the test rows."""

    rest: TrainingProblem
    held: TrainingProblem
    test: TrainingProblem


def _ready(manifest: Manifest, network: Network, cache: Path, seed: int, steps: int) -> Ready:
    recipe = METHODS["finetune"].altered(steps=steps)
    options = Options(seed=seed, cache=cache, workers=0)
    ready = prepare(manifest, network, method=recipe, options=options)
    stores = swept(ready, options, Ledger(), None)
    fit, test = problems(ready, stores, options, workshop(ready, options, None), Tangents(ready, options))
    out = holdout(fit.task.target, None, 0.2, seed)
    return Ready(fit.take(np.flatnonzero(~out)), fit.take(np.flatnonzero(out)), test)


# ---------------------------------------------------------------------------------------------- heads


def _heads(manifest: Manifest, data: Path, cache: Path, repeats: int) -> Row:
    ready = _ready(manifest, pack_network("V1a", data, pixels=PIXELS), cache, 0, 500)
    seconds, found = interleaved(
        {"all": lambda: ready.rest.heads(TAUS), "longest": lambda: ready.rest.heads(TAUS[-1:])}, repeats=repeats
    )
    last = [found[name].by_tau[TAUS[-1]].readout.intercept for name in found]
    return Row.timed(
        f"heads of {len(TAUS)} tau, {len(ready.rest)} rows",
        seconds["all"],
        peer=(f"tau {TAUS[-1]} alone", seconds["longest"]),
        error=float((last[0] - last[1]).abs().max()),
        more={"speed": _speed(seconds["longest"].every, seconds["all"].every)},
    )


def _speed(peer: tuple[float, ...], ours: tuple[float, ...]) -> float:
    """Median over turns of the peer's seconds over ours."""
    return statistics.median(theirs / own for theirs, own in zip(peer, ours))


# ------------------------------------------------------------------------------------------------ tau


def _tau(name: str, manifest: Manifest, data: Path, cache: Path, seed: int, quick: bool) -> Row:
    """The choice as :class:`TrainingProblem` makes it at one rate, and the whole sweep."""
    steps = 50 if quick else 150
    ready = _ready(manifest, pack_network("V1a", data, pixels=PIXELS), cache / f"{name}-{seed}", seed, steps)
    heads = ready.rest.heads(Probe().candidates).by_tau
    costs, scores = {}, {}
    for arm in ("auto", "sweep"):
        work = replace(ready.rest.work, folder=cache / f"{name}-{seed}-{arm}", used=set(), steps=0)
        whole = lambda lr, tau: ready.rest.trial(heads[tau], lr, tau, ready.held.rows)  # noqa: E731
        began = time.process_time()
        keys = [trial.key for trial in search(whole, [LR], sorted(heads), work)][:1] if arm == "auto" else [
            (LR, tau) for tau in sorted(heads)
        ]  # fmt: skip
        trials = [whole(*key) for key in keys]
        models = [trial.train(work) for trial in trials]
        best, model = max(zip(trials, models), key=lambda pair: pair[0].value)
        costs[arm] = (time.process_time() - began, work.steps)
        if model is None:
            raise ValueError(best.said)
        labels = ready.test.rows.labels
        test = float((ready.test.predicted(model).argmax(1) == labels).double().mean())
        scores[arm] = {"tau": best.key[1], "held_out": best.value[0], "test": test}
        note(f"{name} seed {seed} {arm}: {costs[arm]}, {scores[arm]}")
    error = (scores["sweep"]["test"] * (1 - scores["sweep"]["test"]) / TEST) ** 0.5
    more = {
        "ours_test": scores["auto"]["test"], "peer_test": scores["sweep"]["test"], "standard_error": error,
        "ours": scores["auto"], "sweep": scores["sweep"], "steps": {arm: cost[1] for arm, cost in costs.items()},
    }  # fmt: skip
    return Row(f"tau auto, {name}, seed {seed}", costs["auto"][0], "the full sweep", costs["sweep"][0], more=more)


# ---------------------------------------------------------------------------------------------- steps


class Plain(nn.Module):
    """A network with a new last layer, as a script would make it."""

    def __init__(self, begin: Adapted) -> None:
        super().__init__()
        weight = begin.readout.coefficients["embedding"].T.contiguous()
        made = begin.network.with_head(weight, begin.readout.intercept, begin.classes)
        self.body = copy.deepcopy(made.module).requires_grad_(True)
        for part in self.body.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.momentum = 0.1

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        found = self.body(pixel_values)
        outputs = found if isinstance(found, Tensor) else found.logits
        return {"loss": functional.cross_entropy(outputs, labels), "logits": outputs}


@dataclass
class Loop:
    """The plain loop, taken up again at every turn."""

    module: Plain
    rows: ManifestRows
    config: TrainConfig
    channels_last: bool = False
    norms: str = "trained"
    step: int = 0

    def __post_init__(self) -> None:
        if self.channels_last:
            self.module.to(memory_format=torch.channels_last)
        self.optimiser = torch.optim.SGD(self.module.parameters(), self.config.optimiser.lr, 0.9)
        total = self.config.total(len(self.rows))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimiser, lambda s: self.config.schedule.scale(s, total)
        )

    def turn(self, steps: int) -> None:
        self.module.train(self.norms == "trained")
        per_epoch = self.config.batches(len(self.rows))
        for _ in range(steps):
            epoch, place = divmod(self.step, per_epoch)
            batch = order(len(self.rows), self.config.seed, epoch, per_epoch)[place]
            inputs = self.rows.inputs(batch)
            if self.channels_last:
                inputs = inputs.contiguous(memory_format=torch.channels_last)
            loss = self.module(inputs, self.rows.labels[batch])["loss"]
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            self.schedule.step()
            self.step += 1


def _steps(data: Path, turns: int, length: int) -> list[Row]:
    found = []
    for name, pixels, norms, size in (
        ("V1a", 64, "trained", 64),
        ("V1a", 128, "trained", 64),
        ("V2", 224, "trained", 32),
        ("V2", 224, "frozen", 32),
    ):
        network = pack_network(name, data, pixels=pixels)
        manifest = scan(data / "images" / "usps").part("train").limit(1000, 10)
        few = length if pixels <= 128 else max(2, length // 4)
        found += _beside(f"{name} at {pixels} px, {norms} norms", network, manifest, turns, few, norms, size)
    return found


def _beside(
    case: str,
    network: Network,
    manifest: Manifest,
    turns: int,
    length: int,
    norms: Literal["frozen", "trained"],
    size: int,
) -> list[Row]:
    begin = start(network, manifest, seed=0)
    task = Task(manifest.target, None, "accuracy")
    optimiser = Optimiser(lr=1e-3, weight_decay=0.0, nesterov=False)
    config = TrainConfig(steps=(turns + 1) * length, batch_size=size, optimiser=optimiser)
    rows = ManifestRows.of(network, manifest, workers=0)
    module = grafted(begin, task, Tuning(norms=norms))
    run = training(module, rows, config, Objective.of(task), None, None)
    loops = {
        name: Loop(Plain(begin), rows, config, last, norms)
        for name, last in (("plain loop", False), ("its layout", True))
    }
    peers: dict[str, Callable[[], Any]] = {n: lambda loop=loop: loop.turn(length) for n, loop in loops.items()}
    if norms == "frozen":  # which the Trainer does not know
        pass
    elif (trainer := _trainer(Plain(begin), rows, length, size)) is None:
        note("accelerate is not at hand, so the Trainer of transformers was not timed")
    else:
        peers["HF Trainer"] = trainer
    ours = lambda: run.advance(run.step + length, sparing=True)  # noqa: E731
    seconds, _ = interleaved({"ours": ours, **peers}, repeats=turns)
    out = []
    for name in peers:
        error = _apart(run.module.backbone, loops[name].module.body) if name in loops else None
        speed = _speed(seconds[name].every, seconds["ours"].every)
        more = {"speed": speed, "steps_a_turn": length}
        out.append(
            Row.timed(f"{length} steps, {case}", seconds["ours"], peer=(name, seconds[name]), error=error, more=more)
        )
    return out


def _frozen(name: str, pixels: int, data: Path, turns: int, length: int) -> list[Row]:
    network = pack_network(name, data, pixels=pixels)
    manifest = scan(data / "images" / "usps").part("train").limit(1000, 10)
    begin, rows = start(network, manifest, seed=0), ManifestRows.of(network, manifest, workers=0)
    task = Task(manifest.target, None, "accuracy")
    optimiser = Optimiser(lr=1e-3, weight_decay=0.0, nesterov=False)
    config = TrainConfig(steps=(turns + 1) * length, batch_size=32, optimiser=optimiser)
    upper = tuple(f"{block}." for block in network.blocks[-2:])
    stays = tuple(param for param in network.params if not param.startswith(upper))
    kept = training(grafted(begin, task, Tuning(freeze=stays)), rows, config, Objective.of(task), None, None)
    began = time.perf_counter()
    kept.rows.inputs(torch.arange(1))
    passed = time.perf_counter() - began
    whole = Training(grafted(begin, task, Tuning(freeze=stays)), rows, config, Objective.of(task))
    plain = Plain(begin)
    for param, value in plain.body.named_parameters():
        value.requires_grad_(param not in stays)
    loop = Loop(plain, rows, config, norms="frozen")
    seconds, _ = interleaved(
        {
            "ours": lambda: kept.advance(kept.step + length, sparing=True),
            "whole": lambda: whole.advance(whole.step + length, sparing=True),
            "loop": lambda: loop.turn(length),
        },
        repeats=turns,
    )
    case = f"{length} steps, {name} at {pixels} px, the last two blocks"
    return [
        Row.timed(
            case,
            seconds["ours"],
            peer=(label, seconds[peer]),
            error=_apart(kept.module.backbone, module),
            more={"speed": _speed(seconds[peer].every, seconds["ours"].every), "pass_s": passed},
        )
        for peer, label, module in (
            ("whole", "through the whole network", whole.module.backbone),
            ("loop", "plain loop", plain.body),
        )
    ]


def _apart(ours: nn.Module, theirs: nn.Module) -> float:
    """Largest difference of weights that both have, over the largest weight."""
    other = dict(theirs.named_parameters())
    pairs = [(v, other[n]) for n, v in ours.named_parameters() if n in other and other[n].shape == v.shape]
    return max(float((a - b).detach().abs().max()) for a, b in pairs) / max(
        float(b.detach().abs().max()) for _, b in pairs
    )


class Samples(torch.utils.data.Dataset):
    """Rows one by one, as the Trainer asks for them."""

    def __init__(self, rows: ManifestRows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"pixel_values": self.rows.inputs(torch.tensor([index]))[0], "labels": self.rows.labels[index]}


def _trainer(module: Plain, rows: ManifestRows, length: int, size: int) -> Callable[[], Any] | None:
    """One turn of the Trainer, its set-up left out; ``None`` without accelerate."""
    if importlib.util.find_spec("accelerate") is None:
        return None
    from transformers import PrinterCallback, Trainer, TrainingArguments

    arguments = TrainingArguments(
        tempfile.mkdtemp(), per_device_train_batch_size=size, max_steps=length, learning_rate=1e-3, use_cpu=True,
        lr_scheduler_type="cosine", report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        max_grad_norm=0.0, dataloader_num_workers=0, dataloader_pin_memory=False,
    )  # fmt: skip
    optimiser = torch.optim.SGD(module.parameters(), 1e-3, 0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda _: 1.0)
    trainer = Trainer(module, arguments, train_dataset=Samples(rows), optimizers=(optimiser, schedule))
    trainer.remove_callback(PrinterCallback)  # it prints where the results go
    return trainer.train


if __name__ == "__main__":
    main()
