"""Losses, penalties and solvers: a Design and labels become a Readout."""

from regraft.heads.calibration import link, reliability, temperature
from regraft.heads.convex.minimise import SOLVERS, minimise
from regraft.heads.convex.problem import ConvexFit, ConvexProblem
from regraft.heads.gp.cache import VarianceCache, variance_cache
from regraft.heads.gp.classification import Laplace, laplace, scale_by_evidence
from regraft.heads.gp.iterative import Iteration
from regraft.heads.gp.parameters import CoefficientPosterior, condition_design
from regraft.heads.gp.regression import Posterior, condition
from regraft.heads.gp.spectrum import Hyperparameters, Spectrum
from regraft.heads.gp.variational import Descent, Variational, variational
from regraft.heads.intervals import calibrated_range, difference, measure, paired_difference, paired_error, wilson
from regraft.heads.metrics import (
    METRICS,
    NINETY,
    PROPER,
    WITH_SPREAD,
    default_metric,
    ece,
    fitting,
    higher_is_better,
    nll,
    score,
)
from regraft.heads.readout import Readout, Solution, Status, UnconvergedWarning
from regraft.heads.response import KINDS, Kind, Link, Response
from regraft.heads.selection.chosen import (
    Choice,
    Overlap,
    mean_depth,
    overlap,
    ranked,
    stability,
)
from regraft.heads.selection.head2toe import select
from regraft.heads.selection.kept import FRACTIONS, TOLERANCE, WEAKER, WIDER, Cell, Selection, keep, kept_design
from regraft.heads.selection.penalised_scorers import ExactGroupLasso, LayerGroups
from regraft.heads.selection.ranks import RankCurve, RankScore, rank_curve
from regraft.heads.selection.reference import ReferenceCell, select_reference
from regraft.heads.selection.reference_scores import AdamScores
from regraft.heads.selection.relevance import relevance
from regraft.heads.selection.scorer import Scorer
from regraft.heads.selection.scorers import ByLayer, FirstGradient, RandomScores, Relevance, Stability, Variance
from regraft.heads.solve import FORMS, refit, solve, solve_best
from regraft.heads.sparse.path import GroupLassoFit, GroupLassoPath, group_lasso, lasso
from regraft.heads.sparse.solve import solve_sparse

__all__ = [
    "FORMS",
    "FRACTIONS",
    "KINDS",
    "METRICS",
    "NINETY",
    "PROPER",
    "SOLVERS",
    "TOLERANCE",
    "WEAKER",
    "WIDER",
    "WITH_SPREAD",
    "AdamScores",
    "ByLayer",
    "Cell",
    "Choice",
    "CoefficientPosterior",
    "ConvexFit",
    "ConvexProblem",
    "Descent",
    "ExactGroupLasso",
    "FirstGradient",
    "GroupLassoFit",
    "GroupLassoPath",
    "Hyperparameters",
    "Iteration",
    "Kind",
    "Laplace",
    "LayerGroups",
    "Link",
    "Overlap",
    "Posterior",
    "RandomScores",
    "RankCurve",
    "RankScore",
    "Readout",
    "ReferenceCell",
    "Relevance",
    "Response",
    "Scorer",
    "Selection",
    "Solution",
    "Spectrum",
    "Stability",
    "Status",
    "UnconvergedWarning",
    "Variance",
    "VarianceCache",
    "Variational",
    "calibrated_range",
    "condition",
    "condition_design",
    "default_metric",
    "difference",
    "ece",
    "fitting",
    "group_lasso",
    "higher_is_better",
    "keep",
    "kept_design",
    "laplace",
    "lasso",
    "link",
    "mean_depth",
    "measure",
    "minimise",
    "nll",
    "overlap",
    "paired_difference",
    "paired_error",
    "rank_curve",
    "ranked",
    "refit",
    "relevance",
    "reliability",
    "scale_by_evidence",
    "score",
    "select",
    "select_reference",
    "solve",
    "solve_best",
    "solve_sparse",
    "stability",
    "temperature",
    "variance_cache",
    "variational",
    "wilson",
]
