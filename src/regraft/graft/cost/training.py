"""What training will cost, said before it runs: one step is timed and counted, the rest is arithmetic."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from regraft.graft.cost.pricing import finals, head_shape
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.objective import Objective
from regraft.graft.loop.rows import place
from regraft.graft.loop.train import TrainConfig, Training, train
from regraft.graft.options import Options
from regraft.graft.preparation import Prepared, training_stage
from regraft.graft.problem import Task
from regraft.graft.training.behind import behind
from regraft.graft.training.dense import RATE, positions_of
from regraft.graft.training.finetune import grafted
from regraft.graft.training.grafted import Grafted
from regraft.graft.training.instruments import Instruments
from regraft.graft.training.live import probed_module
from regraft.graft.training.price import price
from regraft.graft.training.probing import FeatureRows, probing_config, starting_head
from regraft.graft.training.problem import live_steps, planned
from regraft.graft.training.start import random_head
from regraft.record import Cost

__all__ = ["training_cost"]

_PROBED, _LOOKED_AT = 2_000, 12  # rows of timed epochs of head probing, and of dear instruments, at most


def training_cost(ready: Prepared, options: Options) -> tuple[Cost, ...]:
    """Seconds, FLOPs and backbone passes of a recipe's trainings, by stage; none where it trains nothing.

    ``train``: two steps of one batch are run on a copy of the network and the second is timed; the operations of one
    row's forward and backward pass are counted, and where lower layers stay a pass of theirs. The steps are those of
    the whole choice and the final trainings, if nothing diverges, and those of heads that are probed through the
    network. A step through taps of many layers is timed through the embedding's alone. ``probing``, where
    heads are trained on stored features: two epochs of it are timed. ``instruments``: what they do where a training
    begins is done and timed, the rest is as many notes of the same kind.
    """
    if ready.recipe.train is None:
        return ()
    train, probe = training_stage(ready), ready.recipe.probe
    fit = ready.fit
    kept = finals(ready)
    twice, seed = kept > 1, options.seed
    live = live_steps(probe, train, len(fit), twice=twice)
    steps = planned(probe, train, len(fit), twice=twice) - live
    size = min(train.config.batch_size, len(fit))
    part = fit.take(np.arange(max(2, size)))  # a training has two rows
    task = Task(part.target, None, ready.metric, seed)  # type: ignore[arg-type]
    last = [block.name for block in ready.plan.blocks if block.kind == "embedding"][-1:]
    plan = ready.plan.only(last or [ready.plan.blocks[-1].name])
    module = grafted(random_head(ready.network, plan, task, seed), task, train.tuning)
    inputs = ManifestRows.of(ready.network, part, train.augment, workers=0)
    looking = _looking(module, inputs, options)
    whole, cost = _steps(ready, task, module, inputs, train.at(min(train.lrs), seed), steps)
    if probe is not None and live:
        probed = probed_module(starting_head(ready.network, plan, task, probe.hidden, seed), task, train.tuning.anew)
        rows = inputs if probe.augmented else inputs.plain()
        more = _steps(ready, task, probed, rows, probing_config(probe, 1, seed), live)[1]
        cost = Cost(
            "train",
            cost.seconds + more.seconds,
            backbone_passes=cost.backbone_passes + more.backbone_passes,
            flops=cost.flops + more.flops,
        )
    costs = [cost]
    stored = probe is not None and not (probe.augmented or probe.aspp or train.tuning.anew)
    if probe is not None and stored and max(probe.candidates) > 0:
        seconds = (1 + kept) * max(probe.candidates) * _probing_epoch(ready, task)
        costs.append(Cost("probing", seconds))
    if looking is not None:
        epochs = max(1, round(train.config.total(len(fit)) / train.config.batches(len(fit))))
        took, passed = looking.foreseen(epochs, len(fit))
        passes = kept * passed / len(ready.manifest)
        costs.append(Cost("instruments", kept * took, backbone_passes=passes, flops=kept * passed * whole // 3))
    return tuple(costs)


def _steps(
    ready: Prepared, task: Task, module: Grafted, inputs: ManifestRows, config: TrainConfig, steps: int
) -> tuple[int, Cost]:
    """Operations of a row's whole step, and what so many steps cost."""
    given = behind(module, inputs, len(ready.fit))
    config = replace(config, loop=replace(config.loop, patience=None))  # no rows are held out of two steps
    device = str(ready.network.device)
    run = Training(module, given, config, Objective.of(task), device=device)
    size = torch.arange(min(config.batch_size, len(inputs)))
    began = time.perf_counter()
    given.inputs(size)  # all of them, where what lies below is kept
    apart = (time.perf_counter() - began) / len(inputs)
    once = price(module, inputs, given)
    run.advance(1, sparing=True)
    began = time.perf_counter()
    if run.total > 1:
        run.advance(2, sparing=True)
    else:
        module(place(given.inputs(size), device))
    took = time.perf_counter() - began
    below = len(ready.fit) if once.rows else 0
    passes, flops = replace(once, rows=below).of(steps * len(size))
    seconds = steps * took + below * apart
    return once.whole, Cost("train", seconds, backbone_passes=passes / len(ready.manifest), flops=flops)


def _looking(module: Grafted, inputs: ManifestRows, options: Options) -> Instruments | None:
    """What will look on, after what it does where a training begins."""
    if options.instruments == "none":
        return None
    watch = Instruments(options.instruments, options.seed)
    few = inputs if options.instruments == "cheap" else inputs.take(np.arange(min(_LOOKED_AT, len(inputs))))
    watch.begin(module, few)
    return watch


def _probing_epoch(ready: Prepared, task: Task) -> float:
    """Seconds of one epoch over all rows' features, of masks over positions: of the second of two, on drawn numbers."""
    probe, (rows, width) = ready.recipe.probe, head_shape(ready)
    if probe is None:
        return 0.0
    outputs, dense = task.target.outputs, task.kind == "segmentation"
    count = min(rows, _PROBED)
    drawn = torch.randn(count, width, generator=torch.Generator().manual_seed(0))
    if dense:
        labels, objective = torch.arange(count) % outputs, Objective("multiclass", "accuracy")
        probe = probe.filled(RATE, positions_of(rows, len(ready.fit)))
    else:
        values = torch.as_tensor(np.resize(task.target.values, (count, *task.target.values.shape[1:])))
        labels = values.float() if values.is_floating_point() else values
        objective = Objective(task.kind, task.metric) if task.kind == "regression" else Objective.of(task)
    times = []

    def tick(epoch: int, _: nn.Module) -> None:
        times.append(time.perf_counter())

    layers = [nn.Linear(width, probe.hidden), nn.ReLU()] if probe.hidden else []
    head = nn.Sequential(*layers, nn.Linear(probe.hidden or width, outputs))
    train(head, FeatureRows(drawn, labels), probing_config(probe, 2, 0), objective=objective, on_epoch=tick)
    return (times[-1] - times[-2]) * rows / count
