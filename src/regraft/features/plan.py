"""What a sweep must compute: the union of what every stage and check needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Integral
from typing import Any, get_args

from regraft.errors import TapError
from regraft.features.pooling import Cls, Pooling, choose_pooling
from regraft.network import Network, Preprocess, Site

__all__ = ["Block", "Plan", "Taps", "by_size", "plan"]


@dataclass(frozen=True)
class Taps:
    """A need for features: which taps, pooled to which sizes.

    Attributes:
        patterns: shell patterns over tap names, the kinds ``activation``, ``block``, ``embedding``,
            ``logits``, ``module:PATTERN`` over the paths of modules, or ``input``.
        sizes: target sizes ``T`` per tap (see :mod:`regraft.features.pooling`); ``None`` is the plain
            average over positions.
        cls: what happens to a class token: ``pooled``, ``only`` or ``apart``.

    Raises:
        TapError: a size or a choice that is none.
    """

    patterns: tuple[str, ...] = ("activation", "block", "embedding", "logits")
    sizes: tuple[int | None, ...] = (512,)
    cls: Cls = "pooled"

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, Sequence) or not self.sizes or not all(map(_is_size, self.sizes)):
            raise TapError(
                "the target sizes of taps",
                expected="at least one whole number above 0, or None for a plain average",
                got=repr(self.sizes),
                do="give them as a tuple, such as (512, 2048)",
            )
        if self.cls not in get_args(Cls):
            raise TapError(f"Taps(cls={self.cls!r}) does not exist", expected=", ".join(get_args(Cls)))


def _is_size(size: Any) -> bool:
    return size is None or (isinstance(size, Integral) and not isinstance(size, bool) and int(size) > 0)


@dataclass(frozen=True)
class Block:
    """One column block of the feature matrix: a tap and its pooling."""

    name: str
    site: str
    kind: str
    depth: float
    width: int
    pooling: Pooling

    @property
    def channels(self) -> int:
        """Features of one position of the pooled value."""
        return self.width // math.prod(self.pooling.windows)


@dataclass(frozen=True)
class Plan:
    """The blocks of a sweep, in order of execution in the network."""

    blocks: tuple[Block, ...]

    def __repr__(self) -> str:
        return f"Plan(blocks: {len(self.blocks)}, features: {self.width:,})"

    @property
    def width(self) -> int:
        """Features per row over all blocks."""
        return sum(block.width for block in self.blocks)

    @property
    def sites(self) -> tuple[str, ...]:
        """The taps to observe, each once, in order."""
        return tuple(dict.fromkeys(block.site for block in self.blocks))

    def only(self, names: Sequence[str]) -> Plan:
        """The part of the plan with these block names, in the plan's order."""
        wanted = set(names)
        return Plan(tuple(block for block in self.blocks if block.name in wanted))

    def to_json(self) -> list[dict[str, Any]]:
        """Plain JSON values; part of the store's key."""
        return [asdict(block) for block in self.blocks]

    @classmethod
    def from_json(cls, value: list[dict[str, Any]]) -> Plan:
        """The inverse of :meth:`to_json`."""
        return cls(tuple(Block(**{**block, "pooling": _pooling(block["pooling"])}) for block in value))


def _pooling(value: dict[str, Any]) -> Pooling:
    return Pooling(**{**value, "windows": tuple(value["windows"]), "size": tuple(value["size"])})


def plan(network: Network, needs: Sequence[Taps]) -> Plan:
    """The union of several needs, each block once, in the network's order of execution.

    Two target sizes that lead to the same pooling (a tap with more channels than either) share one
    block. A tap that holds the very tensor of an earlier tap of the same need (a block that ends in an
    activation) is left out: it would only count that layer twice.

    Raises:
        TapError: a pattern matches nothing, or nothing is asked for.
    """
    everything = network.all_sites
    order = {site.name: index for index, site in enumerate(everything)}
    depth = _depths(network)
    preprocess = network.preprocess
    found: dict[str, Block] = {}
    for need in needs:
        for name in network.match(need.patterns):
            site = everything[order[name]]
            for size in need.sizes:
                block = _block(site, depth[name], size, need.cls, preprocess)
                found.setdefault(block.name, block)
    if not found:
        raise TapError("no taps were asked for", do="name at least one tap pattern, such as 'embedding'")
    return Plan(tuple(sorted(found.values(), key=lambda block: order[block.site])))


def _depths(network: Network) -> dict[str, float]:
    """The share of the network's sites that have been passed where a value exists; a module's output counts with
    the next site, and the input is at 0."""
    count, passed, own = len(network.sites), 0, {site.name for site in network.sites}
    found = {}
    for site in network.all_sites:
        passed += site.name in own
        found[site.name] = 0.0 if site.kind == "input" else min(passed + (site.name not in own), count) / count
    return found


def by_size(network: Network, need: Taps) -> dict[str, tuple[str, ...]]:
    """The names of the blocks of each target size of a need, ``plain average`` that of ``None``; a block may belong to
    several sizes."""
    return {
        "plain average" if size is None else str(size): tuple(
            block.name for block in plan(network, [replace(need, sizes=(size,))]).blocks
        )
        for size in need.sizes
    }


def _block(site: Site, depth: float, size: int | None, cls: Cls, preprocess: Preprocess) -> Block:
    tokens = site.layout == "tokens"
    pooling = choose_pooling(
        site.shape,
        site.layout,
        size if preprocess.ordered or not tokens else None,  # windows of what has no order would mean nothing
        cls=cls,
        prefix_tokens=site.prefix_tokens,
        ragged=preprocess.ragged and tokens,
    )
    return Block(site.name + pooling.label, site.name, site.kind, depth, pooling.width(site.shape), pooling)
