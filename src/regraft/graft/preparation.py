"""What comes before the solve: rows, backbone and blocks, checked together, and the one pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from regraft.data import NO_LABEL, Manifest, check_target, checked, fold_count, image_size, scan, with_columns
from regraft.errors import DataError, ModelError, RecipeError
from regraft.features import Passing, Plan, Store, find, map_plan, plan, sweep, whole_images
from regraft.files import digest
from regraft.graft.adapted.model import check_features, check_modality, readable
from regraft.graft.alike import together
from regraft.graft.options import Options, check_options, choose_metric
from regraft.graft.problem import Task
from regraft.graft.protocol import check_protocol
from regraft.graft.recipe import Recipe, find_recipe
from regraft.graft.stages.training import Reinitialise, Train
from regraft.graft.team import Team
from regraft.graft.trainable import check_instruments, check_shifts, check_training
from regraft.network import Network, Preprocess, load, reinitialised
from regraft.record import Ledger, counted

__all__ = ["DENSE_BATCH", "Prepared", "Progress", "check_pass", "prepare", "swept", "training_stage"]

#: Images with masks in a batch of training (Ren et al., ICLR 2023, segmentation).
DENSE_BATCH = 16
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Prepared:
    """What is known before the pass: rows, backbone, blocks.

    ``origin`` is the backbone as it was published, where the recipe draws weights anew; ``place`` a digest of where the
    data lie, or of their name on the hub, empty of data in memory.
    """

    recipe: Recipe
    manifest: Manifest
    unlabelled: int
    network: Network
    plan: Plan
    metric: str
    origin: Network | None = None
    place: str = ""

    @property
    def preprocess(self) -> Preprocess:
        """What reads the inputs."""
        return self.network.preprocess

    @cached_property
    def fit(self) -> Manifest:
        """Training and validation rows."""
        return self.manifest.take(np.flatnonzero([part != "test" for part in self.manifest.split]))

    @property
    def parts(self) -> list[Manifest]:
        """What is swept: the fit rows, and the test rows if there are any."""
        return [part for part in (self.fit, self.test) if part is not None]

    @cached_property
    def test(self) -> Manifest | None:
        """The named test split's rows."""
        rows = self.manifest.rows_of("test")
        return self.manifest.take(rows) if len(rows) else None

    def folds(self, options: Options) -> int:
        """The inner folds that the rows allow."""
        return fold_count(self.fit.target, self.fit.groups, options.inner_folds)  # type: ignore[arg-type]

    def task(self, rows: Manifest, options: Options) -> Task:
        """The labels of some of the rows, and how heads are judged on them.

        Raises:
            DataError: the rows have no labels.
        """
        weight: Literal["balanced"] | None = "balanced" if options.class_weight else None
        cross = options.folds is not None
        return Task(rows.labels, rows.groups, self.metric, options.seed, options.inner_folds, weight, cross)


def prepare(
    data: Any,
    model: str | Network,
    *,
    method: str | Recipe = "all-layers",
    options: Options | None = None,
    ledger: Ledger | None = None,
    progress: Progress | None = None,
    reader: Preprocess | None = None,
    read: Sequence[str] = (),
    **columns: Any,
) -> Prepared:
    """Scan the rows, load the backbone, plan the blocks: everything that comes before the pass.

    ``reader`` says which rows are one input, by default the backbone's own preprocessing; ``read`` are the columns
    of a table in their order, by default its own; ``columns`` (kind, label, group, input, ignore) go to
    :func:`regraft.data.scan`.

    Raises:
        DataError, MissingPathError, ModelError, TapError, RecipeError: the user's mistakes, in a sentence.
    """
    ledger = ledger or Ledger()
    options = options or Options()
    recipe = find_recipe(method).solved_by(options.solver).tolerating(options.tolerance)
    device = check_options(options)
    check_instruments(recipe, options)
    with ledger.stage("data"):
        manifest = scan(data, skip_bad=options.skip_bad, progress=_stage(progress, "inspect"), read=read, **columns)
        manifest, unlabelled = _labelled(with_columns(manifest, read))
        if options.limit is not None:
            manifest = _limited(manifest, options.limit, options.seed)
        metric = choose_metric(options, manifest.labels.kind)
        _check_protocol(manifest, metric, options, recipe)
    with ledger.stage("model"):
        network = model if isinstance(model, Network) else load(model, weights=options.weights)
        network = network.to(device)
        check_modality(network, manifest)
        manifest = readable(network, manifest, options.skip_bad)
        _check_protocol(manifest, metric, options, recipe)
        if (kept := together(reader or network.preprocess, manifest)) is not manifest:
            why = (
                "copies of an input are one group" if manifest.groups is None else "groups that share an input are one"
            )
            manifest = kept
            _check_copies(manifest, metric, options, recipe, why)
        origin = None
        if recipe.fresh is not None:
            origin, network = network, _anew(network, recipe.fresh, options.seed)
        if recipe.train is not None:
            check_training(network, recipe, manifest)
        if manifest.labels.kind == "segmentation":
            network, wanted = _dense(network, manifest, recipe)
        else:
            _check_error_bars(recipe, manifest, options)
            if recipe.probe is not None and recipe.probe.aspp:
                raise RecipeError("an aspp head is one on masks", do="leave --head out, or use --head mlp")
            _check_last_layer(network, recipe, manifest.labels.outputs)
            wanted = plan(network, [recipe.features.taps])
        if recipe.train is not None:
            check_shifts(network, recipe.train.augment)
    return Prepared(recipe, manifest, unlabelled, network, wanted, metric, origin, _place(data))


def _place(data: Any) -> str:
    if not isinstance(data, str | os.PathLike):
        return ""
    place = os.path.realpath(data) if os.path.exists(data) else os.fspath(data)
    return digest(os.fsencode(place).hex())[:16]  # a name may be no text


def _check_protocol(manifest: Manifest, metric: str, options: Options, recipe: Recipe) -> None:
    dear, cross = recipe.train is not None, options.folds is not None
    check_protocol(manifest, metric, options.inner_folds, options.seed, dear=dear, cross=cross)


def _check_copies(manifest: Manifest, metric: str, options: Options, recipe: Recipe, why: str) -> None:
    """Refuse rows of which so many are copies that the others, or the groups that are left, are too few to score."""
    try:
        _check_protocol(manifest, metric, options, recipe)
    except DataError as error:
        left = counted(len(set(manifest.groups or ())), "group")
        different, others = counted(len(set(manifest.hashes)), "different input"), "bring rows of other inputs"
        raise DataError(
            f"{error.what}, for {why}",
            expected=error.expected,
            got=f"{left} of {different} in {len(manifest)} rows",
            do=error.do.replace("leave --group out", others).replace("bring rows of more groups", others),
        ) from error


def _check_error_bars(recipe: Recipe, manifest: Manifest, options: Options) -> None:
    """Refuse what a Gaussian process has no use for: weights, for its noise is the same for every row, gaps, for its
    outputs share one kernel of the rows, and more rows than one factorisation takes."""
    if recipe.posterior is None:
        return
    if options.class_weight is not None:
        raise RecipeError(
            f"method {recipe.name!r} weighs all rows alike",
            got=f"--class-weight {options.class_weight}",
            do="leave it out, or use --method gradient",
        )
    values = manifest.labels.values[[part != "test" for part in manifest.split]]
    if len(values) > recipe.posterior.most:
        raise DataError(
            f"{len(values):,} rows are too many for an exact Gaussian process",
            expected=f"at most {recipe.posterior.most:,}",
            do="take fewer rows with --limit, or use --method gradient, whose model is of the same form",
        )
    if values.ndim == 2 and (gaps := int(np.isnan(values).any(1).sum())):
        raise DataError(
            f"method {recipe.name!r} needs every label of a row",
            got=f"gaps in {counted(gaps, 'row')} of {len(values)}",
            do="fill them in or leave these rows out, or use another --method",
        )


def _check_last_layer(network: Network, recipe: Recipe, outputs: int) -> None:
    """Refuse, before the pass, a backbone whose last layer cannot give way to the task's."""
    if recipe.gradients is not None and recipe.gradients.mode != "activation":
        what, instead, needed = "takes derivatives through one last linear layer", "all-layers", None
    elif recipe.refit is not None:
        what, instead, needed = "reads the trained logits at one last linear layer", "finetune", outputs
    else:
        return
    if network.head and not _takes_head(network, needed):
        got = f"a forward pass of {network.name} that its own number of logits alone fits"
    elif network.has_logits and not network.head:
        got = f"logits of {network.name} that no single layer gives"
    else:
        return
    raise RecipeError(
        f"method {recipe.name!r} {what}",
        got=got,
        do=f"use {instead}, or let the backbone return what its last layer gives, or its features (in Python, "
        "load(name, head=False))",
    )


def _takes_head(network: Network, outputs: int | None) -> bool:
    """Whether the network runs with another number of logits, by default as many as features, and they are what it
    gives."""
    old: Any = network.module.get_submodule(network.head)
    width = old.in_channels if isinstance(old, torch.nn.Conv2d) else old.in_features
    try:
        return network.with_head(torch.ones(outputs or width, width)).head == network.head
    except ModelError:
        return False


def _dense(network: Network, manifest: Manifest, recipe: Recipe) -> tuple[Network, Plan]:
    """The network reading whole images, and the feature map whose positions a head labels.

    Raises:
        RecipeError: the method is about one label per row.
    """
    if recipe.fresh is not None and recipe.fresh.blocks is not None:
        raise RecipeError("blocks are not drawn anew for a head on masks", do="leave --partial out")
    if not recipe.dense:
        raise RecipeError(
            f"method {recipe.name!r} does not apply to masks: it predicts one label per row",
            expected="probe, finetune or lp-ft",
            do="use one of these, or choose a column of labels with --label",
        )
    if recipe.probe is not None and (recipe.probe.hidden or recipe.probe.augmented):
        raise RecipeError(
            "a head on masks is probed on the frozen map", expected="--head linear or aspp",
            do="leave --head mlp and --probe-augmented out",
        )  # fmt: skip
    network = whole_images(network, *image_size(manifest.inputs, 0))
    return network, map_plan(network)


def training_stage(ready: Prepared) -> Train:
    """The recipe's training of this backbone: blocks whose weights were drawn anew are named, and where all were,
    normalisation follows the batches, for it has no statistics yet.

    Raises:
        RecipeError: the recipe trains nothing.
    """
    recipe = ready.recipe
    if recipe.train is None:
        raise RecipeError(f"recipe {recipe.name!r} trains nothing", do="give it a Train stage")
    if ready.manifest.target is not None and ready.manifest.target.kind == "segmentation":
        size = min(recipe.train.config.batch_size, DENSE_BATCH)
        return replace(recipe.train, config=replace(recipe.train.config, batch_size=size))
    if recipe.fresh is None:
        return recipe.train
    tuning, count = recipe.train.tuning, recipe.fresh.blocks
    if count is None:
        return replace(recipe.train, tuning=replace(tuning, norms="trained"))
    return replace(recipe.train, tuning=replace(tuning, anew=ready.network.top_blocks(count)))


def _anew(network: Network, stage: Reinitialise, seed: int) -> Network:
    """The backbone with weights drawn from the seed, in all or its last blocks."""
    if stage.blocks is None:
        return reinitialised(network, seed)
    if not network.blocks:
        raise RecipeError(f"{network.name} has no blocks that could be drawn anew", do="leave --partial out")
    if not 0 < stage.blocks <= len(network.blocks):
        raise RecipeError(
            f"{network.name} cannot have {stage.blocks} of its blocks drawn anew",
            expected=f"1 to {len(network.blocks)}",
            do="name fewer with --partial",
        )
    return reinitialised(network, seed, network.top_blocks(stage.blocks))


def _limited(manifest: Manifest, rows: int, seed: int) -> Manifest:
    kept = manifest.limit(rows, seed)
    try:
        check_target(kept)
    except DataError as error:
        raise DataError(
            f"{error.what}, after --limit {rows}", expected=error.expected, got=error.got, do="raise --limit"
        ) from error
    return kept


def _labelled(manifest: Manifest) -> tuple[Manifest, int]:
    """The rows with a label, and how many have none; ``skipped`` keeps those that could not be read."""
    target = manifest.labels
    present = target.present
    if not present.any():
        raise DataError(f"no row of {manifest.name} has a label", do="name the label column with --label")
    lacking = [row for row in manifest.skipped if row.reason == NO_LABEL]  # what skip_bad took out of the scan
    skipped = tuple(row for row in manifest.skipped if row.reason != NO_LABEL)
    kept = replace(manifest.take(np.flatnonzero(present)), skipped=skipped)
    return kept, int((~present).sum()) + len(lacking)


def swept(
    ready: Prepared,
    options: Options,
    ledger: Ledger,
    progress: Progress | None,
    passing: Callable[[Manifest], Passing | None] = lambda _: None,
    needed: Plan | None = None,
) -> tuple[Store, Store | None]:
    """The pass over the fit rows and the test rows, or what the store has of it.

    Of several processes that train together the first makes the pass, and the others find what it stored.

    Args:
        ready: rows, backbone, blocks.
        options: of the sweep.
        ledger: where the stage is noted.
        progress: called with (stage, rows done, rows in all).
        passing: of a part's rows, what else its pass serves (:func:`regraft.features.sweep`).
        needed: the blocks whose numbers must be finite; all by default.

    Raises:
        DataError: rows that cannot be read, that are too few, or of which a needed block is NaN or infinite.
    """
    with ledger.stage("sweep") as extra, Team.current().one_after_the_first():
        stores = check_pass(ready, options, progress)
        if not all(stores):
            stores = _pass(ready, options, progress, [None if store else passing for store in stores])
        extra["backbone_passes"] = sum(store.computed_rows for store in stores if store) / len(ready.manifest)
        extra["flops"] = sum(store.flops for store in stores if store)
        extra["reused"] = all(store.reused for store in stores if store)
    check_features([(part, s) for part, s in zip(ready.parts, stores) if s], needed or ready.plan, options.dtype)
    fit, test = (*stores, None)[:2]
    return fit, test  # type: ignore[return-value]


def check_pass(ready: Prepared, options: Options, progress: Progress | None) -> list[Store | None]:
    """The stores that are complete; where one is not, what would make the pass in vain is refused.

    Raises:
        DataError: rows that cannot be read (all are named), or that are too few to score.
    """
    stores = _stored(ready, options)
    # What was swept before was readable then; only rows that are new are looked at before the pass. With skip_bad the
    # scan has looked at all of them.
    if not all(stores) and not options.skip_bad:
        checked(ready.manifest, progress=_stage(progress, "inspect"))
    return stores


def _stored(ready: Prepared, options: Options) -> list[Store | None]:
    """The store of each part that is complete already."""
    where = {"cache": options.cache, "dtype": options.dtype}
    return [find(ready.network, part, ready.plan, **where) for part in ready.parts]  # type: ignore[arg-type]


def _pass(
    ready: Prepared,
    options: Options,
    progress: Progress | None,
    passing: Sequence[Callable[[Manifest], Passing | None] | None],
) -> list[Store | None]:
    total, before = len(ready.manifest), 0
    stores: list[Store | None] = []
    for part, along in zip(ready.parts, passing, strict=True):
        tick = None if progress is None else lambda n, _, done=before: progress("sweep", done + n, total)
        stores.append(
            sweep(
                ready.network,
                part,
                ready.plan,
                cache=options.cache,
                dtype=options.dtype,
                batch_size=options.batch_size,
                workers=options.workers,
                progress=tick,
                passing=None if along is None else along(part),
            )
        )
        before += len(part)
    return stores


def _stage(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(name, done, total)
