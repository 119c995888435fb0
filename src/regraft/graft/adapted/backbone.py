"""The backbone that an artifact's head belongs to: found, put together again, and verified by its fingerprint."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch

from regraft.errors import ArtifactError, ModelError
from regraft.features import Block, Plan, Taps, plan
from regraft.graft.adapted.reading import TENSORS
from regraft.network import Network, check_weights, load, preprocess_from_json
from regraft.record.folder import BACKBONE

__all__ = ["RECORDED", "check_embedding", "find_backbone", "put_together"]

RECORDED = ("name", "source", "revision", "fingerprint", "embedded")
"""Of the backbone, in every version of an artifact."""


def find_backbone(
    folder: Path,
    recorded: dict[str, Any],
    model: str | Network | None,
    weights: str | None,
    preprocess: dict[str, Any],
) -> Network:
    """Embedded → the one given → the recorded name; the fingerprint is always verified. A network may have been loaded
    without its head, or have read its images or arrays as ``preprocess`` says: that which matches is taken."""
    first = _load_backbone(folder, recorded, model, weights)
    for head in (True, False):
        with contextlib.suppress(ModelError, ArtifactError):  # one that has no head to be without
            network = first if head else _load_backbone(folder, recorded, model, weights, head=False)
            others = [preprocess_from_json(preprocess)] if preprocess["kind"] in ("image", "array") else []
            for found in (network, *map(network.reading, others)):
                if found.fingerprint == recorded["fingerprint"]:
                    return found
    do = (
        f"use the same weights and preprocessing of {recorded['name']}, built by the version of its library "
        "that the artifact's README.md names"
    )
    if recorded["embedded"] and model is not None:
        there = folder / BACKBONE
        own = recorded["source"] == "module"
        do = f"give it --weights {there / TENSORS}" if own else f"leave --model out: the backbone lies in {there}"
    raise ArtifactError(
        f"{first.name} is not the backbone that this head was solved on",
        expected=f"fingerprint {recorded['fingerprint'][:12]}…",
        got=f"{first.fingerprint[:12]}…",
        do=do,
    )


def _load_backbone(
    folder: Path, recorded: dict[str, Any], model: str | Network | None, weights: str | None, head: bool = True
) -> Network:
    if isinstance(model, Network):
        check_weights(model, weights)
        return model if head else model.without_head()
    if recorded["embedded"] and model is None:
        return load(str(folder / BACKBONE), head=head)
    if model is None and recorded["source"] == "module":
        raise ArtifactError(
            f"this artifact's backbone is your own module {recorded['name']!r}, and loading runs no code",
            do=f"name it yourself: --model {recorded['name']}, with --weights FILE if its weights lie in one",
        )
    try:
        return load(
            model or recorded["name"],
            weights=weights,
            revision=(recorded["revision"] or None) if model in (None, recorded["name"]) else None,  # of that name
            head=head,
            allow_code=model is not None,  # anyone can write a name into the file
        )
    except ModelError as error:
        if model is not None or weights is not None:
            raise
        raise ArtifactError(
            f"the backbone {recorded['name']!r} of this artifact cannot be loaded",
            got=error.what,
            do="say where it is with --model, or adapt with --embed next time",
        ) from error


def put_together(source: Network, changed: dict[str, torch.Tensor], fingerprint: str) -> Network:
    """The backbone after its training, its fingerprint verified."""
    network = source.with_params(changed) if changed else source
    if network.fingerprint != fingerprint:
        raise ArtifactError(
            "the trained backbone cannot be put together again",
            expected=f"fingerprint {fingerprint[:12]}…",
            got=f"{network.fingerprint[:12]}…",
            do="run `regraft adapt` again",
        )
    return network


def check_embedding(taps: Plan, *networks: Network) -> None:
    """Refuse an artifact whose head reads as embedding what an earlier version took for it: another value of the same
    network (as it is, or as it was before the head was put on it), which stands elsewhere among its layers."""
    for block in taps.blocks:
        if block.kind == "embedding" and not any(_is_read(block, _own(block.site, each)) for each in networks):
            raise ArtifactError(
                f"the head of this artifact reads another value of {networks[0].name} as its embedding",
                expected=_value(_own(block.site, networks[0])),
                got=_value(block),
                do="run `regraft adapt` again",
            )


def _own(site: str, network: Network) -> Block:
    (block,) = plan(network, [Taps((site,), (None,))]).blocks
    return block


def _is_read(block: Block, own: Block) -> bool:
    return block.depth == own.depth and (block.pooling.layout != "vector" or block.width == own.width)


def _value(block: Block) -> str:
    return f"{block.width} features at {block.depth:.2g} of its depth"
