"""What gradients say: how large they are, how they grow downwards, what steps along them do, how weights meet them."""

from regraft.diagnose.gradients.magnitude import LayerGradient, Magnitudes, magnitudes
from regraft.diagnose.gradients.projection import LayerProjection, Projection, Projections, projection, projections
from regraft.diagnose.gradients.scaling import Scaling, SiteGradient, scaling
from regraft.diagnose.gradients.variation import BatchVariation, Variation, batch_variation, variation

__all__ = [
    "BatchVariation",
    "LayerGradient",
    "LayerProjection",
    "Magnitudes",
    "Projection",
    "Projections",
    "Scaling",
    "SiteGradient",
    "Variation",
    "batch_variation",
    "magnitudes",
    "projection",
    "projections",
    "scaling",
    "variation",
]
