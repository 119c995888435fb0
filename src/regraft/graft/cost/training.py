"""What training will cost, said before it runs: one step is timed and counted, the rest is arithmetic."""

from __future__ import annotations

import time

import numpy as np
import torch

from regraft.graft.options import Options
from regraft.graft.preparation import Prepared, training_stage
from regraft.graft.problem import Task
from regraft.graft.training.finetune import grafted, lay_out, random_head, step_flops
from regraft.graft.training.loop import Training
from regraft.graft.training.manifest_rows import ManifestRows
from regraft.graft.training.objective import Objective
from regraft.graft.training.problem import planned
from regraft.record import Cost

__all__ = ["training_cost"]


def training_cost(ready: Prepared, options: Options) -> Cost | None:
    """Seconds, FLOPs and backbone passes of a recipe's trainings; ``None`` where it trains nothing.

    Two steps of one batch are run on a copy of the network and the second is timed; the operations of one row's
    forward and backward pass are counted. The steps are those of the whole choice and the final trainings, if
    nothing diverges. A step through taps of many layers is timed through the embedding's alone.
    """
    if ready.recipe.train is None:
        return None
    train = training_stage(ready)
    fit = ready.fit
    twice = len(ready.manifest.rows_of("validation")) > 0 or ready.test is None
    steps = planned(ready.recipe.probe, train, len(fit), twice=twice)
    size = min(train.config.batch_size, len(fit))
    part = fit.take(np.arange(size))
    task = Task(part.target, None, ready.metric, options.seed)  # type: ignore[arg-type]
    last = [block.name for block in ready.plan.blocks if block.kind == "embedding"][-1:]
    plan = ready.plan.only(last or [ready.plan.blocks[-1].name])
    module = lay_out(grafted(random_head(ready.network, plan, task, options.seed), task, train.tuning))
    inputs = ManifestRows.of(ready.network, part, train.augment, workers=0)
    flops = step_flops(module, inputs)
    from_config = train.at(min(train.lrs), options.seed)
    run = Training(module, inputs, from_config, Objective.of(task), device=str(ready.network.device))
    run.advance(1, sparing=True)
    began = time.perf_counter()
    if run.total > 1:
        run.advance(2, sparing=True)
    else:
        module(ready.network.place(inputs.inputs(torch.arange(size))))
    seconds = time.perf_counter() - began
    rows = steps * size
    return Cost("train", steps * seconds, backbone_passes=rows / len(ready.manifest), flops=rows * flops)
