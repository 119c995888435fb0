"""Measures of a network, its features and its head: numbers in, numbers out; no method, no training, no record."""

from regraft.diagnose.curvature import Hessian, Spectrum, curvature, ggn
from regraft.diagnose.drift import Axes, Drift, axes, drift
from regraft.diagnose.energy import Energy, energy, shares
from regraft.diagnose.exchange import exchange
from regraft.diagnose.fisher import DifferenceFisher, Fisher, LossHessian, ProductError, fisher, product_error
from regraft.diagnose.gradients import (
    BatchVariation,
    LayerGradient,
    LayerProjection,
    Magnitudes,
    Projection,
    Projections,
    Scaling,
    SiteGradient,
    Variation,
    batch_variation,
    magnitudes,
    projection,
    projections,
    scaling,
    variation,
)
from regraft.diagnose.jacobian import (
    JacobianSpectrum,
    jacobian_similarities,
    jacobian_similarity,
    jacobian_spectrum,
)
from regraft.diagnose.kernel import Kernel, feature_kernel
from regraft.diagnose.objective import Objective
from regraft.diagnose.spread import Spread
from regraft.diagnose.weights import LayerChange, weight_changes

__all__ = [
    "Axes",
    "BatchVariation",
    "DifferenceFisher",
    "Drift",
    "Energy",
    "Fisher",
    "Hessian",
    "JacobianSpectrum",
    "Kernel",
    "LayerChange",
    "LayerGradient",
    "LayerProjection",
    "LossHessian",
    "Magnitudes",
    "Objective",
    "ProductError",
    "Projection",
    "Projections",
    "Scaling",
    "SiteGradient",
    "Spectrum",
    "Spread",
    "Variation",
    "axes",
    "batch_variation",
    "curvature",
    "drift",
    "energy",
    "exchange",
    "feature_kernel",
    "fisher",
    "ggn",
    "jacobian_similarities",
    "jacobian_similarity",
    "jacobian_spectrum",
    "magnitudes",
    "product_error",
    "projection",
    "projections",
    "scaling",
    "shares",
    "variation",
    "weight_changes",
]
