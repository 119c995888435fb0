"""What is refused of a training before the pass, because this backbone or these labels cannot be trained so."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from regraft.data import Manifest
from regraft.errors import RecipeError
from regraft.graft.options import Options
from regraft.graft.recipe import METHODS, Recipe
from regraft.graft.stages.augment import Augment, check_shift, not_augmented
from regraft.graft.stages.training import Train
from regraft.network import ImagePreprocess, Network
from regraft.network.blocks import members
from regraft.network.norms import lone_norms

__all__ = ["check_instruments", "check_shifts", "check_training"]


def check_training(network: Network, recipe: Recipe, manifest: Manifest) -> None:
    """Refuse, before the pass, what this backbone cannot be trained with, and labels that cannot be trained on so.

    Raises:
        RecipeError: there is something; nothing is refused of a recipe that trains nothing.
    """
    if recipe.train is None:
        return
    _check_backbone(network, recipe.train)
    _check_norms(network, recipe)
    _check_smoothing(recipe, manifest)


def check_shifts(network: Network, augment: Augment) -> None:
    """Refuse, before the pass, shifts that can leave nothing of an image.

    Raises:
        RecipeError: they are as long as a side of what the network reads.
    """
    preprocess = network.preprocess
    if not augment.shift or not isinstance(preprocess, ImagePreprocess) or not (preprocess.crop or preprocess.resize):
        return  # images of any size are bounded by none
    check_shift(augment, *preprocess.example(1).shape[-2:])


def check_instruments(recipe: Recipe, options: Options) -> None:
    """Refuse instruments that were asked for and would have no training to look on at.

    Raises:
        RecipeError: they were.
    """
    if recipe.train is None and options.instruments == "all":
        fits = [other.name for other in METHODS.values() if other.train is not None]
        raise RecipeError(
            f"method {recipe.name!r} trains nothing", got="--instruments all", do=f"use it with {', '.join(fits)}"
        )


def _reached(network: Network, names: Sequence[str]) -> bool:
    """Whether the output depends on some of these parameters, as far as autograd can see."""
    moving = {name: network.params[name].detach().requires_grad_() for name in names}
    with torch.enable_grad():
        return network(moving, {}, network.example(2)).requires_grad


def _check_backbone(network: Network, train: Train) -> None:
    """Refuse what this backbone cannot be trained with."""
    frozen = {name for pattern in train.tuning.freeze for name in network.select(pattern)}
    own = (f"{network.head}.",) if network.head else ()  # its last layer, which gives way to the task's
    if frozen and all(name in frozen or name.startswith(own) for name in network.params):
        raise RecipeError(
            f"nothing of {network.name} is left to train",
            expected="patterns that leave some of its parameters",
            got=f"--freeze {' '.join(train.tuning.freeze)}",
            do="freeze less, or use probe or all-layers, which train nothing of a backbone",
        )
    moving = [name for name in network.params if name not in frozen and not name.startswith(own)]
    if moving and not _reached(network, moving):
        raise RecipeError(
            f"nothing of {network.name} can be trained: no gradient reaches it from its output",
            expected="a forward pass of differentiable operations",
            got="one under torch.no_grad, over detached tensors or through numpy",
            do="let its forward() keep the graph, or use probe or all-layers, which train nothing of a backbone",
        )
    train.config.optimiser.check_blocks(network.name, network.blocks)
    if train.config.batch_size == 1 and train.tuning.norms == "trained":
        example = network.example(1)
        for path in sorted(lone_norms(network.module, example, network.forward)):
            there = [name for name, _ in network.module.get_submodule(path).named_parameters(recurse=False)]
            if not train.tuning.freezes(f"{path}.{name}" for name in there or ("weight", "bias")):
                raise RecipeError(
                    "a batch of one row is too small for BatchNorm by its own statistics", got=f"{path} in training",
                    do="raise --train-batch, or freeze the statistics with --batchnorm frozen",
                )  # fmt: skip
    if train.augment != Augment() and (why := not_augmented(network.preprocess)):
        raise RecipeError("only images can be augmented", got=why, do="leave --augment out")


def _check_norms(network: Network, recipe: Recipe) -> None:
    """Refuse other statistics of BatchNorm than the method's own where a backbone has none that they could be of."""
    usual = METHODS.get(recipe.name)
    if usual is None or usual.train is None or recipe.train is None:
        return  # a recipe of one's own says what suits it, whatever the backbone
    asked = recipe.train.tuning.norms
    if asked == usual.train.tuning.norms:
        return
    there = [path for path, part in network.module.named_modules() if isinstance(part, _BatchNorm)]
    new, whole = _anew(network, recipe), recipe.fresh is not None and recipe.fresh.blocks is None
    if not whole and any(not any(path == part or path.startswith(f"{part}.") for part in new) for path in there):
        return
    beyond = ", but in blocks drawn anew, where it follows the batches in any case" if there else ""
    raise RecipeError(
        f"{network.name} has no BatchNorm, whose statistics could be frozen or the batch's{beyond}",
        got=f"--batchnorm {'frozen' if asked == 'frozen' else 'batch'}",
        do="leave --batchnorm out",
    )


def _anew(network: Network, recipe: Recipe) -> list[str]:
    """Paths of the modules of blocks whose weights were drawn anew, where not all were."""
    count = 0 if recipe.fresh is None else recipe.fresh.blocks or 0
    return [part for path in network.top_blocks(count) for part in members(network.module, path)]


def _check_smoothing(recipe: Recipe, manifest: Manifest) -> None:
    """Refuse labels that are to be smoothed and cannot be."""
    probed = 0.0 if recipe.probe is None else recipe.probe.smoothing
    trained = 0.0 if recipe.train is None else recipe.train.config.label_smoothing
    if manifest.labels.kind == "regression" and (probed or trained):
        option = "--smoothing" if probed else "--train-smoothing"
        raise RecipeError("numbers are not smoothed", expected="classes", got=option, do=f"leave {option} out")
