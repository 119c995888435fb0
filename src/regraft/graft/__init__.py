"""Recipes of frozen stages, the adapted model, the artifact, and the scikit-learn face."""

from typing import TYPE_CHECKING, Any

from regraft.graft.adapted.artifact import load_artifact, save_artifact
from regraft.graft.adapted.crops import predict_over_crops
from regraft.graft.adapted.model import Adapted
from regraft.graft.adapted.prediction import Prediction
from regraft.graft.adapted.view import View
from regraft.graft.cost.estimate import estimate
from regraft.graft.diagnosis.case import Scope
from regraft.graft.diagnosis.diagnose import diagnose
from regraft.graft.diagnosis.rank import rank
from regraft.graft.evidence.exchange import head_exchange
from regraft.graft.gradient.recipe import gradient_features, with_gradients
from regraft.graft.later import Later, score_on
from regraft.graft.options import Options, pick_device
from regraft.graft.preparation import prepare
from regraft.graft.pretraining.pretrain import pretrain
from regraft.graft.problem import Head, Problem, Task
from regraft.graft.recipe import METHODS, Recipe
from regraft.graft.run import Run, adapt
from regraft.graft.stages.augment import Augment
from regraft.graft.stages.changes import Changes
from regraft.graft.stages.config import Loop, Optimiser, Schedule, TrainConfig, Tuning
from regraft.graft.stages.features import Features, Select, Solve
from regraft.graft.stages.gradient import Gradients, SetHead
from regraft.graft.stages.posterior import Posterior
from regraft.graft.stages.training import Probe, Reinitialise, Train
from regraft.graft.team import Team, joined

if TYPE_CHECKING:
    from regraft.graft.estimator import GraftClassifier, GraftRegressor

__all__ = [
    "METHODS",
    "Adapted",
    "Augment",
    "Changes",
    "Features",
    "Gradients",
    "GraftClassifier",
    "GraftRegressor",
    "Head",
    "Later",
    "Loop",
    "Optimiser",
    "Options",
    "Posterior",
    "Prediction",
    "Probe",
    "Problem",
    "Recipe",
    "Reinitialise",
    "Run",
    "Schedule",
    "Scope",
    "Select",
    "SetHead",
    "Solve",
    "Task",
    "Team",
    "Train",
    "TrainConfig",
    "Tuning",
    "View",
    "adapt",
    "diagnose",
    "estimate",
    "gradient_features",
    "head_exchange",
    "joined",
    "load_artifact",
    "pick_device",
    "predict_over_crops",
    "prepare",
    "pretrain",
    "rank",
    "save_artifact",
    "score_on",
    "with_gradients",
]


def __getattr__(name: str) -> Any:
    """The scikit-learn face, loaded on first use: importing scikit-learn takes as long as a third of torch."""
    if name in ("GraftClassifier", "GraftRegressor"):
        from regraft.graft import estimator

        return getattr(estimator, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
