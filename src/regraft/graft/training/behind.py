"""Training behind layers that stay: what they make of each row is computed once, not again in every step.

Where the lower layers of a backbone are frozen, with the statistics of their normalisation, and rows are not augmented,
what reaches the first layer that moves is a function of the row. One pass keeps it, and every step runs the rest.
"""

from __future__ import annotations

import contextlib
import sys
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regraft.errors import ModelError, RegraftError
from regraft.features.tangent.replay import Kept, Replay
from regraft.files import canonical_json, digest
from regraft.graft.loop.checkpoint import tensor_digest
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.rows import AT_ONCE, Rows
from regraft.graft.stages.augment import Augment
from regraft.graft.team import Team
from regraft.graft.training.grafted import Grafted

__all__ = ["KeptRows", "behind"]

MEMORY = 2**31  # bytes of kept values at most
_NEAR = 2**26  # bytes of kept values that are passed together


class KeptRows:
    """Rows of which everything before the parameters that move is known; it is computed when it is first asked for.

    All rows that were decoded together are passed at once, and other trainings of some of them find it there. Where
    some of these take another path through the modules than the first ones, every step runs the whole module.

    Args:
        rows: as they are read.
        replay: of the module that is trained: runs the rest.
        module: that module.
        at_once: how many rows are best passed together.

    Attributes:
        recorded: rows that were passed through the whole network for this training.
    """

    def __init__(self, rows: ManifestRows, replay: Replay, module: Grafted, at_once: int) -> None:
        self.rows, self.replay, self.module, self.at_once = rows, replay, module, at_once
        self.recorded = 0

    @property
    def labels(self) -> Tensor:
        """Those of the rows."""
        return self.rows.labels

    @property
    def key(self) -> str:
        """Of the rows, and that their first layers run apart from the others: sums are rounded otherwise."""
        return digest("behind", self.rows.key)

    def __len__(self) -> int:
        return len(self.rows)

    def inputs(self, index: Tensor, epoch: int | None = None, seed: int = 0) -> Any:
        """What the rest of the module needs of the rows ``index``; the rows where nothing could be kept."""
        network, places = self.module.network, self.rows.index[index]
        if self._values is None:
            return self.rows.inputs(index, epoch, seed)
        values = [network.laid_out(value[places.to(value.device)]) for value in self._values]
        return Kept(self.replay, values, len(index))

    def targets(self, index: Tensor, epoch: int | None = None, seed: int = 0) -> Tensor:
        """Labels of the rows ``index``."""
        return self.rows.targets(index, epoch, seed)

    @cached_property
    def _values(self) -> list[Tensor] | None:
        """``(M, …)`` of every kept slot, of all rows that were decoded; ``None`` where these take several paths."""
        module, kept = self.module, self.rows.kept
        stays = {name: value for name, value in module.backbone.state_dict().items() if name not in self.replay.names}
        key = digest(module.identity, tensor_digest(stays), canonical_json(list(self.replay.names)))
        if key not in kept:
            kept.clear()  # of another network
            with contextlib.suppress(ModelError):
                kept[key] = self._recorded()
        if kept.setdefault(key, None) is None and self.at_once < sys.maxsize:
            self.at_once = self.module.at_once
        return kept[key]

    def _recorded(self) -> list[Tensor]:
        network, found = self.module.network, list[Tensor]()
        every = self.rows.whole()
        with self.module.settled():
            for part in torch.arange(len(every)).split(min(AT_ONCE, network.rows_at_once())):
                self.recorded += len(part)
                _, recorded = self.replay.record(network.laid_out(network.place(every.inputs(part))))
                values = self.replay.pack(recorded, len(part))
                found = found or [value.new_empty((len(every), *value.shape[1:])) for value in values]
                for kept, value in zip(found, values, strict=True):
                    kept[int(part[0]) : int(part[-1]) + 1] = value
        return found


def behind(module: Grafted, rows: Rows, count: int | None = None) -> Rows:
    """The rows with what lies before the first layer that moves known, where that can be and saves anything.

    It can be of images and arrays that are not augmented, in one process, where some lower layers stay as they are and
    what they return, of ``count`` rows (all that were decoded if ``None``), takes at most :data:`MEMORY` bytes.
    """
    if not isinstance(rows, ManifestRows) or rows.preprocess.ragged or rows.augment != Augment():
        return rows
    moving = [name for name, value in module.backbone.named_parameters() if value.requires_grad]
    if len(moving) == len(module.network.params) or Team.current().size > 1:
        return rows
    with module.settled() as busy:
        dtype = next(module.backbone.parameters()).dtype
        replay = Replay(module.network, moving, dtype, run=module.logits, busy=busy)
        few = rows.inputs(torch.tensor([0, len(rows) // 2, len(rows) - 1]))
        try:
            failed = replay.probe(module.network.laid_out(module.network.place(few)))
        except RegraftError as error:  # the head reads what lies inside of what would be answered from the record
            failed = str(error)
    slots = [replay.slots[number] for number in replay.kept]
    bytes_of_row = sum(torch.Size(slot.shape).numel() // 3 * slot.dtype.itemsize for slot in slots)
    if failed or not replay.calls or bytes_of_row * (count or len(rows.held)) > MEMORY:
        return rows
    together = module.train().at_once == sys.maxsize
    module.eval()
    return KeptRows(rows, replay, module, sys.maxsize if together else max(1, _NEAR // max(1, bytes_of_row)))
