"""Sites: the named places of a network where a value can be read."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from regraft.errors import TapError
from regraft.wording import near

__all__ = ["Axes", "Kind", "Layout", "Site", "match_sites"]

Kind = Literal["activation", "block", "embedding", "logits", "module", "input"]
Layout = Literal["map", "tokens", "vector"]
KINDS: tuple[str, ...] = ("activation", "block", "embedding", "logits")
"""What a pattern may select by kind; ``module:PATTERN`` and ``input`` are asked for by name alone."""


@dataclass(frozen=True)
class Site:
    """One place of a network where a value exists during a forward pass.

    Attributes:
        name: the module's path (``layer1.0.relu``), ``M.relu()`` for a function called in module ``M``,
            ``embedding``, ``logits``, ``module:PATH`` for any module's output, or ``input``; ``:0``, ``:1`` …
            count several calls in one forward pass.
        kind: what it is.
        shape: of one row's value on the example batch, in the order of ``layout``.
        layout: ``map`` (C, H, W), ``tokens`` (L, D) or ``vector`` (D,).
        prefix_tokens: leading tokens that are no patches or words (class and register tokens); 0 where
            there are none or it is not known.
        same_as: the earlier site that holds the very same tensor (a block that ends in an activation gives
            that activation's value); empty as a rule.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    layout: Layout
    prefix_tokens: int = 0
    same_as: str = ""

    @property
    def base(self) -> str:
        """The name without the call index."""
        head, colon, index = self.name.rpartition(":")
        return head if colon and index.isdigit() else self.name


@dataclass(frozen=True)
class Axes:
    """How a raw tensor lies in memory, and how it becomes ``(B, C, H, W)``, ``(B, L, D)`` or ``(B, D)``.

    Attributes:
        layout: the layout to arrive at.
        batch_axis: the raw axis that counts rows (1 in sequence-first networks).
        feature_axis: the raw axis that counts features, after the batch axis was moved to the front.
    """

    layout: Layout
    batch_axis: int
    feature_axis: int

    def __call__(self, value: Tensor) -> Tensor:
        """The value with its axes in the layout's order (a view wherever one is possible)."""
        if self.batch_axis:
            value = value.movedim(self.batch_axis, 0)
        if self.layout == "vector":
            return value.flatten(1) if value.ndim > 1 else value[:, None]
        if self.layout == "tokens":
            return value if self.feature_axis == value.ndim - 1 else value.movedim(self.feature_axis, -1)
        value = value if self.feature_axis == 1 else value.movedim(self.feature_axis, 1)
        return value if value.ndim == 4 else value.flatten(2, -2)  # video: time joins the height


def match_sites(sites: Sequence[Site], patterns: Sequence[str]) -> tuple[str, ...]:
    """Names of the sites that some pattern matches, in order of execution.

    A pattern is a kind (``block``), a name with or without its call index, or a shell-style wildcard over
    names. A kind that this network does not have selects nothing and is no mistake. A block whose value is
    that of another selected site is left out, so that no value is taken twice. Outputs of modules are selected
    by ``module:PATTERN`` alone and the network's input by ``input`` alone.

    Raises:
        TapError: a pattern that is no kind matches nothing, or nothing at all is selected.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        hits = [site.name for site in sites if _matches(site, pattern)]
        if not hits and pattern not in KINDS:
            own = pattern.startswith("module:")
            names = [site.name for site in sites if (site.kind == "module") == own and site.kind != "input"]
            raise TapError(
                f"no tap matches {pattern!r}",
                expected="a kind (" + ", ".join(KINDS) + ") or a pattern over the network's taps",
                got=f"{len(names)} taps such as {', '.join(names[:3])}",
                do=near(pattern, [*names, *KINDS]) or "list them with `network.sites`",
            )
        chosen.update(hits)
    if not chosen:
        have = ", ".join(dict.fromkeys(site.kind for site in sites)) or "no taps at all"
        raise TapError(
            "the patterns select no tap", expected="at least one", got=f"{list(patterns)} on a network with {have}"
        )
    return tuple(site.name for site in sites if site.name in chosen and site.same_as not in chosen)


def _matches(site: Site, pattern: str) -> bool:
    if pattern in KINDS:
        return site.kind == pattern
    if site.kind == "input" or (site.kind == "module" and not pattern.startswith("module:")):
        return site.name == pattern
    return fnmatch.fnmatchcase(site.name, pattern) or fnmatch.fnmatchcase(site.base, pattern)
