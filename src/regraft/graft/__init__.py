"""Recipes of frozen stages, the adapted model, the artifact, and the scikit-learn face."""

from regraft.graft.adapted import Adapted, Prediction
from regraft.graft.artifact import load_artifact, save_artifact
from regraft.graft.estimate import estimate
from regraft.graft.estimator import GraftClassifier, GraftRegressor
from regraft.graft.recipe import METHODS, Features, Recipe, Solve
from regraft.graft.run import Options, Run, adapt, pick_device, prepare

__all__ = [
    "METHODS",
    "Adapted",
    "Features",
    "GraftClassifier",
    "GraftRegressor",
    "Options",
    "Prediction",
    "Recipe",
    "Run",
    "Solve",
    "adapt",
    "estimate",
    "load_artifact",
    "pick_device",
    "prepare",
    "save_artifact",
]
