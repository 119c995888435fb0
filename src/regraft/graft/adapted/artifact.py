"""The artifact: a head as safetensors and JSON, complete in itself, never a pickle.

A run folder holds::

    config.json          task, class names, preprocessing, taps, the backbone's fingerprint, checksums
    model.safetensors    coefficients per block, intercept, kept columns; of a trained backbone every
                         parameter and buffer that training changed, whole; of gradient features the head
                         they are taken through, and coefficients by parameter; of masks the layers
                         between the backbone's map and the head; of error bars directions of the posterior
    backbone/            the backbone itself (only with ``embed``)

``config.json`` carries the SHA-256 of every other file and of its own content, and the fingerprint of
the backbone that the head was solved on (before training, and after it): loading refuses a changed file
or another backbone. An embedded backbone is the one that predicts, so it needs no other tensors, and
``origin`` names what it was trained from, if it was; unless it carries the task's own last layer: then it is
the one from before training.
"""

from __future__ import annotations

import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors

from regraft.errors import ArtifactError
from regraft.features import Plan
from regraft.files import file_digest, sealed, write_bytes, write_json
from regraft.graft.adapted.aspp import Aspp
from regraft.graft.adapted.backbone import RECORDED, check_embedding, find_backbone, put_together
from regraft.graft.adapted.model import Adapted, with_last_layer
from regraft.graft.adapted.posterior import PosteriorPart
from regraft.graft.adapted.reading import FORMAT, TENSORS, VERSION, complete, read_config, read_tensors
from regraft.graft.adapted.tangent import TangentPart
from regraft.graft.adapted.view import View
from regraft.graft.options import pick_device
from regraft.heads import Readout
from regraft.heads.selection.packing import pack, unpack
from regraft.linear import Blocks
from regraft.network import Network, save
from regraft.record.folder import BACKBONE, CONFIG

__all__ = ["embedded", "kept_columns", "load_artifact", "load_training", "save_artifact"]

_CHANGED = "backbone."
_KEPT, _PLAIN = "kept.", "columns."  # packed, and as indices
_NECK = "neck."
_POSTERIOR = "posterior."
_TANGENT, _TANGENT_HEAD = "tangent.", "tangent-head"


def save_artifact(adapted: Adapted, folder: Path, *, provenance: dict[str, Any], embed: bool = False) -> int:
    """Write ``config.json`` and ``model.safetensors`` (and the backbone) into ``folder``, atomically each.

    The bytes are a function of the adapted model and the provenance alone: no time, no host.

    Returns:
        bytes written.

    Raises:
        StoreError: the folder cannot be written.
    """
    folder = Path(folder)
    readout, source = adapted.readout, adapted.source or adapted.network
    network = embedded(adapted) if embed else source
    whole = embed and network is adapted.network
    order = {block.name: f"{i:05d}" for i, block in enumerate(adapted.plan.blocks)}
    widths = {block.name: block.width for block in adapted.plan.blocks}
    tensors = {f"coefficients.{order[name]}": value.contiguous() for name, value in readout.coefficients.items()}
    tensors["intercept"] = readout.intercept.contiguous()
    for name, kept in (adapted.view.columns or {}).items():
        tensors[f"{_KEPT}{order[name]}"] = pack(kept, widths[name])
    if not whole:
        tensors |= {f"{_CHANGED}{name}": value.cpu().contiguous() for name, value in adapted.changed.items()}
    if adapted.tangent is not None:
        tensors[_TANGENT_HEAD] = adapted.tangent.head.cpu().contiguous()
        weights = adapted.tangent.coefficients.to("cpu")
        tensors |= {f"{_TANGENT}{name}": value.contiguous() for name, value in weights.items()}
    if adapted.neck is not None:
        tensors |= {f"{_NECK}{name}": value for name, value in adapted.neck.tensors().items()}
    if adapted.posterior is not None:
        tensors |= {f"{_POSTERIOR}{name}": value for name, value in adapted.posterior.tensors().items()}
    write_bytes(folder / TENSORS, save_tensors(tensors))
    files = {TENSORS: file_digest(folder / TENSORS)}
    if embed:
        for path in _embedded(network, folder / BACKBONE):
            files[path.relative_to(folder).as_posix()] = file_digest(path)
    config = {
        "format": FORMAT,
        "version": VERSION,
        "task": {"kind": adapted.kind, "classes": list(adapted.classes), "label_type": adapted.label_type}
        | ({"ignore": adapted.ignore} if adapted.ignore >= 0 else {})
        | ({"columns": list(adapted.columns)} if adapted.columns else {}),
        "backbone": {
            "name": network.name,
            "source": network.about.source,
            "revision": network.about.revision,
            "licence": network.about.licence,
            "fingerprint": network.fingerprint,
            "trained": adapted.network.fingerprint,
            "own_head": None if adapted.own_head is None else list(adapted.own_head),
            "embedded": embed,
        }
        | ({} if network is source else {"origin": _origin(source)}),
        "preprocess": network.preprocess.to_json(),
        "taps": adapted.plan.to_json(),
        "view": {
            "scaling": adapted.view.scaling,
            "selected": adapted.view.columns is not None,
            "renormalised": adapted.view.renormalised,
            "unscaled": list(adapted.view.unscaled),
        },
        "readout": {
            "link": readout.link,
            "form": readout.form,
            "strength": readout.strength,
            "temperature": readout.temperature,
        },
        "tangent": None if adapted.tangent is None else {"parameters": list(adapted.tangent.coefficients)},
        "neck": None if adapted.neck is None else adapted.neck.to_json(),
        "posterior": None if adapted.posterior is None else adapted.posterior.to_json(),
        "provenance": provenance,
        "files": files,
    }
    write_json(folder / CONFIG, sealed(config))
    return sum((folder / name).stat().st_size for name in [*files, CONFIG])


def embedded(adapted: Adapted) -> Network:
    """The network that an artifact keeps with ``embed``: the one that predicts; the one from before training where that
    carries the task's own last layer, for no library writes a network whose last layer is another's."""
    return adapted.network if adapted.own_head is None else adapted.source or adapted.network


def _origin(network: Network) -> dict[str, str]:
    """What an embedded backbone was trained from."""
    about = network.about
    return {
        "name": network.name, "source": about.source, "revision": about.revision, "fingerprint": network.fingerprint
    }  # fmt: skip


def _embedded(network: Network, folder: Path) -> list[Path]:
    """A copy of the network in ``folder`` in the place of what lay there: files of another library's network would say
    how to read this one. Written beside it first, for the network may have been loaded from there."""
    made = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        written = [path.relative_to(made) for path in save(network, made)]
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return [folder / path for path in written]


def load_artifact(
    folder: str | Path, *, model: str | Network | None = None, weights: str | None = None, device: str = "auto"
) -> Adapted:
    """Load and verify an artifact. No code of the artifact's is run, and none that only it names.

    Args:
        folder: a run folder.
        model: the backbone (a name, a folder or a loaded Network), where it is not embedded and no
            longer lies where the artifact recorded it.
        weights: safetensors file of a ``package.module:callable`` backbone.
        device: where the backbone shall run; ``auto`` is where :func:`regraft.adapt` would run it.

    Raises:
        MissingPathError: there is no artifact in ``folder``.
        ArtifactError: a file was changed, is torn, or belongs to another backbone.
    """
    folder = Path(folder)
    config = read_config(folder)
    tensors = read_tensors(folder / TENSORS)
    with complete(folder / CONFIG):
        solved = _solved(config, tensors)
        recorded = {name: config["backbone"][name] for name in RECORDED}
        own = dict(config["preprocess"])
        own_head = config["backbone"].get("own_head")
        own_head = None if own_head is None else tuple(int(size) for size in own_head)
    source = find_backbone(folder, recorded, model, weights, own).to(pick_device(str(device)))
    changed = {name.removeprefix(_CHANGED): v for name, v in tensors.items() if name.startswith(_CHANGED)}
    own_head = own_head if changed else None
    basis = with_last_layer(source, own_head)
    network = put_together(basis, changed, config["backbone"].get("trained", source.fingerprint))
    check_embedding(solved["plan"], network, source)
    return Adapted(network, source=source if changed else None, own_head=own_head, **solved)


def load_training(
    folder: str | Path, *, model: str | Network | None = None, weights: str | None = None, device: str = "auto"
) -> Adapted:
    """:func:`load_artifact` with the backbone from before training also where the trained one is embedded.

    Args:
        folder, weights, device: as there.
        model: the backbone from before training, where it no longer lies where the artifact recorded it.

    Returns:
        an adapted model without source where that is not found without ``model``, or was not recorded.

    Raises:
        MissingPathError, ArtifactError: as :func:`load_artifact`.
    """
    folder = Path(folder)
    config = read_config(folder)
    with complete(folder / CONFIG):
        origin, own = config["backbone"].get("origin"), dict(config["preprocess"])
        recorded = {**{name: origin[name] for name in RECORDED[:-1]}, "embedded": False} if origin else {}
    if not recorded:
        return load_artifact(folder, model=model, weights=weights, device=device)
    module = recorded["source"] == "module"
    try:
        source = find_backbone(folder, recorded, model, weights, own)
    except ArtifactError:
        if module or model is not None:
            raise
        return load_artifact(folder, device=device)
    trained = source.with_params(read_tensors(folder / BACKBONE / TENSORS)) if module else None
    adapted = load_artifact(folder, model=trained, device=device)
    return replace(adapted, source=source.to(pick_device(str(device))))


def _unscaled(view: dict[str, Any], version: int) -> tuple[str, ...]:
    """The blocks that no scaling touches. Before version 8 there was none; in it they were not scaled at first, but
    their rows were brought to unit norm with the others where that was done again."""
    names = tuple(view.get("unscaled", ()))
    if version > 8 or not (names and view["renormalised"]) or "unit" not in view["scaling"]:
        return names
    if view["scaling"] != "unit":
        raise ArtifactError(
            "the head of this artifact reads features that are scaled as no later version does",
            expected="version 9",
            got=str(version),
            do="run `regraft adapt` again",
        )
    return ()  # the norms over what is kept are the same whether or not the rows were scaled before


def _solved(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """What an artifact knows by itself: all of :class:`Adapted` but the backbone."""
    plan, view, shape, task = Plan.from_json(config["taps"]), config["view"], config["readout"], config["task"]
    coefficients = {block.name: tensors[f"coefficients.{i:05d}"] for i, block in enumerate(plan.blocks)}
    return {
        "plan": plan,
        "view": View(
            view["scaling"],
            _columns(plan, tensors) if view["selected"] else None,
            view["renormalised"],
            _unscaled(view, config["version"]),
        ),
        "readout": Readout(
            coefficients=Blocks(coefficients),
            intercept=tensors["intercept"],
            link=shape["link"],
            temperature=shape["temperature"],
            form=shape["form"],
            strength=shape["strength"],
        ),
        "kind": task["kind"],
        "classes": tuple(task["classes"]),
        "tangent": _tangent(config.get("tangent"), tensors),
        "neck": _neck(config.get("neck"), tensors),
        "posterior": _posterior(config.get("posterior"), tensors),
        "label_type": task.get("label_type", "str"),
        "ignore": int(task.get("ignore", -1)),
        "columns": tuple(task.get("columns", ())),
    }


def _posterior(recorded: dict[str, Any] | None, tensors: dict[str, torch.Tensor]) -> PosteriorPart | None:
    if recorded is None:
        return None
    own = {name.removeprefix(_POSTERIOR): v for name, v in tensors.items() if name.startswith(_POSTERIOR)}
    return PosteriorPart.holding(recorded, own)


def _neck(recorded: dict[str, Any] | None, tensors: dict[str, torch.Tensor]) -> Aspp | None:
    if recorded is None:
        return None
    own = {name.removeprefix(_NECK): value for name, value in tensors.items() if name.startswith(_NECK)}
    return Aspp.holding(recorded["channels"], recorded["width"], tuple(recorded["rates"]), own)


def _tangent(recorded: dict[str, Any] | None, tensors: dict[str, torch.Tensor]) -> TangentPart | None:
    if recorded is None:
        return None
    weights = Blocks({name: tensors[f"{_TANGENT}{name}"] for name in recorded["parameters"]})
    return TangentPart(tensors[_TANGENT_HEAD], weights)


def kept_columns(folder: str | Path) -> dict[str, torch.Tensor] | None:
    """The features that a saved head reads, block → ascending indices; ``None`` where it reads all.

    The backbone is not loaded. Blocks that keep nothing are absent.

    Raises:
        MissingPathError, ArtifactError: as :func:`load_artifact`.
    """
    folder = Path(folder)
    config = read_config(folder)
    with complete(folder / CONFIG):
        if not config["view"]["selected"]:
            return None
        return _columns(Plan.from_json(config["taps"]), read_tensors(folder / TENSORS))


def _columns(plan: Plan, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Kept features by block, ascending."""
    return {
        block.name: unpack(tensors[f"{_KEPT}{i:05d}"])
        if f"{_KEPT}{i:05d}" in tensors
        else tensors[f"{_PLAIN}{i:05d}"].long()
        for i, block in enumerate(plan.blocks)
    }
