"""Row tr-fig6-11: how much the loss changes on the way along its gradient, while two networks are fine-tuned
(Figs. 6, 11).

Fine-tuning is the paper's protocol (rate .01, batches of 32, every weight, BatchNorm by the batch), shortened from 200
to four epochs of flowers5; at its start and after 1, 2 and 4 epochs the loss is followed over 100 steps on one straight
line against its gradient. A step is the rate times the gradient (Fig. 6), or of length .01 (Fig. 11): the paper gives
neither a factor nor a length, and .01 is its rate and the default of :func:`regraft.diagnose.variation`. The loss is
that of 32 training rows drawn by the seed, one batch, normalised by its own statistics as training sees it. A network's
figure is the median over the four moments of the largest change. All of this was fixed before any was measured: 800
passes of 32 rows and 128 steps of training take one to two CPU-minutes a network and seed.
"""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from torch import nn

from regraft.diagnose import Objective, variation
from regraft.diagnose.gradients.variation import Protocol
from regraft.errors import DataError
from regraft.graft.adapted.model import with_own_head
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.stages.config import Optimiser, Schedule, TrainConfig, Tuning
from regraft.graft.training.finetune import finetune
from regraft.graft.training.grafted import Grafted
from regraft.graft.training.start import start
from regraft.reproduce.arms import Arm, Bench, Place, seeds_gate
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import Measured
from regraft.reproduce.result import Result, relabel
from regraft.reproduce.row import Context
from regraft.reproduce.transferability.beginnings import bench_of_twins, drawn, twin
from regraft.reproduce.transferability.tuned import PROTOCOL
from regraft.reproduce.words import share

__all__ = ["EPOCHS", "MEASURED", "NETWORKS", "VARIED", "run"]

NETWORKS, ON = ("R20", "V1a"), "flowers5"
EPOCHS = (0, 1, 2, 4)
ROWS, BATCH = 32, 32
STEPS, SIZE = 100, 0.01
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)


class _Looks:
    """The variation after some epochs, on rows that are read once.

    Args:
        rows, codes: of the loss.
        epochs: after which to look.
        steps: along the line.
    """

    def __init__(self, rows: Any, codes: Any, epochs: list[int], steps: int) -> None:
        self.rows, self.codes, self.epochs, self.steps = rows, codes, epochs, steps
        self.found: dict[str, list[float]] = {"loss": [], "norm": [], **{protocol: [] for protocol in PROTOCOLS}}

    def __call__(self, epoch: int, module: nn.Module) -> None:
        if not isinstance(module, Grafted):
            raise DataError("only a grafted network is looked at", got=type(module).__name__)
        if epoch not in self.epochs:
            return
        network = with_own_head(module.result())
        objective = Objective(network, self.rows, self.codes, batch_size=BATCH, batchnorm="batch")
        self.rows = [batch for _, _, batch in objective.batches()]
        for protocol in PROTOCOLS:
            made = variation(objective, protocol=protocol, size=SIZE, steps=self.steps)
            self.found[protocol].append(made.maximum)
        self.found["loss"].append(made.losses[0])
        self.found["norm"].append(made.gradient)


def _varied(bench: Bench, place: Place, epochs: list[int], steps: int) -> dict[str, Any]:
    rows, codes = drawn(bench, place, ROWS)
    looks = _Looks(rows, codes, epochs, steps)
    manifest = bench.rows(place.task, place.seed).part("train")
    begin = start(bench.network(place.network, place.seed), manifest, seed=place.seed)
    config = TrainConfig(
        epochs=max(epochs), batch_size=BATCH, schedule=Schedule("constant"), seed=place.seed,
        optimiser=Optimiser(lr=PROTOCOL, weight_decay=0.0, nesterov=False),
    )  # fmt: skip
    decoded = ManifestRows.of(begin.network, manifest, workers=0)
    made = finetune(begin, manifest, config, tuning=Tuning(norms="trained"), rows=decoded, on_epoch=looks)
    return {**looks.found, "training": [epoch.loss for epoch in made.outcome.history]}


VARIED = Arm("tr-variation", 1, _varied)
"""By epoch the largest change by each protocol, the loss of the rows and its gradient's norm; and the training loss."""


def run(context: Context) -> Result:
    """R20, V1a and their random twins."""
    context.mini_only()
    bench = bench_of_twins(context, NETWORKS, (ON,))
    names = [kind for name in NETWORKS for kind in (name, twin(name))]
    arms: dict[str, dict[str, Any]] = {}
    notes: dict[str, Any] = {"steps": STEPS, "size": SIZE, "rows": ROWS}
    for number, name in enumerate(names):
        found = bench.over_seeds(VARIED, name, ON, epochs=list(EPOCHS), steps=STEPS)
        arms |= {f"{name} {protocol}": {ON: [each[protocol] for each in found]} for protocol in PROTOCOLS}
        notes[name] = {word: [each[word] for each in found] for word in ("loss", "norm", "training")}
        if context.progress:
            context.progress(number + 1, len(names))
    return Result(arms, {"epoch": list(EPOCHS)}, bench.seeds, seeds_gate(bench.seeds), notes)


def _smaller(result: Result) -> Outcome:
    def medians(name: str, protocol: str) -> np.ndarray:
        found: np.ndarray = np.median(result.one(f"{name} {protocol}"), axis=1)
        return found

    return all_of(
        [
            share(
                medians(name, protocol) < medians(twin(name), protocol),
                0.8,
                what=f"variation of {name} smaller pretrained, steps of {protocol} size",
            )
            for name in NETWORKS
            for protocol in PROTOCOLS
        ]
    )


_TWINS = relabel(
    {
        f"{a} {protocol}": f"{b} {protocol}"
        for name in NETWORKS
        for protocol in PROTOCOLS
        for a, b in ((name, twin(name)), (twin(name), name))
    }
)

MEASURED: dict[str, Measured] = {"tr-fig6-11": Measured(run, {"": _smaller}, {"": _TWINS})}
