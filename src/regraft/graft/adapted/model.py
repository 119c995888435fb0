"""A network with a solved head: raw inputs in, probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.data import BadRow, Kind, LabelType, Manifest, checked, image_size, scan, with_columns, without
from regraft.errors import DataError, RecipeError
from regraft.features import (
    Plan,
    Progress,
    Store,
    by_length,
    gathered,
    grid_of,
    lost,
    maps,
    pool_batch,
    positions,
    upsampled,
)
from regraft.features.tangent.feed import take
from regraft.graft.adapted.aspp import Aspp
from regraft.graft.adapted.posterior import PosteriorPart
from regraft.graft.adapted.prediction import Prediction
from regraft.graft.adapted.tangent import TangentPart
from regraft.graft.adapted.view import View
from regraft.graft.options import check_counts
from regraft.heads import Readout, link
from regraft.linear import Dense, Matrix
from regraft.network import Network
from regraft.network.hidden import with_hidden
from regraft.wording import some

__all__ = [
    "NO_ANSWER",
    "Adapted",
    "answered",
    "check_features",
    "check_modality",
    "readable",
    "with_last_layer",
    "with_own_head",
]

NO_ANSWER = "the network's output is NaN or infinite"
"""The reason of a row that can be read and of which the network says nothing."""

_LOOK = "look for numbers that the network divides by or that it overflows with"

_OTHER_KIND = {
    "": "give it inputs of its own kind, or name another input column with --input",
    "text": "give it inputs of its own kind, or name another input column with --input; a column of names of image "
    "files is read as images where it is called path",
    "array": "bring a network that reads numbers, --model package.module:callable (regraft.network.ArrayPreprocess), "
    "or take regraft.GraftClassifier or GraftRegressor, which need none; images are uint8, 0 to 255",
}


_OWN_KIND = {
    "image": "give image files, Pillow images, uint8 pixels of shape (N, H, W, C), or a table whose column path names "
    "image files",
    "text": "give texts",
    "array": "give rows of numbers",
}


def check_modality(network: Network, manifest: Manifest, *, chosen: bool = False) -> None:
    """Refuse inputs of a kind that the network does not read; of one that is ``chosen`` already, another will not do.

    Raises:
        DataError: such as texts for a network that reads images.
    """
    if network.preprocess.modality != manifest.inputs.modality:
        where = "" if manifest.name == "inputs" else f" in {manifest.name}"
        raise DataError(
            f"{network.name} reads {network.preprocess.modality} inputs",
            got=f"{manifest.inputs.modality} inputs{where}",
            do=_OWN_KIND[network.preprocess.modality]
            if chosen
            else _OTHER_KIND.get(manifest.inputs.modality, _OTHER_KIND[""]),
        )


def readable(network: Network, manifest: Manifest, skip_bad: bool | None) -> Manifest:
    """The rows that follow the grammar which the network's preprocessing reads, where it has one.

    Raises:
        DataError: some do not (all are named) unless ``skip_bad``; or too little is left.
    """
    preprocess, inputs = network.preprocess, manifest.inputs
    if not preprocess.strict:
        return manifest
    faults = [preprocess.fault(inputs.read(row)) for row in range(len(inputs))]
    do = f"write what {network.name} reads, or leave the row out"
    bad = [(row, BadRow(inputs.where(row), fault, do)) for row, fault in enumerate(faults) if fault]
    return without(manifest, bad, skip_bad=skip_bad)


def answered(manifest: Manifest, prediction: Prediction, skip_bad: bool | None) -> tuple[Manifest, Prediction]:
    """The rows of which the prediction says something, and what: numbers that are finite.

    Raises:
        DataError: of some it does not (all are named) unless ``skip_bad``; or of none.
    """
    known = prediction.known
    if known.all():
        return manifest, prediction
    do = f"{_LOOK}, or leave the row out"
    bad = [(row, BadRow(manifest.inputs.where(row), NO_ANSWER, do)) for row in np.flatnonzero(~known).tolist()]
    return without(manifest, bad, skip_bad=skip_bad), prediction.take(np.flatnonzero(known))


def check_features(parts: Sequence[tuple[Manifest, Store]], wanted: Plan, dtype: str = "float32") -> None:
    """Refuse rows of which a block of the plan holds NaN or infinity, for nothing can be learnt from them.

    Args:
        parts: the rows and their features, part by part.
        wanted: the blocks that must be finite.
        dtype: that features are stored in.

    Raises:
        DataError: there are such rows: all are named, of several taps by the first where it happens.
    """
    sites = {block.name: block.site for block in wanted.blocks}
    bad = []
    for manifest, store in parts:
        for row, name in lost(store, list(sites)).items():
            reason = (
                NO_ANSWER if len(sites) == 1 else f"the network's values are NaN or infinite, first at {sites[name]}"
            )
            bad.append((row, BadRow(manifest.inputs.where(row), reason, _LOOK)))
    if bad:
        wider = "store features as numbers of a wider range with --dtype float32, " if dtype == "float16" else ""
        without(parts[0][0], bad, skip_bad=None, do=f"{wider}{_LOOK}, or leave these rows out")


def with_last_layer(network: Network, shape: tuple[int, ...] | None) -> Network:
    """The network with a last layer of zeros of ``shape`` (outputs, width), over a hidden one of zeros where the shape
    has a third number, its units; itself for ``None``."""
    if shape is None:
        return network
    outputs, width, *units = shape
    if not units:
        return network.with_head(torch.zeros(outputs, width))
    return with_hidden(network, torch.zeros(units[0], width), torch.zeros(units[0]), outputs)


@dataclass(frozen=True, eq=False)
class Adapted:
    """A backbone, the taps that the head reads, and the head. Immutable.

    Attributes:
        network: the backbone as it predicts.
        plan: the blocks that are computed for a new input.
        view: how the blocks become the head's design.
        readout: the solved head.
        kind, classes: of the task.
        source: the pretrained backbone that ``network`` was trained from, where it was trained: the artifact names
            the source and holds what :attr:`changed` gives. ``None`` where the backbone is as it came.
        tangent: what derivatives of the backbone add to the logits; nothing if ``None``.
        own_head: (outputs, width) of the task's own last layer where ``network`` carries one in place of its source's;
            (outputs, width, units) where a hidden layer is under it.
        posterior: the error bars of what it predicts, and what derivatives add to it; unknown if ``None``.
        label_type: what predicted classes are given as.
        columns: the names of the columns that a row is read from, in order; none where they had no names. Of a later
            table they are read again.
        ignore: of segmentation: the value that says "not labelled" in the masks that the head was solved on; -1: none.
        neck: of segmentation: what stands between the backbone's map and the head at each position; nothing if
            ``None``.
    """

    network: Network
    plan: Plan
    view: View
    readout: Readout
    kind: Kind
    classes: tuple[str, ...]
    source: Network | None = None
    tangent: TangentPart | None = None
    own_head: tuple[int, ...] | None = None
    neck: Aspp | None = None
    posterior: PosteriorPart | None = None
    label_type: LabelType = "str"
    ignore: int = -1
    columns: tuple[str, ...] = ()

    def __repr__(self) -> str:
        form = f"{self.readout.form} head".strip()
        return f"Adapted({self.network.name!r}, {form} on {self.plan.width:,} features, {self.kind})"

    @property
    def derivatives(self) -> bool:
        """Whether derivatives of the backbone have a part in what it predicts, beside the head on its features."""
        return self.tangent is not None or (self.posterior is not None and self.posterior.head is not None)

    @property
    def changed(self) -> dict[str, Tensor]:
        """The parameters and buffers that differ from the source's, whole, by its names: each tied one once. Buffers
        that any pass changes are none of them."""
        if self.source is None:
            return {}
        basis = with_last_layer(self.source, self.own_head)
        before = {**basis.params, **{k: value for k, value in basis.buffers.items() if k not in basis.passing}}
        after = {**self.network.params, **self.network.buffers}
        return {name: after[name] for name, value in before.items() if not torch.equal(after[name], value)}

    def logit_maps(self, batch: Any) -> Tensor:
        """Of segmentation: calibrated logits ``(B, C, h, w)`` of a preprocessed batch, on the processor."""
        (block,) = self.plan.blocks
        values = pool_batch(self.network, self.plan.blocks, batch)[block.name].float().cpu()
        if self.neck is not None:
            with torch.no_grad():
                values = self.neck(values.unflatten(1, (-1, *grid_of(block)))).flatten(1)
        rows = Dense(positions(values, grid_of(block)))
        logits = self.readout.logits(self.view.design({block.name: rows}, len(self.classes)))
        return maps(logits.float() / self.readout.temperature, grid_of(block))

    def probabilities(self, batch: Any) -> Tensor:
        """Probabilities (or values) ``(B, C)`` of a preprocessed batch, on the processor."""
        return self.predicted(batch)[0]

    def predicted(self, batch: Any) -> tuple[Tensor, Tensor | None]:
        """:meth:`probabilities`, and the error bars ``(B, C)`` where a posterior is kept: deviations of numbers about
        them, of the function behind class probabilities. NaN in rows whose logits are NaN or infinite."""
        values = {
            name: value.float().cpu() for name, value in pool_batch(self.network, self.plan.blocks, batch).items()
        }
        if self.derivatives:  # none are taken of a batch with a row whose features are NaN
            known = torch.stack([value.flatten(1).isfinite().all(1) for value in values.values()]).all(0)
            if not known.all():
                return self._predicted_of(batch, known)
        matrices: dict[str, Matrix] = {block.name: Dense(values[block.name]) for block in self.plan.blocks}
        logits = self.readout.logits(self.view.design(matrices, len(self.classes))).to(torch.float64)
        spread = None
        if self.posterior is not None:
            features = torch.cat([values[block.name] for block in self.plan.blocks], dim=1)
            moved, spread = self.posterior.of_batch(self.network, batch, features)
            logits = logits + moved
        elif self.tangent is not None:
            logits = logits + self.tangent.logits(self.network, batch)
        lost = ~logits.isfinite().all(1, keepdim=True)  # a sigmoid would make one of infinity
        return link(self.readout.link, logits / self.readout.temperature).masked_fill(lost, torch.nan), spread

    def _predicted_of(self, batch: Any, known: Tensor) -> tuple[Tensor, Tensor | None]:
        """:meth:`predicted` of the ``known`` (B,) rows of a batch, NaN in the others."""
        found = torch.full((len(known), len(self.classes)), torch.nan, dtype=torch.float64)
        spreads = None if self.posterior is None else found.clone()
        if known.any():
            rows = known.nonzero().squeeze(1)
            found[rows], spread = self.predicted(take(batch, rows))
            if spreads is not None and spread is not None:
                spreads[rows] = spread.to(spreads)
        return found, spreads

    def predict_proba(
        self,
        inputs: Any,
        *,
        batch_size: int = 32,
        workers: int | None = None,
        skip_bad: bool = False,
        progress: Progress | None = None,
    ) -> Prediction:
        """Probabilities (or values) for raw inputs.

        Args:
            inputs: a Manifest, a folder, a table, an array, a data frame, a list of paths, texts or images, or one
                image (Pillow's, or uint8 ``(H, W, 3)``); labels are ignored.
            batch_size: rows per forward pass.
            workers: decoding processes; chosen by the work at hand if ``None``.
            skip_bad: leave inputs out that cannot be read or have no finite answer, instead of refusing all.
            progress: called with (rows done, rows).

        Raises:
            DataError: inputs that cannot be read or of which the network's output is NaN or infinite, all named at
                once, or of a kind that the backbone does not read.
            RecipeError: ``batch_size`` or ``workers`` out of range.
        """
        check_counts(batch_size=batch_size, workers=workers)
        manifest = inputs if isinstance(inputs, Manifest) else scan(inputs, labelled=False, read=self.columns)
        check_modality(self.network, manifest, chosen=True)
        manifest = with_columns(manifest, self.columns)
        manifest = checked(replace(manifest, target=None), skip_bad=skip_bad)
        manifest = readable(self.network, manifest, skip_bad)
        said = self.predict_rows(manifest, batch_size=batch_size, workers=workers, progress=progress)
        return answered(manifest, said, skip_bad)[1]

    def predict_rows(
        self, manifest: Manifest, *, batch_size: int = 32, workers: int | None = None, progress: Progress | None = None
    ) -> Prediction:
        """:meth:`predict_proba` of rows that are known to be readable, NaN where the network's output is no number:
        :func:`answered` takes these out."""
        preprocess, done = self.network.preprocess, 0
        cut = by_length(preprocess, manifest.inputs, range(len(manifest)), batch_size)
        if self.kind == "segmentation":
            return self._segmented(manifest, cut, workers, progress)
        outputs = torch.empty(len(manifest), len(self.classes), dtype=torch.float64)
        spreads = None if self.posterior is None else torch.empty_like(outputs)
        for rows, batch in zip(cut, gathered(preprocess, manifest.inputs, cut, workers)):
            outputs[rows], spread = self.predicted(batch)
            if spreads is not None and spread is not None:
                spreads[rows] = spread
            done += len(rows)
            if progress:
                progress(done, len(manifest))
        bars = None if spreads is None else spreads.numpy()
        label_type = self.label_type
        return Prediction(manifest.ids, outputs.numpy(), self.kind, self.classes, spread=bars, label_type=label_type)

    def _segmented(
        self, manifest: Manifest, cut: list[list[int]], workers: int | None, progress: Progress | None
    ) -> Prediction:
        """A mask of its own size for each image, the shares of its classes, and how sure its pixels are on average."""
        shares = np.zeros((len(manifest), len(self.classes)))
        sure, masks = np.zeros(len(manifest)), []
        for rows, batch in zip(cut, gathered(self.network.preprocess, manifest.inputs, cut, workers)):
            for row, logits in zip(rows, self.logit_maps(batch)):
                likely = upsampled(logits[None], image_size(manifest.inputs, row))[0].softmax(0).max(0)
                masks.append(likely.indices.numpy())
                shares[row] = np.bincount(masks[-1].reshape(-1), minlength=len(self.classes)) / masks[-1].size
                sure[row] = float(likely.values.mean())
            if progress:
                progress(len(masks), len(manifest))
        return Prediction(manifest.ids, shares, self.kind, self.classes, tuple(masks), sure)

    def predict(self, inputs: Any, **options: Any) -> list[Any]:
        """Classes, lists of classes, numbers, or masks: see :attr:`Prediction.labels`."""
        return self.predict_proba(inputs, **options).labels


def with_own_head(adapted: Adapted, unit: tuple[Tensor, Tensor] | None = None) -> Network:
    """The network with the solved head as its last layer, so that its logits are the task's, uncalibrated.

    Args:
        adapted: a head on the embedding as it is.
        unit: shift and spread (C,) of numbers: the logits are those of numbers less the shift, over the spread, for in
            float32 numbers far from zero keep few digits.

    Raises:
        RecipeError: the head reads something else than the embedding as it is.
    """
    (block,) = adapted.plan.blocks if len(adapted.plan.blocks) == 1 else (None,)
    view = adapted.view
    plain = block is not None and block.kind == "embedding" and view.scaling == "none" and view.columns is None
    if block is None or not plain or adapted.derivatives or adapted.neck is not None:
        scaled = f", scaled by {view.scaling!r}" if block else ""
        raise RecipeError(
            "the head is not a last layer of its network",
            expected="one that reads the embedding, unscaled, as those of lp-ft, finetune and scratch do",
            got=some([b.name for b in adapted.plan.blocks], 3) + scaled + ", derivatives" * adapted.derivatives,
        )
    weight, bias = adapted.readout.coefficients[block.name].T, adapted.readout.intercept
    if unit is not None:
        shift, spread = unit
        weight, bias = weight.double() / spread[:, None], (bias.double() - shift) / spread
    return adapted.network.with_head(weight.float().contiguous(), bias.float(), adapted.classes)
