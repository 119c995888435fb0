"""Recipes of frozen stages, the adapted model, the artifact, and the scikit-learn face."""

from regraft.adapt.adapted import Adapted, Prediction
from regraft.adapt.artifact import load_artifact, save_artifact
from regraft.adapt.estimate import estimate
from regraft.adapt.estimator import GraftClassifier, GraftRegressor
from regraft.adapt.recipe import METHODS, Features, Recipe, Solve
from regraft.adapt.run import Options, Run, adapt, pick_device, prepare

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
