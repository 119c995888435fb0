"""What every network must keep: that it runs, that its weights are numbers, that a row's output is its own affair."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regraft.errors import ModelError
from regraft.network.layout import agree
from regraft.network.preprocess import Preprocess
from regraft.network.reading import attention_mask, pool_tokens, written
from regraft.network.trace import Trace
from regraft.wording import first_line

__all__ = ["Held", "check_numbers", "check_padding", "check_rows", "does_not_run", "first_rows"]

_ROUNDED = 1e-5  # of a length that torch itself has shortened to ``max_norm``


def check_numbers(name: str, output: Tensor, module: nn.Module) -> None:
    """NaN and infinity in weights are told where the outputs show them: no head could be told, and what failed
    later would be laid at the inputs' door.

    Raises:
        ModelError: an output is not finite, and weights are not.
    """
    if not output.is_floating_point() or bool(torch.isfinite(output).all()):
        return
    weights = (*module.named_parameters(), *module.named_buffers())
    odd = [key for key, value in weights if not bool(torch.isfinite(value).all())]
    if odd:
        raise ModelError(
            f"the weights of {name} are not all numbers",
            expected="finite weights",
            got=f"NaN or infinity in {', '.join(odd[:3])}",
            do="bring the file again, or weights of an earlier checkpoint: it is broken, or its training diverged",
        )


def check_rows(name: str, again: Tensor, found: Trace, batch: Any, fresh: Any) -> None:
    """A row's output must depend on that row alone: no dropout, no batch statistics.

    Args:
        name: the network's.
        again: the output of all rows of ``batch`` but the last, run by themselves.
        found: what was seen when ``batch`` was run.
        batch: of two rows at least.
        fresh: the same batch, made anew.

    Raises:
        ModelError: these rows have another output, or ``batch`` is no longer ``fresh``.
    """
    first = pool_tokens(found.output, found.reading.pool, attention_mask(batch))[: len(found.output) - 1]
    if agree(again, first):
        return
    if not all(map(torch.equal, _tensors(batch), _tensors(fresh))):
        raise ModelError(
            f"{name} writes into its input",
            expected="a forward pass that leaves what it is given as it is",
            do="let it go on with a copy, as x = x - 1 does in the place of x -= 1",
        )
    raise ModelError(
        f"{name}: dropout or batch statistics are active in eval mode",
        expected="the same output for a row whenever and with whatever it is run",
        got=f"outputs that differ by {float((again - first).abs().max()):.2g}"
        if again.shape == first.shape
        else "outputs of another shape",
        do="pass training=self.training to functional.dropout, and track running statistics",
    )


class Held:
    """What a module holds before it runs, to see what a pass changes of it.

    Of buffers a copy is kept; of parameters, which may be large, their norms, and how often they were written into.
    """

    def __init__(self, module: nn.Module) -> None:
        self.buffers = {name: value.detach().clone() for name, value in module.named_buffers()}
        self.params = {name: (value, written(value), _norm(value)) for name, value in module.named_parameters()}

    def passing(self, module: nn.Module) -> frozenset[str]:
        """Names of the buffers that are not as they were."""
        now = dict(module.named_buffers())
        same = (name for name, old in self.buffers.items() if name in now and _equal(old, now[name]))
        return frozenset(self.buffers.keys() | now.keys()) - frozenset(same)

    def check(self, name: str, module: nn.Module) -> None:
        """A pass must leave the weights as they are, also one of other rows: tables of tokens are looked at whole.

        Raises:
            ModelError: another parameter stands in its place, or it was written into, and its norm is another; or an
                embedding will shorten rows that this pass did not read.
        """
        now, shortened = dict(module.named_parameters()), _shortened(module)
        for key, (old, version, norm) in self.params.items():
            touched = now.get(key) is not old or written(old) != version
            if (touched and (key not in now or not torch.equal(_norm(now[key]), norm))) or id(old) in shortened:
                raise ModelError(
                    f"{name} writes into its parameters",
                    expected="a forward pass in eval mode that leaves its weights as they are",
                    got=f"another {key} after a pass",
                    do="let it compute with a copy; of an embedding with max_norm scale the rows of the table once, "
                    "and set its max_norm to None",
                )


def _shortened(module: nn.Module) -> set[int]:
    """The embeddings' tables with rows longer than their ``max_norm``, which a pass that reads them shortens, by id."""
    found = set()
    for part in module.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None:
            lengths = torch.linalg.vector_norm(part.weight.detach(), part.norm_type, dim=1)
            if bool((lengths > part.max_norm * (1 + _ROUNDED)).any()):
                found.add(id(part.weight))
    return found


def check_padding(name: str, run: Callable[[Any], Tensor], preprocess: Preprocess, batch: Any) -> None:
    """Nor may a text's output depend on how far it is padded.

    Raises:
        ModelError: a short text's output alone and beside longer ones differ.
    """
    mask = attention_mask(batch)
    if preprocess.modality != "text" or not preprocess.ragged or mask is None or mask.shape[1] <= 4:
        return
    if any(value.shape != mask.shape for value in batch.values()):  # graphs of molecules, say
        return
    rows = [{key: value[row] for key, value in batch.items()} for row in range(len(mask))]
    short = {key: torch.cat([value[:2], value[-2:]]) for key, value in rows[0].items()}  # with its special tokens
    alone, beside = (run(preprocess.collate(items))[:1] for items in ([short], [short, *rows]))
    if alone.shape == beside.shape and not agree(beside, alone):
        raise ModelError(
            f"{name}: the output of a short text depends on the texts beside it, to which it is padded",
            expected="the same output for a row whenever and with whatever it is run",
            got=f"outputs that differ by {float((beside - alone).abs().max()):.2g}",
            do="take a model that reads its attention mask, and whose pad_token_id is that of its tokeniser",
        )


def does_not_run(name: str, error: BaseException, preprocess: Preprocess) -> ModelError:
    """What to say, and what to do, where a module does not run on an example."""
    if "dtype" in str(error):
        do = "let its forward pass name no dtype: all that it holds was made float32"
    elif isinstance(error, IndexError) and preprocess.modality == "array":
        do = "of columns that hold codes of categories say so: ArrayPreprocess(shape, categories=(7, 0, …))"
    elif isinstance(error, IndexError) and preprocess.modality == "text":
        do = "take the tokeniser that the model learnt with: this one has tokens that the model has no place for"
    else:
        do = "check that the preprocessing (size, channels) is the module's"
    return ModelError(
        f"{name} does not run on an example of its own preprocessing",
        got=f"{type(error).__name__}: {first_line(error, 300)}",
        do=do,
    )


def first_rows(batch: Any, count: int) -> Any:
    """The first ``count`` rows of a batch, which share its memory."""
    if isinstance(batch, Mapping):
        return {name: value[:count] for name, value in batch.items()}
    return batch[:count]


def _norm(value: Tensor) -> Tensor:
    value = value.detach()
    return torch.linalg.vector_norm(value if value.is_floating_point() or value.is_complex() else value.double())


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two are alike bit by bit, but for NaN, which are all the same."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())


def _tensors(batch: Any) -> list[Tensor]:
    return [value for value in (batch.values() if isinstance(batch, Mapping) else [batch]) if isinstance(value, Tensor)]
