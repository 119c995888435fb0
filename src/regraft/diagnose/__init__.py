"""Measures of a network, its features and its head: numbers in, numbers out; no method, no training, no record."""

from regraft.diagnose.drift import Axes, Drift, axes, drift
from regraft.diagnose.energy import Energy, energy, shares
from regraft.diagnose.exchange import exchange
from regraft.diagnose.kernel import Kernel, feature_kernel
from regraft.diagnose.weights import LayerChange, weight_changes

__all__ = [
    "Axes",
    "Drift",
    "Energy",
    "Kernel",
    "LayerChange",
    "axes",
    "drift",
    "energy",
    "exchange",
    "feature_kernel",
    "shares",
    "weight_changes",
]
