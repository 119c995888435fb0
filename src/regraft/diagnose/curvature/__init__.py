"""Curvature of a loss: its Hessian and Gauss-Newton matrix, their extreme eigenvalues, spectral density and trace."""

from regraft.diagnose.curvature.hessian import Hessian, ggn
from regraft.diagnose.curvature.spectrum import Spectrum, curvature

__all__ = ["Hessian", "Spectrum", "curvature", "ggn"]
