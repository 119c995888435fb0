"""The Jacobian as a design, and its kernel."""

from regraft.features.tangent.design import Tangent
from regraft.features.tangent.kernel import Form
from regraft.features.tangent.ntk import NTK, form_error, ntk, ntk_adjoints, ntk_project, ntk_within_rows

__all__ = [
    "NTK",
    "Form",
    "Tangent",
    "form_error",
    "ntk",
    "ntk_adjoints",
    "ntk_project",
    "ntk_within_rows",
]
