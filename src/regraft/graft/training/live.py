"""Head probing through the network itself: on augmented images, or with the top blocks as part of the head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from regraft.errors import ArtifactError
from regraft.graft.adapted.model import Adapted
from regraft.graft.loop.checkpoint import read, write
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.objective import Objective
from regraft.graft.loop.outcome import DivergedError
from regraft.graft.loop.train import Training
from regraft.graft.problem import Task
from regraft.graft.stages.config import Tuning
from regraft.graft.stages.training import Probe
from regraft.graft.training.finetune import grafted, training
from regraft.graft.training.grafted import Grafted
from regraft.graft.training.price import price
from regraft.graft.training.probing import Heads, probing_config
from regraft.graft.training.trial import Work
from regraft.network.hidden import hidden_parameters

__all__ = ["live_heads", "probed_module"]


def live_heads(
    start: Adapted, rows: ManifestRows, task: Task, stage: Probe, taus: Sequence[int], anew: tuple[str, ...], work: Work
) -> Heads:
    """One trajectory of max(τ) epochs that trains the head, a hidden layer under it and the blocks ``anew``, and keeps
    the model at every τ. What lies below stays as it is, its normalisation too.

    Of augmented rows every epoch is a pass of the backbone, where probing on features takes one pass for all; else it
    is one of what moves (:mod:`regraft.graft.training.behind`). The trajectory is checkpointed, and each τ's weights
    are kept beside it, so that what was killed goes on bit for bit; where it went past a τ of which there is no such
    file, for other ones were asked for then, it begins anew.

    Args:
        start: the head at τ = 0; its readout is linear.
        rows: augmented as they say if ``stage.augmented``, else as they are.
        task: of these rows.
        stage: how.
        taus: which heads to keep.
        anew: paths of blocks whose weights were drawn anew.
        work: where the trajectory is kept and counted.
    """
    if not stage.augmented:
        rows = rows.plain()
    module = probed_module(start, task, anew)
    kept = {0: start} if 0 in taus else {}
    longest = max(taus)
    if longest == 0:
        return Heads(kept, {0: None})
    began = {name: value.clone() for name, value in module.state_dict().items()}
    config, objective = probing_config(stage, longest, task.seed), Objective.of(task)
    run = training(module, rows, config, objective, None, None)
    run.folder = work.place(run.key)
    run.open()
    files = {tau: run.folder / f"tau-{tau}.safetensors" for tau in sorted(set(taus)) if tau > 0}
    found = _passed(run, module, files)
    if run.team.sum(torch.tensor([float(found is None)])).item():
        module.load_state_dict(began)
        run = training(module, rows, config, objective, None, run.folder)
        run.open(resume=False)
        found = {}
    kept |= found or {}
    work.earlier.setdefault(files[longest].parent, run.step)
    if run.step == 0 and run.team.first:  # none is of this trajectory
        for file in files[longest].parent.glob("tau-*.safetensors"):
            file.unlink()
    said, spent = "", 0
    for tau, file in files.items():
        if tau in kept:
            continue
        before = run.step
        try:
            run.advance(tau * run.per_epoch, progress=lambda *_: work.step(), sparing=True)
        except DivergedError as error:
            said = error.how
            break
        finally:
            spent += run.step - before
        if run.team.first:
            write(file, module.state_dict(), {"tau": tau, "step": run.step})
        kept[tau] = _probed(module)
    if spent:
        work.trained(*price(module, rows, run.rows).of(round(spent * len(rows) / run.per_epoch)))
    return Heads.along(kept, run.history, said)


def probed_module(start: Adapted, task: Task, anew: tuple[str, ...]) -> Grafted:
    """The module of which only the head and what belongs to it are trained."""
    module = grafted(start, task, Tuning(norms="frozen", anew=anew))
    free = set() if module.adapted.own_head is None else set(hidden_parameters(module.network))
    for name, parameter in module.backbone.named_parameters():
        inside = any(name.startswith(f"{path}.") for path in module.anew)
        parameter.requires_grad_(name in free or inside)
    return module


def _passed(run: Training, module: Grafted, files: Mapping[int, Path]) -> dict[int, Adapted] | None:
    """The models of every τ that a trajectory went past before it was killed; ``None`` where one was not kept then, or
    is damaged. The module ends as it came."""
    now = {name: value.clone() for name, value in module.state_dict().items()}
    found: dict[int, Adapted] = {}
    for tau, file in files.items():
        if tau * run.per_epoch >= run.step:
            continue
        try:
            tensors, state = read(file)
        except ArtifactError:
            return None
        if state != {"tau": tau, "step": tau * run.per_epoch}:
            return None
        module.load_state_dict(tensors)
        found[tau] = _probed(module)
    module.load_state_dict(now)
    return found


def _probed(module: Grafted) -> Adapted:
    found = module.result()
    return replace(found, readout=replace(found.readout, form="probed"))
