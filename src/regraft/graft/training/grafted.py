"""An adapted model as one differentiable module: readout ∘ view ∘ pooling ∘ taps ∘ backbone."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from regraft.errors import ModelError, RecipeError
from regraft.features import grid_of, maps, positions
from regraft.features.tangent.replay import Kept
from regraft.files import canonical_json
from regraft.graft.adapted.model import Adapted
from regraft.graft.adapted.view import View
from regraft.graft.loop.checkpoint import tensor_digest
from regraft.graft.loop.rows import place
from regraft.graft.stages.config import Tuning
from regraft.graft.training.depths import depths
from regraft.linear import Blocks
from regraft.network.blocks import members

__all__ = ["Grafted"]

_NORMS = (nn.modules.batchnorm._BatchNorm,)
_CACHE = 2**26  # bytes of the largest map of what is passed forwards and backwards at once: a fine-tuning step of
# MobileNetV2 at 224 px takes 1.6 to 2.2 times as long for 32 rows in one piece; smaller maps are best left together
_FASTEST = 0.1  # momentum of running statistics; some published networks carry one that forgets them at every step


class Grafted(nn.Module):
    r"""The function of an :class:`Adapted` as a module whose weights can be trained.

    ``f(x) = Σ_l s_l(pool_l(tap_l(x))) W_l + b``, with taps of the backbone, the pooling of the plan, the scaling
    and the kept columns of the view, and the readout's coefficients; all of it differentiable in the backbone's
    parameters, the ``W_l`` and ``b``. For segmentation the one tap is a feature map, and the head reads it position by
    position. One tap, the embedding, is ordinary fine-tuning of a network with a new last
    layer; the chosen columns of many taps is Head2Toe-FT (Evci et al. 2022, §4.1), the selection kept.

    The calibration temperature T of a classifier is taken into the head at the start (``W / T``, ``b / T``), so that
    training begins at the probabilities that the head predicts. For regression the head works on standardised
    targets: with ``shift`` and ``spread`` of the training rows, ``f = shift + spread · g``, and g is what the head's
    parameters give, so that a learning rate means the same whatever the targets' unit.

    Args:
        adapted: backbone, plan, view and readout; none of its tensors is touched.
        tuning: what moves.
        shift, spread: ``(C,)`` for regression.

    Raises:
        RecipeError: the view takes roots, whose slope at zero is infinite, the model reads derivatives or has error
            bars, or a pattern freezes nothing.
    """

    def __init__(
        self,
        adapted: Adapted,
        tuning: Tuning | None = None,
        *,
        shift: Tensor | None = None,
        spread: Tensor | None = None,
    ) -> None:
        super().__init__()
        if "root" in adapted.view.scaling:
            raise RecipeError(
                f"features scaled by {adapted.view.scaling!r} cannot be trained through",
                expected="the scaling 'none' or 'unit'",
                got="roots, whose slope at zero is infinite",
                do="solve the head with another scaling",
            )
        if adapted.tangent is not None or adapted.posterior is not None:
            raise RecipeError(
                "what derivatives add to a prediction, and its error bars, would be lost in training",
                expected="a head on features alone",
                do="begin at that of another method, such as probe",
            )
        self.adapted, self.tuning = adapted, tuning or Tuning()
        self.network = copy.deepcopy(adapted.network)
        self.anew = tuple(part for path in self.tuning.anew for part in members(self.network.module, path))
        _ = self.network.sites, self.network.channels_last  # found now, before anything trains
        self.backbone = self.network.module
        self.backbone.requires_grad_(True)
        self._freeze()
        self._slow_norms()
        self._dense_tables()
        outputs = len(adapted.classes)
        self.shift = (torch.zeros(outputs) if shift is None else shift).double()  # float64, so not on the device
        self.spread = (torch.ones(outputs) if spread is None else spread).double()
        self.dense = adapted.kind == "segmentation"
        self.neck = None if adapted.neck is None else adapted.neck.copy().requires_grad_(True)
        self.standardised = shift is not None or spread is not None
        readout, device = adapted.readout, adapted.network.device
        scale = (1.0 / readout.temperature) / self.spread
        weights = [readout.coefficients[block.name].double().cpu() * scale for block in adapted.plan.blocks]
        self.weights = nn.ParameterList([nn.Parameter(value.float()) for value in weights])
        start = (readout.intercept.double().cpu() - self.shift) * scale
        self.intercept = nn.Parameter(start.float())
        self.to(device)
        self._by_site: dict[str, list[int]] = {}
        for index, block in enumerate(adapted.plan.blocks):
            self._by_site.setdefault(block.site, []).append(index)
        self.train(False)

    def _freeze(self) -> None:
        for pattern in self.tuning.freeze:
            for name in self.network.select(pattern):
                self.backbone.get_parameter(name).requires_grad_(False)

    def _slow_norms(self) -> None:
        """Let running statistics follow the batches by at most a tenth a step: transformers' MobileNets carry
        TensorFlow's 0.9997, which PyTorch reads the other way round, as taking the last batch for the whole."""
        for part in self.backbone.modules():
            if isinstance(part, _NORMS) and part.momentum is not None:
                part.momentum = min(part.momentum, _FASTEST)

    def _dense_tables(self) -> None:
        """Let tables give gradients of all their rows: no optimiser here takes those of a few."""
        for part in self.backbone.modules():
            if isinstance(part, nn.Embedding | nn.EmbeddingBag):
                part.sparse = False

    def train(self, mode: bool = True) -> Grafted:
        """Training mode for what :class:`Tuning` lets change; all else stays as in prediction."""
        super().train(False)
        if mode:
            for path, part in self.backbone.named_modules():
                if isinstance(part, _NORMS):
                    part.train(self._follows(path, part))
                elif self.tuning.dropout and _may_drop(part):
                    part.training = True
            if self.neck is not None:  # new, so it has no statistics yet
                self.neck.train(True)
        self.training = mode
        return self

    @contextlib.contextmanager
    def settled(self) -> Iterator[tuple[str, ...]]:
        """Prediction's mode inside; gives the paths of the backbone's parts that training runs in another."""
        was = self.training
        self.train()
        busy = tuple(path for path, part in self.backbone.named_modules() if part.training)
        self.train(False)
        try:
            yield busy
        finally:
            self.train(was)

    @property
    def moving(self) -> tuple[str, ...]:
        """The backbone's tensors that training may change: parameters that ask for a gradient, and what normalisation
        keeps where it follows the batches."""
        parameters = [name for name, value in self.backbone.named_parameters() if value.requires_grad]
        with self.settled() as busy:
            parts = {path: self.backbone.get_submodule(path) for path in busy}
        return (*parameters, *(f"{path}.{name}" for path, part in parts.items() if isinstance(part, _NORMS)
                               for name, _ in part.named_buffers(recurse=False)))  # fmt: skip

    def _follows(self, path: str, norm: nn.Module) -> bool:
        """Whether a normalisation layer uses the batch's statistics, and its running ones follow."""
        if any(path == part or path.startswith(f"{part}.") for part in self.anew):
            return True
        own = list(norm.parameters(recurse=False))
        stays = not any(value.requires_grad for value in own)
        if not own:  # as if it had a scale and a shift
            stays = self.tuning.freezes((f"{path}.weight", f"{path}.bias"))
        return self.tuning.norms == "trained" and not stays

    @property
    def at_once(self) -> int:
        """How many rows of a batch are best passed together: all of them where their statistics normalise them."""
        together = any(part.training for part in self.modules() if isinstance(part, _NORMS))
        return sys.maxsize if together else self.network.rows_at_once(_CACHE)

    @property
    def identity(self) -> str:
        """What decides a training beside weights, rows and its configuration: what moves, what the head reads of which
        network."""
        adapted, view = self.adapted, self.adapted.view
        kept = None if view.columns is None else tensor_digest(view.columns)
        seen = [view.scaling, kept, view.renormalised, *view.unscaled]
        read = [adapted.network.fingerprint, adapted.plan.to_json(), *seen]
        return canonical_json([asdict(self.tuning), *read])

    def features(self, batch: Any) -> list[Tensor]:
        """What the head reads of a preprocessed batch: ``(B, d)`` of each block, pooled, scaled and cut; of a map
        ``(B h w, d)``, position by position."""
        blocks = self.adapted.plan.blocks
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        pooled: dict[int, Tensor] = {}

        def keep(site: str, value: Tensor) -> None:
            for index in self._by_site[site]:
                pooled[index] = blocks[index].pooling(value, mask)

        with self.network.observe(tuple(self._by_site), keep):
            self.network.forward(batch)
        if self.dense:
            pooled = {index: self._positions(value, grid_of(blocks[index])) for index, value in pooled.items()}
        return [
            scaled(pooled[index].to(weight.dtype), self.adapted.view, blocks[index].name)
            for index, weight in enumerate(self.weights)
        ]

    def _positions(self, value: Tensor, grid: tuple[int, int]) -> Tensor:
        """Flattened maps as rows, one a position, through the neck where there is one."""
        if self.neck is not None:
            value = self.neck(value.unflatten(1, (-1, *grid))).flatten(1)
        return positions(value, grid)

    def forward(self, batch: Any) -> Tensor:
        """``(B, C)`` logits, or float64 values in the targets' unit, of a preprocessed batch or of what is kept of one;
        maps ``(B, C, h, w)`` of logits for segmentation."""
        if isinstance(batch, Kept):
            return batch.replay.behind({}, batch.values, batch.rows)
        return self.logits(self.network.laid_out(batch))

    def logits(self, batch: Any) -> Tensor:
        """The same of a batch as it lies in memory."""
        out = self.intercept
        for values, weight in zip(self.features(batch), self.weights):
            out = out + values @ weight
        if self.dense:
            return maps(out, grid_of(self.adapted.plan.blocks[0]))
        return place(self.shift, out.device) + place(self.spread, out.device) * out if self.standardised else out

    def result(self, temperature: float = 1.0) -> Adapted:
        """The adapted model with the weights as they are now.

        Args:
            temperature: that calibrates the probabilities of a classifier.

        Raises:
            ModelError: the backbone's tensors have other names than they came with.
        """
        own = self.adapted.network
        now = {**dict(self.backbone.named_parameters()), **dict(self.backbone.named_buffers())}
        if set(now) != {*own.params, *own.buffers}:
            raise ModelError(f"{own.name} changed its tensors' names in training", do="fine-tune without that layer")
        kept = {name: value.detach().contiguous() for name, value in now.items() if name not in own.passing}
        network = own.with_params(kept)
        names = [block.name for block in self.adapted.plan.blocks]
        weights = Blocks({n: (w.detach().cpu() * self.spread).float() for n, w in zip(names, self.weights)})
        intercept = self.shift + self.intercept.detach().cpu() * self.spread
        readout = replace(
            self.adapted.readout, coefficients=weights, intercept=intercept, temperature=temperature, form="trained",
            strength=0.0,
        )  # fmt: skip
        neck = None if self.neck is None else self.neck.copy()
        return replace(self.adapted, network=network, readout=readout, source=self.adapted.source or own, neck=neck)

    def scales(self, decay: float) -> dict[str, float]:
        """Factors of the learning rate by parameter name: ``decay^k`` for the k-th block from the top.

        The head and what comes after the last block have k = 0, the last block k = 1, what comes before the first
        block one more than the first.
        """
        if decay == 1.0:
            return {}
        return {
            f"backbone.{name}": decay ** (len(self.network.blocks) + 1 - depth)
            for name, depth in depths(self.network).items()
        }


def _may_drop(part: nn.Module) -> bool:
    """Whether a module may leave something out at random in training mode: torch's own layers of that kind do, and
    what others wrote may, as its forward pass alone knows; but for norms."""
    kind = type(part)
    if isinstance(part, nn.RNNBase | nn.MultiheadAttention):
        return part.dropout > 0
    if kind.__module__.startswith("torch.nn."):
        return isinstance(part, nn.modules.dropout._DropoutNd)
    return "norm" not in kind.__name__.lower()


def scaled(values: Tensor, view: View, name: str) -> Tensor:
    """What :meth:`View.design` does to one block's rows, differentiably: scaling, kept columns, norms over them."""
    columns = None if view.columns is None else view.columns[name].to(values.device)
    if view.scaling == "unit" and name not in view.unscaled and not (columns is not None and view.renormalised):
        values = _unit(values)
    if columns is None:
        return values
    kept = values[:, columns]
    again = view.renormalised and (view.scaling == "none" or name not in view.unscaled)
    return _unit(kept) if again else kept


def _unit(rows: Tensor) -> Tensor:
    """Rows of norm 1; a zero row stays zero, and so does its gradient.

    As in :class:`regraft.linear.UnitRows`, a row whose squares leave the range of its dtype is divided by its largest
    entry first; a constant factor changes neither the result nor, the norm being homogeneous, its gradient.
    """
    with torch.no_grad():
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        unsafe = (norms < torch.finfo(rows.dtype).tiny ** 0.5) | torch.isinf(norms)
        peaks = rows.abs().amax(dim=1, keepdim=True)
        factors = torch.where(unsafe & (peaks > 0), peaks, torch.ones_like(peaks))
    rows = rows / factors
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / torch.where(norms > 0, norms, torch.ones_like(norms))
