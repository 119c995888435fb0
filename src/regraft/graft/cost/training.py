"""What training will cost, said before it runs: one step is timed and counted, the rest is arithmetic."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import nn

from regraft.graft.cost.pricing import finals, head_shape
from regraft.graft.options import Options
from regraft.graft.preparation import Prepared, training_stage
from regraft.graft.problem import Task
from regraft.graft.training.dense import RATE, positions_of
from regraft.graft.training.finetune import grafted, random_head, step_flops
from regraft.graft.training.grafted import Grafted
from regraft.graft.training.instruments import Instruments
from regraft.graft.training.loop import Training, train
from regraft.graft.training.manifest_rows import ManifestRows
from regraft.graft.training.objective import Objective
from regraft.graft.training.probing import FeatureRows, probing_config
from regraft.graft.training.problem import planned
from regraft.record import Cost

__all__ = ["training_cost"]

_PROBED, _LOOKED_AT = 2_000, 12  # rows of timed epochs of head probing, and of dear instruments, at most


def training_cost(ready: Prepared, options: Options) -> tuple[Cost, ...]:
    """Seconds, FLOPs and backbone passes of a recipe's trainings, by stage; none where it trains nothing.

    ``train``: two steps of one batch are run on a copy of the network and the second is timed; the operations of one
    row's forward and backward pass are counted. The steps are those of the whole choice and the final trainings, if
    nothing diverges. A step through taps of many layers is timed through the embedding's alone. ``probing``, where
    heads are trained on stored features: two epochs of it are timed. ``instruments``: what they do where a training
    begins is done and timed, the rest is as many notes of the same kind.
    """
    if ready.recipe.train is None:
        return ()
    train, probe = training_stage(ready), ready.recipe.probe
    fit = ready.fit
    kept = finals(ready)
    steps = planned(probe, train, len(fit), twice=kept > 1)
    size = min(train.config.batch_size, len(fit))
    part = fit.take(np.arange(max(2, size)))  # a training has two rows
    task = Task(part.target, None, ready.metric, options.seed)  # type: ignore[arg-type]
    last = [block.name for block in ready.plan.blocks if block.kind == "embedding"][-1:]
    plan = ready.plan.only(last or [ready.plan.blocks[-1].name])
    module = grafted(random_head(ready.network, plan, task, options.seed), task, train.tuning)
    inputs = ManifestRows.of(ready.network, part, train.augment, workers=0)
    flops = step_flops(module, inputs)
    from_config = train.at(min(train.lrs), options.seed)
    looking = _looking(module, inputs, options)
    run = Training(module, inputs, from_config, Objective.of(task), device=str(ready.network.device))
    run.advance(1, sparing=True)
    began = time.perf_counter()
    if run.total > 1:
        run.advance(2, sparing=True)
    else:
        module(ready.network.place(inputs.inputs(torch.arange(size))))
    seconds = time.perf_counter() - began
    rows = steps * size
    costs = [Cost("train", steps * seconds, backbone_passes=rows / len(ready.manifest), flops=rows * flops)]
    stored = probe is not None and not (probe.augmented or probe.aspp or train.tuning.anew)
    if probe is not None and stored and max(probe.candidates) > 0:
        seconds = (1 + kept) * max(probe.candidates) * _probing_epoch(ready, task)
        costs.append(Cost("probing", seconds))
    if looking is not None:
        epochs = max(1, round(train.config.total(len(fit)) / train.config.batches(len(fit))))
        took, passed = looking.foreseen(epochs, len(fit))
        passes = kept * passed / len(ready.manifest)
        costs.append(Cost("instruments", kept * took, backbone_passes=passes, flops=kept * passed * flops // 3))
    return tuple(costs)


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
