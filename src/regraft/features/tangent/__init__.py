"""The network's Jacobian with respect to selected parameters, as a design."""

from regraft.features.tangent.design import Tangent, TangentCost

__all__ = ["Tangent", "TangentCost"]
