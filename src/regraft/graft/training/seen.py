"""What head probing gave, beside what training was asked to do: the evidence that advice is drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np

from regraft.data import Target
from regraft.diagnose import Energy, energy
from regraft.graft.adapted.model import Adapted
from regraft.graft.frozen.problem import FeatureProblem
from regraft.graft.stages.training import Probe
from regraft.graft.training.probing import Heads
from regraft.network import Network

__all__ = ["commonest", "probing_figure"]


def probing_figure(
    frozen: FeatureProblem, network: Network, prepared: Heads, probe: Probe, chosen: int
) -> dict[str, Any]:
    """The heads of a trajectory as plain JSON.

    Args:
        frozen: the features and labels that they were probed on.
        network: the backbone of these features.
        prepared: the heads.
        probe: how.
        chosen: the τ that was taken.

    Returns:
        ``taus``: for each τ the ``accuracy`` on the probed rows and the average ``energy`` that training would begin
        with; ``None`` where rows have no one class, or layers below a head were probed with it; ``curve``: the
        accuracy of each epoch as the head moved; ``chosen``; ``smoothing``; ``stronger``: the head that could fit
        more, ``None`` where this one has layers under it already.
    """
    rows, stronger = [], "mlp"
    for tau, head in sorted(prepared.by_tau.items()):
        stronger = "aspp" if head.kind == "segmentation" else "mlp"
        found = _energy(frozen, head) if head.network is network and head.neck is None else None
        accuracy = prepared.accuracy.get(tau) if found is None else found.right
        rows.append({"tau": tau, "accuracy": accuracy, "energy": None if found is None else found.mean})
    return {
        "taus": rows, "curve": list(prepared.curve), "chosen": chosen, "smoothing": probe.smoothing,
        "stronger": None if probe.hidden or probe.aspp else stronger,
    }  # fmt: skip


def commonest(target: Target) -> float | None:
    """The share of rows that are of the class of most; ``None`` where rows have no one class."""
    if target.kind not in ("binary", "multiclass") or not len(target):
        return None
    return float(np.bincount(target.values).max() / len(target))


def _energy(frozen: FeatureProblem, head: Adapted) -> Energy:
    """By the features that are there, without a pass."""
    logits = head.readout.logits(head.view.design(frozen.matrices, frozen.task.target.outputs))
    return energy(logits / head.readout.temperature, frozen.task.response)
