"""Measures of a network, its features and its head: numbers in, numbers out; no method, no training, no record."""

from regraft.diagnose.curvature import Hessian, Spectrum, curvature, ggn
from regraft.diagnose.deviation import Deviation, DeviationCourse, deviation, deviation_course
from regraft.diagnose.distances import Embedding, mds, weight_distances
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
from regraft.diagnose.landscape.directions import Directions, given_directions, random_directions, towards
from regraft.diagnose.landscape.plane import Plane, Profile, plane, profile
from regraft.diagnose.landscape.surrogate import Surrogate, surrogate, surrogate_plane
from regraft.diagnose.objective import Objective
from regraft.diagnose.spread import Spread
from regraft.diagnose.transfer.affinity import affinity
from regraft.diagnose.transfer.estimate import Estimate, NotApplicable
from regraft.diagnose.transfer.ranking import Agreement, Difference, Place, Ranking, rank_models, weighted_kendall
from regraft.diagnose.transfer.scores import SCORES, scores
from regraft.diagnose.transfer.theory import Feasibility, Ratio, feasibility, gram, transferred_labels, unit_rows
from regraft.diagnose.weights import LayerChange, weight_changes

__all__ = [
    "SCORES",
    "Agreement",
    "Axes",
    "BatchVariation",
    "Deviation",
    "DeviationCourse",
    "Difference",
    "DifferenceFisher",
    "Directions",
    "Drift",
    "Embedding",
    "Energy",
    "Estimate",
    "Feasibility",
    "Fisher",
    "Hessian",
    "JacobianSpectrum",
    "Kernel",
    "LayerChange",
    "LayerGradient",
    "LayerProjection",
    "LossHessian",
    "Magnitudes",
    "NotApplicable",
    "Objective",
    "Place",
    "Plane",
    "ProductError",
    "Profile",
    "Projection",
    "Projections",
    "Ranking",
    "Ratio",
    "Scaling",
    "SiteGradient",
    "Spectrum",
    "Spread",
    "Surrogate",
    "Variation",
    "affinity",
    "axes",
    "batch_variation",
    "curvature",
    "deviation",
    "deviation_course",
    "drift",
    "energy",
    "exchange",
    "feasibility",
    "feature_kernel",
    "fisher",
    "ggn",
    "given_directions",
    "gram",
    "jacobian_similarities",
    "jacobian_similarity",
    "jacobian_spectrum",
    "magnitudes",
    "mds",
    "plane",
    "product_error",
    "profile",
    "projection",
    "projections",
    "random_directions",
    "rank_models",
    "scaling",
    "scores",
    "shares",
    "surrogate",
    "surrogate_plane",
    "towards",
    "transferred_labels",
    "unit_rows",
    "variation",
    "weight_changes",
    "weight_distances",
    "weighted_kendall",
]
