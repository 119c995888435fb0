"""The spine's speed and its accuracy beside scikit-learn's, in one process.

Speed, on flowers5 with mobilenet_v2 at 224 px (floor: decoding, preprocessing and passing the same rows as our pass
does, keeping nothing; same batch, threads and workers):

* a plain loop: the same, with batches passed as PyTorch has them;
* ``adapt --method probe`` and ``all-layers`` from an empty store, and from a warm one; ``of_plain_loop``: their
  seconds over that loop's;
* peer: the loop that keeps the features, then scikit-learn's LogisticRegressionCV.

Pass: four batches of 32 rows through ten networks (``ours_s``) beside plain forward passes of them.

Accuracy: ``probe`` beside LogisticRegressionCV on the same stored features, test split, in standard errors.
Start-up: ``regraft --help`` and ``import regraft`` beside ``import torch``.
"""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import regraft
from common import (
    ENCODER,
    Row,
    empty_store,
    interleaved,
    note,
    parsed,
    parser,
    report,
    sentence_encoder,
    synchronised,
)
from regraft.data import Manifest, scan
from regraft.features import gathered, in_order, plan, pool_batch, sweep
from regraft.graft import METHODS
from regraft.memory import kept_memory
from regraft.network import ImagePreprocess, Network, from_module, load
from regraft.reproduce.sources import pack_network

BATCH, BATCHES = 32, 4


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--device", default="cpu", help="where the backbone runs (default: %(default)s)")
    options.add_argument("--parts", default="speed,pass,accuracy,start", help="what to measure (default: %(default)s)")
    options.add_argument("--rows", type=int, help="time so many training rows, and a third as many test rows")
    arguments = parsed(options, "weights", "images")
    data, quick, parts = arguments.data, arguments.quick, arguments.parts.split(",")
    network = load(str(data / "weights" / "mobilenet_v2_1.0_224")).to(arguments.device)
    few = arguments.rows or (160 if quick else None)
    rows = _speed(network, data, few, repeats=1 if quick else 3) if "speed" in parts else []
    if "pass" in parts:
        networks = {
            name: pack_network(name, data) for name in (("V1a",) if quick else ("R20", "R56", "V1a", "V1b", "V2"))
        }
        networks |= {} if quick else _published()
        rows += [_pass(name, one.to(arguments.device), 3 if quick else 7) for name, one in networks.items()]
    if "accuracy" in parts:
        for name in ["flowers5"] if quick else ["flowers5", "vww", "usps"]:
            rows.append(_accuracy(network, data / "images" / name, 300 if quick else None))
    if "start" in parts:
        rows += _startup(2 if quick else 5)
    report("spine", rows, arguments.json, device=arguments.device)


def _speed(network: Network, data: Path, few: int | None, repeats: int) -> list[Row]:
    manifest = scan(str(data / "images" / "flowers5"))
    if few:
        manifest = _few(manifest, few, few // 3)
    caches = {name: Path(tempfile.mkdtemp()) for name in ("probe", "all-layers")}

    def ours(method: str, *, warm: bool) -> Any:
        if not warm:
            shutil.rmtree(caches[method], ignore_errors=True)
        run = regraft.adapt(
            manifest, network, method=method, cache=caches[method], batch_size=BATCH, device=str(network.device)
        )
        return {cost.stage: cost.seconds for cost in run.record.costs}

    alternatives = {
        "floor": lambda: _our_loop(network, manifest),
        "plain loop": lambda: _plain_loop(network, manifest, keep=False),
        "probe": lambda: ours("probe", warm=False),
        "probe warm": lambda: ours("probe", warm=True),
        "all-layers": lambda: ours("all-layers", warm=False),
        "all-layers warm": lambda: ours("all-layers", warm=True),
        "sklearn": lambda: _peer(network, manifest),
    }
    note(f"speed: {len(manifest)} rows, {torch.get_num_threads()} threads")
    calls = {name: synchronised(call, network.device) for name, call in alternatives.items()}
    # a warm run finds the store that the last cold one filled, in this turn or the one before
    seconds, results = interleaved(calls, repeats=repeats, warmups=int(network.device.type == "cuda"))
    for folder in caches.values():
        shutil.rmtree(folder, ignore_errors=True)
    peer = ("features in a loop + LogisticRegressionCV", seconds["sklearn"])
    rows = [Row.timed("plain loop", seconds["plain loop"], floor=seconds["floor"])]
    rows.append(Row.timed("features in a loop + LogisticRegressionCV", seconds["sklearn"], floor=seconds["floor"]))
    for name in ("probe", "all-layers", "probe warm", "all-layers warm"):
        ratio = seconds[name].median / seconds["plain loop"].median
        more = {"stages": results[name], "of_plain_loop": ratio}
        rows.append(Row.timed(f"adapt {name}", seconds[name], peer=peer, floor=seconds["floor"], more=more))
    return rows


def _few(manifest: Manifest, train: int, test: int) -> Manifest:
    random = np.random.default_rng(0)
    chosen = [random.permutation(manifest.rows_of(part))[:n] for part, n in (("train", train), ("test", test))]
    return manifest.take(np.sort(np.concatenate(chosen)))


@kept_memory()
def _our_loop(network: Network, manifest: Manifest) -> None:
    blocks = plan(network, [METHODS["probe"].features.taps]).blocks
    for batch in gathered(network.preprocess, manifest.inputs, in_order(len(manifest), BATCH), None):
        pool_batch(network, blocks, batch)


def _plain_loop(network: Network, manifest: Manifest, *, keep: bool) -> np.ndarray | None:
    """Decode, preprocess, forward: what any script does, with the same loader and batch."""
    kept = []
    hook = network.module.get_submodule(network.head).register_forward_pre_hook(
        lambda _module, inputs: kept.append(inputs[0].flatten(1).cpu()) if keep else None
    )
    with torch.no_grad():
        for batch in gathered(network.preprocess, manifest.inputs, in_order(len(manifest), BATCH), None):
            network.module(network.place(batch))
    hook.remove()
    return torch.cat(kept).numpy() if keep else None


def _published() -> dict[str, Network]:
    """Architectures that people take, at 224 px, with random weights: a pass takes as long."""
    import transformers as hub

    small = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
    b0 = {"image_size": 224, "width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280}
    modules = {
        "ResNet-50": hub.ResNetForImageClassification(hub.ResNetConfig()),
        "EfficientNet-B0": hub.EfficientNetForImageClassification(hub.EfficientNetConfig(**b0)),
        "ConvNeXt-T": hub.ConvNextForImageClassification(hub.ConvNextConfig()),
        "ViT-S/16": hub.ViTForImageClassification(hub.ViTConfig(**small)),
    }
    found = {name: from_module(module, ImagePreprocess((224, 224), None)) for name, module in modules.items()}
    encoder = sentence_encoder()
    return found if encoder is None else {**found, ENCODER: encoder}


def _pass(name: str, network: Network, repeats: int) -> Row:
    """A few batches, as a sweep passes them, taps of the embedding."""
    blocks, batch = plan(network, [METHODS["probe"].features.taps]).blocks, network.example(BATCH)

    def plain() -> None:
        for _ in range(BATCHES):
            with torch.no_grad():
                network.forward(batch)

    @kept_memory()
    def ours() -> None:
        for _ in range(BATCHES):
            pool_batch(network, blocks, batch)

    ways = {"ours": synchronised(ours, network.device), "plain": synchronised(plain, network.device)}
    seconds, _ = interleaved(ways, repeats=repeats)
    return Row.timed(f"pass of {BATCHES * BATCH} rows, {name}", seconds["ours"], peer=("plain pass", seconds["plain"]))


def _peer(network: Network, manifest: Manifest) -> None:
    features = _plain_loop(network, manifest, keep=True)
    fit = np.flatnonzero([part != "test" for part in manifest.split])
    _sklearn().fit(features[fit], manifest.target.values[fit])


def _sklearn() -> Any:
    known = inspect.signature(LogisticRegressionCV).parameters
    modern = {"l1_ratios": (0,), "use_legacy_attributes": False} if "use_legacy_attributes" in known else {}
    return make_pipeline(
        StandardScaler(), LogisticRegressionCV(Cs=10, cv=5, max_iter=2000, scoring="accuracy", **modern)
    )


@empty_store()
def _accuracy(network: Network, folder: Path, limit: int | None) -> Row:
    """Test accuracy of `probe` and of scikit-learn on the very same features."""
    manifest = scan(str(folder))
    if limit:
        manifest = _few(manifest, limit, limit)
    run = regraft.adapt(manifest, network, method="probe", batch_size=BATCH, device=str(network.device))
    fit = manifest.take(np.flatnonzero([part != "test" for part in manifest.split]))
    test = manifest.take(manifest.rows_of("test"))
    wanted = plan(network, [METHODS["probe"].features.taps])
    x, x_test = (
        next(iter(sweep(network, part, wanted).matrices().values())).rows(slice(None)).numpy() for part in (fit, test)
    )
    peer = _sklearn().fit(x, fit.target.values)
    right = peer.predict(x_test) == test.target.values
    accuracy, ours = right.mean(), run.score.value
    error = np.sqrt(accuracy * (1 - accuracy) / len(right))
    more = {
        "probe_accuracy": ours,
        "interval": [run.score.low, run.score.high],
        "sklearn_accuracy": accuracy,
        "standard_error": error,
        "test_rows": len(right),
    }
    note(f"accuracy {folder.name}: probe {ours:.4f}, scikit-learn {accuracy:.4f}, one standard error {error:.4f}")
    return Row(f"accuracy {folder.name}: (probe - sklearn) / s.e.", error=(ours - accuracy) / error, more=more)


def _startup(repeats: int) -> list[Row]:
    commands = {
        "regraft --help": [sys.executable, "-m", "regraft", "--help"],
        "import regraft": [sys.executable, "-c", "import regraft"],
        "import torch": [sys.executable, "-c", "import torch"],
        "python": [sys.executable, "-c", "pass"],
    }
    seconds, _ = interleaved(
        {
            name: lambda line=line: subprocess.run(line, capture_output=True, check=True)
            for name, line in commands.items()
        },
        repeats=repeats,
    )
    peer = ("import torch", seconds["import torch"])
    return [Row.timed(name, seconds[name], peer=peer, floor=seconds["python"]) for name in list(commands)[:2]]


if __name__ == "__main__":
    main()
