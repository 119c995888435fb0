"""How much each layer moves a head's output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regraft.features import Block
from regraft.heads import Readout
from regraft.linear import Blocks, FeatureDesign

__all__ = ["layer_shares"]


def layer_shares(readout: Readout, design: FeatureDesign, blocks: Sequence[Block]) -> list[dict[str, Any]]:
    r"""How much each layer moves the head's output.

    The contribution of layer ``l`` is ``F_l = X_l W_l`` (N × C), centred over rows, and over outputs for
    a softmax (a shift common to all classes changes nothing). Its share is
    ``‖F_l‖² / Σ_m ‖F_m‖²``. Shares say where
    the head reads, not what a layer could do alone: correlated layers divide what they have in common.
    """
    blocks = tuple(block for block in blocks if block.name in design.matrices)
    energy = []
    for block in blocks:
        one = FeatureDesign({block.name: design.matrices[block.name]}, design.n_outputs)
        value = one.apply(Blocks({block.name: readout.coefficients[block.name].to(one.dtype)}))
        value = value - value.mean(0)
        if readout.link == "softmax":
            value = value - value.mean(1, keepdim=True)
        energy.append(float(value.double().square().sum()))
    total = sum(energy) or 1.0
    return [
        {
            "name": block.name,
            "kind": block.kind,
            "depth": block.depth,
            "width": block.width,
            "kept": design.widths[block.name],
            "share": share / total,
        }
        for block, share in zip(blocks, energy)
    ]
