"""A pretrained network as an immutable value: a pure function with named parameters and taps."""

from __future__ import annotations

import contextlib
import copy
import fnmatch
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regraft.errors import ModelError, RegraftError
from regraft.files import canonical_json
from regraft.network.blocks import find_blocks, prefix_tokens, top_layers
from regraft.network.contract import Held, check_numbers, check_padding, check_rows, does_not_run, first_rows
from regraft.network.fingerprint import architecture, fingerprint, reading
from regraft.network.flops import Operations
from regraft.network.layout import agree, gains, turned
from regraft.network.observe import OnValue, observe
from regraft.network.policy import Policy, grad
from regraft.network.preprocess import Preprocess
from regraft.network.reading import attention_mask, pool_tokens
from regraft.network.site import Site, match_sites
from regraft.network.surgery import Headed, linear_like, owners, shared_copy
from regraft.network.trace import Trace, trace
from regraft.wording import near

__all__ = ["About", "Network", "Traits"]

_ROWS = 3  # of the example batch: an odd number that few other axes have


@dataclass(frozen=True)
class About:
    """Where a network comes from.

    Attributes:
        source: ``transformers``, ``timm``, ``torchvision``, ``module`` or ``regraft``.
        licence: as its publisher states it; empty if not known.
        classes: names of the logits; empty if not known.
        revision: of the hub's repository; empty if local or not known.
        parameters: how many numbers it has learnt.
        architecture: the name that its library builds it by, where its own is that of a folder.
    """

    source: str
    licence: str = ""
    classes: tuple[str, ...] = field(default=(), repr=False)
    revision: str = ""
    parameters: int = 0
    architecture: str = ""


@dataclass(frozen=True)
class Traits:
    """What the module alone does not tell.

    Attributes:
        config: the published architecture configuration; part of the fingerprint.
        pooler: whether a pooled output of the model's own was trained and may serve as embedding.
        pool: how positions become the embedding where no such output does: the first token, the last, or the mean of
            the real ones; by the kind of input if ``None``.
        prefix_tokens: class and register tokens at the front of token sequences; ``None`` counts the
            module's parameters that are named so.
    """

    config: Mapping[str, Any] | None = None
    pooler: bool = True
    prefix_tokens: int | None = None
    pool: Literal["cls", "last", "mean"] | None = None


class Network:
    """A module in eval mode, frozen, with its preprocessing: never changed after it is made.

    The module is taken over: eval mode is set and gradients are switched off. Use
    :func:`regraft.network.from_module` to keep a module of your own untouched.

    Args:
        name: what the user typed, or a short name.
        module: the network.
        preprocess: raw input to the module's input.
        about: where it comes from.
        traits: what the module alone does not tell.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        preprocess: Preprocess,
        about: About,
        *,
        traits: Traits | None = None,
        _architecture: str | None = None,
        _passing: frozenset[str] = frozenset(),
    ) -> None:
        module.eval().requires_grad_(False)
        self.name, self.module, self.preprocess = name, module, preprocess
        self.traits = traits or Traits()
        self.about = replace(about, parameters=sum(p.numel() for p in module.parameters()))
        # Taken before the first pass, for some modules change their own settings when they run.
        self._architecture = _architecture or architecture(module, self.traits.config) + self._told()
        self._reading = reading(preprocess)
        self._passing = _passing

    def _told(self) -> str:
        """What the caller said of a module of its own; of others it follows from what is in the fingerprint already."""
        if self.about.source != "module" or self.traits.config is not None or self.traits == Traits():
            return ""
        return canonical_json([self.traits.pooler, self.traits.pool, self.traits.prefix_tokens])

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle holds: everything but the values that are derived from it."""
        cached = {name for name, value in vars(type(self)).items() if isinstance(value, cached_property)}
        return {name: value for name, value in vars(self).items() if name not in cached}

    def __sklearn_clone__(self) -> Network:
        """Itself, for it never changes: scikit-learn clones an estimator for every fold, and would copy all weights."""
        return self

    def __repr__(self) -> str:
        return f"Network({self.name!r}, {self.about.source}, {self.about.parameters:,} parameters)"

    # ------------------------------------------------------------------------------ what it is

    @cached_property
    def params(self) -> Mapping[str, Tensor]:
        """The parameters by name, in order of registration; a tied parameter appears once."""
        return MappingProxyType({name: p.detach() for name, p in self.module.named_parameters()})

    @cached_property
    def buffers(self) -> Mapping[str, Tensor]:
        """The buffers by name (running statistics, position indices)."""
        return MappingProxyType({name: b.detach() for name, b in self.module.named_buffers()})

    @cached_property
    def _places(self) -> Mapping[str, tuple[str, ...]]:
        """Where the tensor of each name is held. A module that stands at two paths counts once: torch's own way of
        tying swaps its tensors twice and puts the wrong ones back."""
        held: dict[int, list[str]] = {}
        for path, part in self.module.named_modules():
            for leaf, tensor in [*part._parameters.items(), *part._buffers.items()]:
                if tensor is not None:
                    held.setdefault(id(tensor), []).append(f"{path}.{leaf}" if path else leaf)
        named = [
            *self.module.named_parameters(remove_duplicate=False),
            *self.module.named_buffers(remove_duplicate=False),
        ]
        return {name: tuple(held[id(tensor)]) for name, tensor in named}

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        first = next(self.module.parameters(), next(self.module.buffers(), None))
        return torch.device("cpu") if first is None else first.device

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over every weight and buffer but those that are :attr:`passing`, the architecture and the
        preprocessing."""
        kept = {name: value for name, value in self.buffers.items() if name not in self.passing}
        return fingerprint({**self.params, **kept}, self._architecture, self._reading)

    @cached_property
    def passing(self) -> frozenset[str]:
        """Names of the buffers that passes in eval mode change, and outputs do not depend on: counters of calls, tables
        that are made when they are needed. They are no part of what the network is."""
        if all(type(part).__module__.startswith("torch.nn.") for part in self.module.modules() if part._buffers):
            return self._passing
        try:
            return self._passing | self._trace.passing
        except ModelError:  # it does not run, which whatever needs a pass will say
            return self._passing

    @cached_property
    def blocks(self) -> tuple[str, ...]:
        """Paths of the residual or transformer blocks, in order of registration."""
        return find_blocks(self.module)

    @cached_property
    def topmost(self) -> tuple[str, ...]:
        """Patterns of the parameters of the topmost block that the output depends on; of a network without blocks those
        of its topmost layer and of the normalisation behind it, the head apart. Empty where no module holds weights."""
        used = self._used
        for block in reversed(self.top_blocks(len(self.blocks))):
            if any(name.startswith(f"{block}.") for name in used):
                return (f"{block}.*",)
        return tuple(f"{path}.*" for path in self.top_layers())

    def top_blocks(self, count: int = 1) -> tuple[str, ...]:
        """Paths of the ``count`` blocks that end last in a pass, in that order; those that do not run come first."""
        last = {path: place for place, path in enumerate(self._trace.ended)} if self.blocks else {}
        ordered = sorted(self.blocks, key=lambda path: last.get(path, -1))
        return tuple(ordered[len(ordered) - count :])

    def top_layers(self, count: int = 1) -> tuple[str, ...]:
        """Paths of the ``count`` topmost layers with weights that the output depends on, and of the normalisations
        behind them, the head apart."""
        return top_layers(self.module, self._trace.ended, self.head, self._used, count)

    @cached_property
    def _used(self) -> tuple[str, ...]:
        """Names of the parameters that the output depends on, and so not those of a second head; all of them where it
        has no derivatives."""
        leaves = {name: value.detach().requires_grad_() for name, value in self.params.items()}
        try:
            with torch.inference_mode(False), torch.enable_grad(), self.policy.differentiable():
                output = self(leaves, {}, self.example(_ROWS))
                found = grad(output.sum(), list(leaves.values()), allow_unused=True)
        except RuntimeError:
            return tuple(leaves)
        finally:  # what a module keeps of a pass on itself is no graph then: there is no copy of one
            with torch.no_grad():
                self.forward(self.example(_ROWS))
        return tuple(name for name, gradient in zip(leaves, found) if gradient is not None)

    @cached_property
    def _trace(self) -> Trace:
        prefix = self.traits.prefix_tokens
        prefix = prefix_tokens(self.module) if prefix is None else prefix
        batch, outputs, held = self.example(_ROWS), list[Any](), Held(self.module)
        fewer = first_rows(batch, _ROWS - 1)
        try:
            pool = self.traits.pool or ("mean" if self.preprocess.ragged else None)
            tokens = None if (mask := attention_mask(batch)) is None else mask.shape[1]
            found = trace(
                self.module, lambda: self._raw(batch), _ROWS, prefix, self.traits.pooler, pool, tokens,
                len(self.about.classes), lambda: outputs.append(self._raw(fewer)),
            )  # fmt: skip
            check_numbers(self.name, found.output, self.module)
            with torch.no_grad():
                held.check(self.name, self.module)
                check_rows(self.name, found.reading(outputs.pop(), fewer), found, batch, self.example(_ROWS))
                check_padding(self.name, self._reader(found), self.preprocess, batch)
        except RegraftError:
            raise
        except Exception as error:  # what a module raises of a size that is none of its own is its own affair
            raise does_not_run(self.name, error, self.preprocess) from error
        return replace(found, passing=held.passing(self.module))

    def _reader(self, found: Trace) -> Callable[[Any], Tensor]:
        """What :meth:`forward` will be, before the trace that it goes by is known to be sound."""
        return lambda batch: found.reading(self._raw(placed := self.place(batch)), placed)

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every place where a value is looked for, in order of execution, seen in one example pass."""
        return tuple(tap.site for tap in self._trace.taps)

    @property
    def all_sites(self) -> tuple[Site, ...]:
        """The sites, and between them the output of every module (``module:PATH``); before them the ``input``."""
        return tuple(tap.site for tap in self._trace.everything)

    @property
    def head(self) -> str:
        """The path of the linear layer (or 1 x 1 convolution) that gives the logits; empty if none."""
        return self._trace.head

    @property
    def has_logits(self) -> bool:
        """Whether calling the network gives logits (else it gives the pooled embedding)."""
        return self._trace.reading.logits

    @property
    def unread(self) -> tuple[tuple[int, ...], ...]:
        """What a row has of each output that is not read, as shapes, where the module gives several and names none as
        logits or as an embedding: the first is read."""
        return self._trace.unread

    @cached_property
    def policy(self) -> Policy:
        """On which kernels its passes run."""
        return Policy.of(self.module, self.device)

    @cached_property
    def channels_last(self) -> bool:
        """Whether batches of images lie channels last in memory: on a processor, where 2-D convolutions run up to 1.6
        times as fast so, unless the module's own code wants the other order (a ``view`` over channels and pixels).

        Decided by what the network is, never by a clock: the same command must take the same path twice.
        """
        found, batch = self._trace, self.example(_ROWS)
        if self.device.type != "cpu" or not gains(self.module):
            return False
        try:
            with torch.no_grad():
                other = found.reading(self._raw(turned(batch)), batch)
        except Exception:  # whatever a module raises of a layout that is none of its own
            return False
        return agree(other, pool_tokens(found.output, found.reading.pool, attention_mask(batch)))

    # ---------------------------------------------------------------------------- calling it

    def _raw(self, batch: Any) -> Any:
        with self.policy.running():
            return self.module(**batch) if isinstance(batch, Mapping) else self.module(batch)

    def forward(self, batch: Any) -> Tensor:
        """The logits ``(B, C)`` of a preprocessed batch, or ``(B, D)`` embeddings without a head."""
        return self._trace.reading(self._raw(batch), batch)

    def __call__(self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], batch: Any) -> Tensor:
        """The same with other tensors: f(params, buffers, batch), differentiable in all of them.

        Names left out keep the network's own tensors.
        """
        reading = self._trace.reading
        given = {**params, **buffers}
        tensors = {place: value for name, value in given.items() for place in self._places.get(name, (name,))}
        args, kwargs = ((), dict(batch)) if isinstance(batch, Mapping) else ((batch,), {})
        with self.policy.running():
            output = torch.func.functional_call(self.module, tensors, args, kwargs, tie_weights=False)
        return reading(output, batch)

    def observe(
        self, sites: Sequence[str], on_value: OnValue, *, raw: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Inside this context every forward pass calls ``on_value(name, value)`` for each named site.

        The value comes at the moment it exists and has its site's layout; the network may overwrite it as
        soon as ``on_value`` returns, so use it up there or clone it. With ``raw`` it is the very tensor that the
        network goes on with, its axes as they are: hooks on it hear the gradient of what comes after.

        Raises:
            TapError: a name is no site of this network, or a pass did not come by all of them.
        """
        return observe(self.module, self._trace, sites, on_value, raw=raw)

    def example(self, rows: int = 2) -> Any:
        """A batch of the right form with seeded random content, on the network's device."""
        return self.place(self.preprocess.example(rows))

    def place(self, batch: Any) -> Any:
        """The batch on the network's device."""
        if isinstance(batch, Mapping):
            return {name: self.place(value) for name, value in batch.items()}
        return batch.to(self.device) if isinstance(batch, Tensor) else batch

    def laid_out(self, batch: Any) -> Any:
        """The same values in the memory layout that the network runs fastest in; see :attr:`channels_last`."""
        return turned(batch) if self.channels_last else batch

    def rows_at_once(self, near: int = 2**25) -> int:
        """How many images to send through a processor together, so that the largest map of them all takes at most
        ``near`` bytes and stays in its cache, but as many for every thread, one at least. Anything else goes as one
        batch.
        """
        if not self.channels_last:
            return sys.maxsize
        largest = max(math.prod(site.shape) for site in self.all_sites)
        threads = torch.get_num_threads()  # which wait for each other at every layer
        return threads * max(1, near // (4 * largest * threads))

    def flops(self, batch: Any) -> int:
        """Floating-point operations of one forward pass of ``batch`` (multiply and add count two)."""
        _ = self._trace  # made outside the count
        with Operations() as counter, torch.no_grad():
            self.forward(batch)
        return int(counter.total)

    # ------------------------------------------------------------------------------ choosing

    def match(self, patterns: Sequence[str]) -> tuple[str, ...]:
        """Names of the sites that the patterns select, in order of execution.

        A pattern is a kind (``activation``, ``block``, ``embedding``, ``logits``), a name with or without
        its call index, or a shell-style wildcard; ``module:PATTERN`` selects outputs of modules by their
        paths, and ``input`` what the network is given.

        Raises:
            TapError: a pattern that is no kind matches nothing; near names are given.
        """
        return match_sites(self.all_sites, [patterns] if isinstance(patterns, str) else patterns)

    def select(self, pattern: str) -> tuple[str, ...]:
        """Names of the parameters that a shell-style wildcard matches, in order of registration.

        Raises:
            ModelError: it matches nothing; near names are given.
        """
        names = tuple(name for name in self.params if fnmatch.fnmatchcase(name, pattern))
        if not names:
            inside = any(name.startswith(f"{pattern}.") for name in self.params)
            raise ModelError(
                f"no parameter of {self.name} matches {pattern!r}",
                expected="a pattern over parameter names such as 'layer4.*'",
                got=f"names such as {', '.join(list(self.params)[:3])}",
                do=f"did you mean '{pattern}.*'?" if inside else near(pattern, self.params),
            )
        return names

    # ------------------------------------------------------------------- others made from it

    def with_params(self, tensors: Mapping[str, Tensor]) -> Network:
        """This network with some parameters or buffers replaced; the others are shared, not copied.

        Raises:
            ModelError: a name is unknown or a shape differs.
        """
        own = {**self.params, **self.buffers}
        for name, tensor in tensors.items():
            if name not in own:
                raise ModelError(f"{self.name} has no parameter {name!r}", do=near(name, own))
            if tensor.shape != own[name].shape:
                raise ModelError(
                    f"{name} does not fit", expected=str(tuple(own[name].shape)), got=str(tuple(tensor.shape))
                )
        module = shared_copy(self.module)
        new: dict[str, Tensor] = {}
        for name, old in [*owners(module, tensors)]:
            new.setdefault(name, old.like(tensors[name]))  # one for all places, so that what was tied stays so
            old.put(new[name])
        return self._alike(module, self.preprocess)

    def reading(self, preprocess: Preprocess) -> Network:
        """This network with another preprocessing, such as of another size, where the module takes it."""
        return self._alike(self.module, preprocess)

    def _alike(self, module: nn.Module, preprocess: Preprocess) -> Network:
        """Of a module of the same tree."""
        return Network(
            self.name, module, preprocess, self.about, traits=self.traits, _architecture=self._architecture,
            _passing=self.passing,
        )  # fmt: skip

    def with_head(self, weight: Tensor, bias: Tensor | None = None, classes: Sequence[str] = ()) -> Network:
        """This network with another last layer: logits = weight · embedding + bias.

        Without a head, one is put on the pooled embedding, as the layer ``head`` of a module whose
        backbone is ``body``.

        Args:
            weight: ``(C, D)``, D the width of the ``embedding`` site.
            bias: ``(C,)``, or zero.
            classes: names of the new logits.
        """
        width = next((site.shape[0] for site in self.sites if site.name == "embedding"), 0)
        if not self.head:
            if self.has_logits:
                raise ModelError(
                    f"{self.name} has logits that no single linear layer gives",
                    do="let it return what its last layer gives, or load it without its heads: load(name, head=False)",
                )
            module: nn.Module = Headed(shared_copy(self.module), self._trace.reading)
            path, passing = "head", frozenset(f"body.{name}" for name in self.passing)
            old: nn.Module = nn.Linear(width, 1)
        else:
            module, path, passing = shared_copy(self.module), self.head, self.passing
            old = module.get_submodule(path)
            width = old.in_channels if isinstance(old, nn.Conv2d) else old.in_features  # type: ignore[assignment]
        if weight.ndim != 2 or weight.shape[1] != width:
            raise ModelError("the head does not fit", expected=f"(C, {width})", got=str(tuple(weight.shape)))
        parent, _, leaf = path.rpartition(".")
        owner = module.get_submodule(parent)
        setattr(owner, leaf, linear_like(old, weight, bias).to(self.device))
        about = replace(self.about, classes=tuple(classes))
        return Network(self.name, module, self.preprocess, about, traits=self.traits, _passing=passing)

    def without_head(self) -> Network:
        """This network without its last layer: calling it gives the embedding."""
        if not self.head:
            return self
        module = shared_copy(self.module)
        parent, _, leaf = self.head.rpartition(".")
        setattr(module.get_submodule(parent), leaf, nn.Identity())
        about = replace(self.about, classes=())
        return Network(self.name, module, self.preprocess, about, traits=self.traits, _passing=self.passing)

    def to(self, device: str | torch.device) -> Network:
        """This network on ``device``: itself if it is there already, else a copy."""
        device = torch.device(device)
        if device == self.device or (device.index is None and device.type == self.device.type):
            return self
        module = copy.deepcopy(self.module).to(device)
        moved = self._alike(module, self.preprocess)
        if found := self.__dict__.get("_trace"):  # a pass of few rows on a new device may take longer than one of many
            moved.__dict__["_trace"] = replace(found, output=found.output.to(device))
        return moved
