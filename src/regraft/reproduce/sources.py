"""The named networks of the page: loaded from the data pack, or trained once per seed and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import safetensors.torch

from regraft.data import scan
from regraft.errors import ModelError
from regraft.features import Taps, plan, sweep
from regraft.files import canonical_json, digest
from regraft.graft.pretraining.choose import pretext_of
from regraft.graft.pretraining.pretrain import default_config, pretrain
from regraft.graft.stages.augment import Augment
from regraft.graft.stages.config import Optimiser, Schedule, TrainConfig
from regraft.network import About, ImagePreprocess, Network, load
from regraft.network.resnet import cifar_resnet
from regraft.record import Record, Score
from regraft.reproduce.alone import alone
from regraft.reproduce.packs import WEIGHTS
from regraft.wording import first_line

__all__ = [
    "EPOCHS",
    "PERCEPTRON",
    "PRETEXTS",
    "VISION_TRANSFORMER",
    "pack_network",
    "perceptron",
    "pretext_source",
    "source_folder",
    "supervised_source",
    "top1",
    "vision_transformer",
]

EPOCHS = 15  # of every supervised S4, fixed before any result
VISION_TRANSFORMER = TrainConfig(
    epochs=60,
    batch_size=64,
    optimiser=Optimiser(kind="adamw", lr=1e-3, weight_decay=0.05),
    schedule=Schedule(warmup=200),
    label_smoothing=0.1,
)
"""How TViT is trained: found on a tenth of its training rows before any row was measured with it. A quarter of the
patches of every picture take part in a step, which makes four times as many epochs affordable; five minutes a seed."""
KEPT_PATCHES = 0.25
PERCEPTRON = TrainConfig(epochs=30, optimiser=Optimiser(kind="adamw", lr=1e-3, weight_decay=0.0))
"""How MLP4 is trained: the paper's rate, cosine and batch, until it converges; ten seconds a seed. By SGD the page's
6,000 rows would need many more epochs than the paper's 60,000 (after 100 it has 95.7 % of its own rows)."""
PRETEXTS: Mapping[str, tuple[str, int]] = {
    "S4-rot": ("rotation", 15),
    "S4-jig": ("jigsaw", 30),
    "S4-vae": ("vae", 30),
    "S4-bigan": ("bigan", 60),
}
"""What every S4 without labels is trained on, and for how many epochs; fixed before any row was measured."""
_CIFAR_DEPTH = {"R20": 20, "R56": 56}


def pack_network(name: str, data: Path, *, pixels: int | None = None, random: int | None = None) -> Network:
    """The network that the page calls ``name`` (V1a, V1b, V2, BIRD, R20, R56), from the data pack.

    Args:
        name: a key of :data:`regraft.reproduce.packs.WEIGHTS`.
        data: the data pack's folder.
        pixels: resize every image to ``pixels`` × ``pixels``, whole, instead of the model's own resizing
            and crop.
        random: a seed: random weights instead of the trained ones.

    Raises:
        ModelError: the page's name is unknown here, or the files do not fit the network.
        MissingPathError: the pack does not hold it.
    """
    if name not in WEIGHTS or name == "GCN":
        raise ModelError(f"no image network is called {name!r}", expected=", ".join(n for n in WEIGHTS if n != "GCN"))
    folder = data / WEIGHTS[name]
    if name in _CIFAR_DEPTH:
        if random is not None:
            raise ModelError(f"{name} has no random form here", expected="a MobileNet")
        network = _cifar(name, folder)
    else:
        network = load(str(folder), random=random)
    if pixels is None or not isinstance(network.preprocess, ImagePreprocess):
        return network
    view = replace(network.preprocess, resize=(pixels, pixels), crop=None)
    return Network(network.name, network.module, view, network.about, traits=network.traits)


def _cifar(name: str, folder: Path) -> Network:
    """A CIFAR ResNet of the pack: the architecture is regraft's own, the weights must fit it to the letter."""
    module = cifar_resnet(_CIFAR_DEPTH[name])
    try:
        module.load_state_dict(safetensors.torch.load_file(folder / "model.safetensors"), strict=True)
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{folder} does not hold {name}", got=first_line(error)) from error
    view = ImagePreprocess(resize=(32, 32), crop=None)
    return Network(name, module, view, About("module", licence="BSD-2-Clause style"))


def top1(name: str, data: Path, rows: str, cache: Path) -> float:
    """Share of the rows of ``rows`` (a parquet file below ``data``) whose largest logit is their label.

    Everything goes the way of a user's rows: scan, the model's own preprocessing, one sweep for the logits.
    The MobileNets' first logit is a background class, before ImageNet's 1000.
    """
    # As numbers, for a file with one image per class is refused as a classification task.
    manifest = scan(data / rows, kind="regression")
    labels = manifest.labels.values[:, 0]
    network = pack_network(name, data)
    wanted = plan(network, [Taps(patterns=("logits",), sizes=(None,))])
    store = sweep(network, manifest, wanted, cache=cache)
    (logits,) = store.matrices().values()
    values = logits.rows(slice(0, store.rows))
    offset = 0 if name in _CIFAR_DEPTH else 1
    return float((values.argmax(1).numpy() - offset == labels).mean())


def supervised_source(
    rows: Path, seed: int, cache: Path, progress: Callable[[int, int, float], None] | None = None
) -> tuple[Network, Score]:
    """An S4 trained on the labelled images of ``rows`` at 32 px, once per seed: the network and its test score.

    It is trained by :func:`regraft.graft.pretraining.pretrain.pretrain` with its default recipe, kept in the cache, and
    resumed there after an interruption.
    """
    config = TrainConfig(epochs=EPOCHS, schedule=Schedule(warmup=20), seed=seed)
    folder = source_folder(cache, f"S4-sup-{rows.name}-{seed}", config)
    record = _pretrained(rows, folder, arch="s4", size=32, config=config, progress=progress)
    return load(str(folder)), _score(record, folder)


def pretext_source(
    name: str, rows: Path, seed: int, cache: Path, progress: Callable[[int, int, float], None] | None = None
) -> Network:
    """An S4 trained on the images of ``rows`` at 32 px without their labels, once per seed.

    Its recipe is the pretext's own (:func:`regraft.graft.pretraining.pretrain.default_config`), its length that of
    :data:`PRETEXTS`. It is kept in the cache, and resumed there after an interruption.

    Args:
        name: a key of :data:`PRETEXTS`.
        rows: a folder of the data pack.
        seed: of weights, order and views.
        cache: where it is kept.
        progress: called after each step with (steps done, steps in all, loss).

    Raises:
        ModelError: no such source.
    """
    if name not in PRETEXTS:
        raise ModelError(f"no source without labels is called {name!r}", expected=", ".join(PRETEXTS))
    objective, epochs = PRETEXTS[name]
    pretext = pretext_of(objective, 32)
    config = default_config(pretext, epochs=epochs, seed=seed)
    about = {"pretext": pretext.identity(), "augment": asdict(pretext.augment(32))}
    folder = source_folder(cache, f"{name}-{rows.name}-{seed}", config, about)
    _pretrained(rows, folder, objective=pretext, arch="s4", size=32, config=config, progress=progress)
    return load(str(folder))


def source_folder(cache: Path, name: str, config: TrainConfig, options: Mapping[str, Any] | None = None) -> Path:
    """Where a source is kept: another recipe, such as a later version's, has another folder."""
    return cache / "sources" / f"{name}-{digest(canonical_json([asdict(config), dict(options or {})]))[:8]}"


def _pretrained(rows: Path, folder: Path, **recipe: Any) -> Record:
    """The record of the training that the folder keeps. Where another run is training there its end is awaited: two
    that write one checkpoint would each do all of the work."""
    with alone(folder):
        return pretrain(rows, output=folder, **recipe)


def _score(record: Record, folder: Path) -> Score:
    if record.headline is None:
        raise ModelError(f"the source in {folder} has no score", do="delete that folder to train it again")
    return record.headline


def vision_transformer(
    rows: Path,
    seed: int,
    cache: Path,
    config: TrainConfig = VISION_TRANSFORMER,
    progress: Callable[[int, int, float], None] | None = None,
) -> tuple[Network, Score]:
    """TViT, trained on the labelled images of ``rows`` at 32 px, once per seed: the network and its test score.

    Six blocks of width 96 over patches of 4 px (:func:`regraft.network.vit.tiny_vit`). It is kept in the cache, and
    resumed there after an interruption.
    """
    config, options = replace(config, seed=seed), {"size": 32, "keep": KEPT_PATCHES}
    folder = source_folder(cache, f"TViT-{rows.name}-{seed}", config, options)
    record = _pretrained(
        rows, folder, arch="tiny_vit", options=options, size=32, config=config,
        augment=Augment(shift=4, flip=True), progress=progress,
    )  # fmt: skip
    return load(str(folder)), _score(record, folder)


def perceptron(rows: Path, seed: int, cache: Path, config: TrainConfig = PERCEPTRON) -> tuple[Network, Score]:
    """MLP4, trained on the labelled images of ``rows`` at 28 px, once per seed: the network and its test score.

    Four layers of 128 ReLUs (:func:`regraft.network.mlp.mlp`), without augmentation. It is kept in the cache, and
    resumed there after an interruption.
    """
    config, options = replace(config, seed=seed), {"size": 28}
    folder = source_folder(cache, f"MLP4-{rows.name}-{seed}", config, options)
    record = _pretrained(rows, folder, arch="mlp", options=options, size=28, config=config, augment=Augment())
    return load(str(folder)), _score(record, folder)
