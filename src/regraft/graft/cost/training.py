"""What training will cost, said before it runs: one step is timed and counted, the rest is arithmetic."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from regraft.data import Manifest
from regraft.features import grid_of
from regraft.graft.adapted.model import Adapted
from regraft.graft.cost.pricing import below_head, finals, head_shape
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.objective import Objective
from regraft.graft.loop.train import TrainConfig, Training, train
from regraft.graft.options import Options
from regraft.graft.preparation import Prepared, training_stage
from regraft.graft.problem import Task
from regraft.graft.training.behind import behind
from regraft.graft.training.dense import IMAGES, RATE, OnMaps, looking_around, positions_of
from regraft.graft.training.finetune import grafted
from regraft.graft.training.grafted import Grafted
from regraft.graft.training.instruments import Instruments
from regraft.graft.training.live import probed_module
from regraft.graft.training.price import price, spaced
from regraft.graft.training.probing import FeatureRows, probing_config, starting_head
from regraft.graft.training.problem import live_steps, planned
from regraft.record import Cost

__all__ = ["changed_bytes", "training_cost"]

_PROBED, _LOOKED_AT = 2_000, 12  # rows of timed epochs of head probing, and of dear instruments, at most
_STILL = 1e-12  # a learning rate that moves nothing


def training_cost(ready: Prepared, options: Options) -> tuple[Cost, ...]:
    """Seconds, FLOPs and backbone passes of a recipe's trainings, by stage; none where it trains nothing.

    ``train``: two steps of one batch are run on a copy of the network and the second is timed; the operations of one
    row's forward and backward pass are counted, and where lower layers stay a pass of theirs. The steps are those of
    the whole choice and the final trainings, if nothing diverges, and those of heads that are probed through the
    network. A step through taps of many layers is timed through the embedding's alone. ``probing``, where heads are
    trained on stored features or maps: two epochs of it are timed. ``instruments``: what they do where a training
    begins is done and timed, the rest is as many notes of the same kind.
    """
    if ready.recipe.train is None:
        return ()
    train, probe = training_stage(ready), ready.recipe.probe
    fit = ready.fit
    kept = finals(ready)
    twice = kept > 1
    live = live_steps(probe, train, len(fit), twice=twice)
    steps = planned(probe, train, len(fit), twice=twice) - live
    part, task = _some(ready, train.config, options.seed)
    inputs = ManifestRows.of(ready.network, part, train.augment, workers=0)
    module = grafted(_start(ready, task), task, train.tuning)
    looking = _looking(module, inputs, options)
    whole, cost = _steps(ready, task, module, inputs, train.config, steps)
    if probe is not None and live:
        config = probing_config(probe, 1, options.seed)
        part, task = _some(ready, config, options.seed)
        inputs = ManifestRows.of(ready.network, part, train.augment if probe.augmented else None, workers=0)
        probed = probed_module(_start(ready, task), task, train.tuning.anew)
        more = _steps(ready, task, probed, inputs, config, live)[1]
        cost = Cost(
            "train",
            cost.seconds + more.seconds,
            backbone_passes=cost.backbone_passes + more.backbone_passes,
            flops=cost.flops + more.flops,
        )
    costs = [cost]
    if probe is not None and not live and max(probe.candidates) > 0:
        seconds = (1 + kept) * max(probe.candidates) * _probing_epoch(ready, task)
        costs.append(Cost("probing", seconds))
    if looking is not None:
        epochs = max(1, round(train.config.total(len(fit)) / train.config.batches(len(fit))))
        took, passed = looking.foreseen(epochs, len(fit))
        passes = kept * passed / len(ready.manifest)
        costs.append(Cost("instruments", kept * took, backbone_passes=passes, flops=kept * passed * whole // 3))
    return tuple(costs)


def changed_bytes(ready: Prepared) -> int:
    """Of the backbone's tensors that training changes, whole, without those of its own head; of layers under a new
    head too."""
    task = Task(ready.fit.labels, None, ready.metric)
    module = Grafted(_start(ready, task), training_stage(ready).tuning)
    moving, held = set(module.moving), module.backbone.state_dict()
    kept = below_head(module.network, {name: value for name, value in held.items() if name in moving})
    if module.neck is not None:
        kept += module.neck.tensors().values()
    return sum(tensor.numel() * tensor.element_size() for tensor in kept)


def _some(ready: Prepared, config: TrainConfig, seed: int) -> tuple[Manifest, Task]:
    """As many rows as a step takes, but two at least, for a training has two; and their task."""
    count = len(ready.fit)
    part = ready.fit.take(spaced(count, max(2, round(count / config.batches(count)))).numpy())
    return part, Task(part.labels, None, ready.metric, seed)


def _start(ready: Prepared, task: Task) -> Adapted:
    """The head that a training begins with, drawn at random; of taps of many layers one on the embedding's alone."""
    last = [block.name for block in ready.plan.blocks if block.kind == "embedding"][-1:]
    plan, probe = ready.plan.only(last or [ready.plan.blocks[-1].name]), ready.recipe.probe
    if probe is not None and probe.aspp:
        return looking_around(ready.network, plan, task)
    return starting_head(ready.network, plan, task, 0 if probe is None else probe.hidden, task.seed)


def _steps(
    ready: Prepared, task: Task, module: Grafted, inputs: ManifestRows, config: TrainConfig, steps: int
) -> tuple[int, Cost]:
    """Operations of a row's whole step, and what so many steps cost, where ``inputs`` are the rows of one."""
    given = behind(module, inputs, len(ready.fit))
    # no rows are held out of two steps, which are to diverge at no rate
    loop, optimiser = replace(config.loop, patience=None), replace(config.optimiser, lr=_STILL)
    two = replace(config, epochs=None, steps=2, loop=loop, optimiser=optimiser)
    run = Training(module, given, two, Objective.of(task), device=str(ready.network.device))
    began = time.perf_counter()
    given.inputs(torch.arange(len(inputs)))  # all of them, where what lies below is kept
    apart = (time.perf_counter() - began) / len(inputs)
    once = price(module, inputs, given)
    run.advance(1, sparing=True)
    began = time.perf_counter()
    run.advance(2, sparing=True)
    took = time.perf_counter() - began
    below = len(ready.fit) if once.rows else 0
    rows = round(steps * len(ready.fit) / config.batches(len(ready.fit)))
    passes, flops = replace(once, rows=below).of(rows)
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


_Timed = tuple[nn.Module, FeatureRows, Objective]


def _probing_epoch(ready: Prepared, task: Task) -> float:
    """Seconds of one epoch over what is stored of all rows: of the second of two, on drawn numbers."""
    probe, (rows, width) = ready.recipe.probe, head_shape(ready)
    if probe is None:
        return 0.0
    if task.kind == "segmentation":
        probe = probe.filled(RATE, IMAGES if probe.aspp else positions_of(rows, len(ready.fit)))
    config = probing_config(probe, 2, 0)
    if probe.aspp:
        rows = len(ready.fit)
        head, drawn, objective = _on_maps(ready, task, min(rows, config.batch_size))
    else:
        head, drawn, objective = _on_features(task, (min(rows, _PROBED), width), probe.hidden)
    times = []

    def tick(epoch: int, _: nn.Module) -> None:
        times.append(time.perf_counter())

    train(head, drawn, config, objective=objective, on_epoch=tick)
    return (times[-1] - times[-2]) * rows / len(drawn)


def _on_features(task: Task, shape: tuple[int, int], hidden: int) -> _Timed:
    """A head on features of rows, of masks on those of positions."""
    (count, width), outputs = shape, task.target.outputs
    drawn = torch.randn(count, width, generator=torch.Generator().manual_seed(0))
    if task.kind == "segmentation":
        labels, objective = torch.arange(count) % outputs, Objective("multiclass", "accuracy")
    else:
        values = torch.as_tensor(np.resize(task.target.values, (count, *task.target.values.shape[1:])))
        labels = values.float() if values.is_floating_point() else values
        objective = Objective(task.kind, task.metric) if task.kind == "regression" else Objective.of(task)
    layers = [nn.Linear(width, hidden), nn.ReLU()] if hidden else []
    return nn.Sequential(*layers, nn.Linear(hidden or width, outputs)), FeatureRows(drawn, labels), objective


def _on_maps(ready: Prepared, task: Task, count: int) -> _Timed:
    """A head on masks that looks around each position, on whole maps."""
    (block,) = ready.plan.blocks
    grid = grid_of(block)
    drawn = torch.randn(count, block.width, generator=torch.Generator().manual_seed(0))
    labels = (torch.arange(count * math.prod(grid)) % task.target.outputs).reshape(count, *grid)
    return OnMaps(_start(ready, task)), FeatureRows(drawn, labels), Objective.of(task)
