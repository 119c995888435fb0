"""Trained models with their heads swapped: whether their backbones still speak one language."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regraft.data import Manifest, with_columns
from regraft.diagnose import exchange
from regraft.errors import DataError, RecipeError
from regraft.features import gathered, in_order, pool_batch
from regraft.graft.adapted.model import Adapted, check_modality
from regraft.heads import Response, default_metric
from regraft.linear import Dense, Design
from regraft.wording import some

__all__ = ["head_exchange"]


def head_exchange(
    models: Sequence[Adapted], manifest: Manifest, *, metric: str | None = None, batch_size: int = 64
) -> Tensor:
    """The score of every model's head on every model's backbone (Ren et al., ICLR 2023, Fig. 3).

    It costs one pass of each backbone over the rows; every further head is a product of matrices. A hidden layer under
    a head stays with its backbone: what is swapped is the last layer.

    Args:
        models: of one task, whose heads read the same features, such as fine-tunings from heads of different τ.
        manifest: the labelled rows that score.
        metric: the kind's default if ``None``.
        batch_size: rows a pass.

    Returns:
        ``(M, M)`` float64: entry (i, j) is head i on backbone j, the diagonal the models as they were trained.

    Raises:
        RecipeError: fewer than two models, or heads that read other features or give other classes.
        DataError: no labels, masks, other classes than the models', or inputs that a backbone does not read.
    """
    if len(models) < 2:
        raise RecipeError("heads are swapped between models", expected="at least two", got=str(len(models)))
    first = models[0]
    for model in models:
        if _reads(model) != _reads(first) or model.classes != first.classes or model.derivatives:
            raise RecipeError("these heads cannot be swapped", expected="heads on the same features, of one task")
    target = manifest.target
    if target is None or target.classes != first.classes:
        got = "no labels" if target is None else some(target.classes, 8)
        raise DataError("the rows are not the models'", expected=some(first.classes, 8), got=got)
    if target.masks is not None:
        raise DataError("heads on masks are not swapped", expected="one label a row", got=target.kind)
    response = Response.of(target.kind, target.classes, target.values)
    designs = [_design(model, manifest, batch_size) for model in models]
    return exchange(designs, [model.readout for model in models], response, metric or default_metric(target.kind))


def _reads(model: Adapted) -> tuple[object, ...]:
    """What a head reads: blocks with their widths, the scaling, the kept columns."""
    columns = model.view.columns
    kept = None if columns is None else tuple((name, tuple(index.tolist())) for name, index in columns.items())
    blocks = tuple((block.name, block.width) for block in model.plan.blocks)
    return blocks, model.view.scaling, model.view.renormalised, model.view.unscaled, kept


def _design(model: Adapted, manifest: Manifest, batch_size: int) -> Design:
    check_modality(model.network, manifest)
    manifest = with_columns(manifest, model.columns)
    rows = in_order(len(manifest), batch_size)
    parts = [
        pool_batch(model.network, model.plan.blocks, batch)
        for batch in gathered(model.network.preprocess, manifest.inputs, rows, None)
    ]
    matrices = {b.name: Dense(torch.cat([part[b.name].float().cpu() for part in parts])) for b in model.plan.blocks}
    return model.view.design(matrices, len(model.classes))
