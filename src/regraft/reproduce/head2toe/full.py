"""Head2Toe's own setting, for those who have its data and a GPU: VTAB-1k, a ResNet-50 and a ViT-B/16.

``--scale full`` looks for VTAB-1k in the folder ``vtab-1k`` of ``--data``, or where ``REGRAFT_VTAB`` says: a folder of
the usual layout, or a Hugging Face id with ``{name}`` in it. The backbones are those
of :data:`MODELS`; ``REGRAFT_R50`` and ``REGRAFT_VITB16`` name others. They run on the GPU where there is one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from regraft.data import Manifest
from regraft.errors import MissingPathError
from regraft.network import Network, load
from regraft.reproduce.arms import Backbone, Bench
from regraft.reproduce.row import Context
from regraft.reproduce.tasks import KINDS, T12, task
from regraft.reproduce.vtab import VTAB, vtab

__all__ = ["MODELS", "PATTERNS", "RESNET", "bench_of", "names_of", "vtab_source"]

MODELS: Mapping[str, tuple[str, str]] = {
    "R50": ("REGRAFT_R50", "timm/resnet50.tv_in1k"),
    "ViT-B/16": ("REGRAFT_VITB16", "timm/vit_base_patch16_224.augreg_in1k"),
}
PATTERNS: tuple[str, ...] = (
    "module:norm_pre",
    "module:blocks.*.norm1",
    "module:blocks.*.attn",
    "blocks.*.mlp.act",
    "module:blocks.*.mlp",
    "embedding",
)
"""Head2Toe's taps of a vision transformer as timm names its modules."""
RESNET: tuple[str, ...] = ("module:maxpool", "layer*", "embedding", "logits")
"""Its taps of a ResNet-50 as timm and torchvision name its modules: the root after its pool, not before."""
_TOKENS = ("TViT", "ViT-B/16")
Rows = Callable[[str, Path, int], Manifest]


def vtab_source(data: Path) -> str:
    """Where VTAB-1k is.

    Raises:
        MissingPathError: nowhere.
    """
    named = os.environ.get("REGRAFT_VTAB", "")
    if "{name}" in named:
        return named
    folder = Path(named) if named else data / "vtab-1k"
    if not folder.is_dir():
        raise MissingPathError(
            f"VTAB folder absent: {folder}",
            expected="VTAB-1k in its usual layout",
            do="unpack it there, or set REGRAFT_VTAB to its folder or to a Hugging Face id with {name} in it",
        )
    return str(folder)


def _model(name: str) -> Callable[[Path, Path, int], Network]:
    def found(data: Path, cache: Path, seed: int) -> Network:
        variable, usual = MODELS[name]
        return load(os.environ.get(variable) or usual)

    return found


def _backbones() -> dict[str, Backbone]:
    """With the target sizes that the paper's Table 2 really uses."""
    return {
        "R50": Backbone(_model("R50"), 2048, (512, 8192, 24576), patterns=RESNET),
        "ViT-B/16": Backbone(_model("ViT-B/16"), 768, (768, 15360, 32448), patterns=PATTERNS),
    }


def _rows(name: str, data: Path, seed: int) -> Manifest:
    """The benchmark fixes its 1,000 rows: the seed draws folds, heads and batches alone."""
    return _published(name, vtab_source(data))


@lru_cache(maxsize=2)
def _published(name: str, source: str) -> Manifest:
    """Read once for all seeds, for every file of it is hashed."""
    return vtab(name, source)


def bench_of(context: Context, tasks: Sequence[str] = T12, rows: Rows = task) -> Bench:
    """The bench of a row: the page's tasks and networks at scale mini, the paper's at scale full.

    Raises:
        MissingPathError: VTAB-1k is not there.
    """
    if context.scale != "full":
        return Bench(context, tasks=tasks, rows=rows, kinds=KINDS)
    vtab_source(context.data)
    kinds = {name: shape.group for name, shape in VTAB.items()}
    return Bench(context, tasks=tuple(VTAB), backbones=_backbones(), rows=_rows, kinds=kinds)


def names_of(context: Context, networks: Sequence[str]) -> tuple[str, ...]:
    """The networks of a row: as the page names them, at scale full the paper's in their places, each once."""
    if context.scale != "full":
        return tuple(networks)
    return tuple(dict.fromkeys("ViT-B/16" if name in _TOKENS else "R50" for name in networks))
