"""Instruments that look on while a network is trained, and change nothing of it.

They run the network in eval mode on a few fixed rows, without augmentation and without drawing from any shared random
state, and read gradients that the loop computed anyway. What they noted is kept in the training's own checkpoint, so
that a run that was killed goes on with its notes.

What is measured is that of Ren, Guo, Bae, Sutherland, "How to prepare your task head for finetuning", ICLR 2023: the
energy that training begins with (Proposition 1), the drift of the features (§4.2), the norm of the head's gradient over
the first steps, which stands for the change of the direction ``∇_z q`` (Fig. 2), the backbone's kernel (Fig. 6) and the
tracks of z along the axes of z₀ (Fig. 11). z is the backbone's embedding: a hidden layer of the task's own head is part
of the head, so that linear and deeper heads are compared by the same features.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from regraft.diagnose import Axes, Kernel, axes, drift, energy, feature_kernel, shares, weight_changes
from regraft.errors import DataError, ModelError, RecipeError
from regraft.features import Taps, plan, pool_batch
from regraft.files import plain
from regraft.graft.loop.rows import AT_ONCE, Rows, place
from regraft.graft.options import Level
from regraft.graft.training.grafted import Grafted
from regraft.heads import KINDS, Response
from regraft.network import Network
from regraft.network.hidden import hidden_parameters, without_hidden
from regraft.wording import first_line

__all__ = ["Instruments"]

ENERGY_ROWS, PROBES, TRACKED, KERNEL_PROBES = 500, 100, 100, 50
FIRST_STEPS, DIRECTIONS = 10, 8
_OF_KERNELS = ("kernel", "kernel before")


class Instruments:
    """The notes of one training.

    :meth:`begin` before anything moves (and before a checkpoint is read), :meth:`gradients` and :meth:`epoch` from
    the loop, :meth:`finish` with the weights that count. The features are noted after epochs 1, 2, 4, 8, … and at the
    end, the kernel after every second of these and at the end.

    Args:
        level: ``cheap`` (energy, drift, direction, weights) or ``all`` (the kernel and the tracks too).
        seed: of the rows that are looked at.
    """

    def __init__(self, level: Level = "cheap", seed: int = 0) -> None:
        self.level, self.seed = level, seed
        self.rows_passed = 0
        self._module: Grafted | None = None
        self._rows: Rows | None = None
        self._places = torch.empty(0, dtype=torch.long)
        self._first = torch.empty(0, 0)
        self._weights: dict[str, Tensor] = {}
        self._energy: dict[str, Any] = {}
        self._axes: Axes | None = None
        self._kernels: tuple[Kernel, ...] = ()  # the last and the one before
        self._notes: dict[str, Any] = {"drift": [], "direction": [], "tracks": [], "kernel": [], "reason": ""}
        self._seconds: dict[str, float] = {}
        self._end: dict[str, Any] = {}

    # ------------------------------------------------------------------------------- what the loop calls

    def begin(self, module: Grafted, rows: Rows) -> None:
        """Note where training begins: the energy, the features z₀ of the fixed rows, the weights."""
        self._module, self._rows = module, rows
        generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.randperm(len(rows), generator=generator)
        self._places = drawn[:PROBES]
        with self._looking("energy"):
            self._energy = self._begin_energy(module, rows, drawn[:ENERGY_ROWS])
        with self._looking("drift"):
            self._first = self._features()
        with self._looking("weights"):
            self._weights = {name: value.clone() for name, value in self._backbone(module).items()}
        if self.level == "all":
            self._begin_dear()

    def _begin_energy(self, module: Grafted, rows: Rows, places: Tensor) -> dict[str, Any]:
        """The average initial energy of a sample of rows, and where ``p₀[y]`` lies."""
        nothing: dict[str, Any] = {"mean": None, "accuracy": None, "truth": None, "histogram": [], "rows": 0}
        kind = module.adapted.kind
        if kind not in KINDS or kind == "segmentation":
            return {**nothing, "reason": "An image with a mask has a label at every pixel, and no one energy."}
        response = Response.of(kind, module.adapted.classes, rows.labels[places].numpy())
        if not bool(response.present.any()):
            return {**nothing, "reason": "None of the rows that were looked at has a label."}
        found = energy(self._passed(places, module), response)
        return {
            "mean": found.mean,
            "accuracy": found.right,
            "truth": None if found.truth is None else float(found.truth.mean()),
            "histogram": [] if found.truth is None else shares(found.truth),
            "rows": len(found.rows),
        }

    def _begin_dear(self) -> None:
        with self._looking("tracks"):
            with contextlib.suppress(DataError):  # one row or one feature: no plane to draw tracks in
                self._axes = axes(self._first[:TRACKED])
            self._track(0, self._first)
        self._note_kernel(0)

    def gradients(self, step: int) -> None:
        """``‖∇_v L‖`` of the head's weights at one of the first steps, before they are clipped."""
        if step >= FIRST_STEPS or self._module is None:
            return
        with self._looking("direction"):
            held = [weight.grad for weight in self._head(self._module) if weight.grad is not None]
            norm = math.sqrt(sum(float(grad.double().square().sum()) for grad in held))
            self._notes["direction"].append(norm)

    def epoch(self, epoch: int) -> None:
        """Note the features after an epoch whose number is a power of two."""
        if epoch > 0 and epoch & (epoch - 1) == 0:
            self._note(epoch)

    def finish(self, epoch: int) -> None:
        """Note the end: the features and weights as the module has them now, after ``epoch`` epochs."""
        module, _ = self._there()
        last = self._note(epoch, again=True)
        with self._looking("weights"):
            layers = weight_changes(self._weights, self._backbone(module))
        whole, before = (math.sqrt(sum(getattr(layer, key) ** 2 for layer in layers)) for key in ("change", "before"))
        self._end = {
            "drift": last,
            "weights": {
                "relative": whole / before if before > 0 else None,
                "layers": [{"name": c.name, "relative": plain(c.relative), "size": c.size} for c in layers],
            },
        }

    def foreseen(self, epochs: int, rows: int) -> tuple[float, int]:
        """Seconds, and rows through the network, that a training of so many rows will take of them, at the pace of
        :meth:`begin` on these rows."""
        here = len(self._there()[1])
        noted = [2**power for power in range(epochs.bit_length())]
        looks = 2 + len(noted)  # at the start, after these epochs, at the end
        more = min(PROBES, rows) / min(PROBES, here)
        wider = min(ENERGY_ROWS, rows) / min(ENERGY_ROWS, here)
        kernels: float = 2 + sum(epoch.bit_length() % 2 for epoch in noted)
        kernels *= min(KERNEL_PROBES, rows) / min(KERNEL_PROBES, here)
        times = {"energy": wider, "drift": looks * more, "weights": 2, "tracks": looks, "kernel": kernels}
        seconds = sum(count * self._seconds.get(name, 0.0) for name, count in times.items())
        return seconds, min(ENERGY_ROWS, rows) + looks * min(PROBES, rows)

    # --------------------------------------------------------------------------------------- checkpoints

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON of what was noted until now."""
        tensors = {name: kernel.values for name, kernel in zip(_OF_KERNELS, self._kernels)}
        return tensors, {**self._notes, "seconds": self._seconds}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`, after :meth:`begin`; the seconds of both processes add up.

        What the process before did not follow, for it had another level, is followed from here on.
        """
        kernels = [tensors[name] for name in _OF_KERNELS if name in tensors]
        if self._kernels and kernels and kernels[0].shape == self._kernels[0].values.shape:
            self._kernels = tuple(dataclasses.replace(self._kernels[0], values=values) for values in kernels)
            self._notes["kernel"] = state["kernel"]
        for name in ("drift", "direction", "tracks"):
            self._notes[name] = state[name] or self._notes[name]
        for name, value in state["seconds"].items():
            self._seconds[name] = self._seconds.get(name, 0.0) + value

    # -------------------------------------------------------------------------------------------- result

    def figure(self) -> dict[str, Any]:
        """What was noted, as plain JSON; empty before :meth:`finish`.

        ``energy``: the average initial energy (``mean``), the mean and the histogram of ``p₀[y]`` and the accuracy at
        the start, or a ``reason`` why not; ``drift``: the means of :class:`regraft.diagnose.Drift` at the end,
        ``course`` those after the noted epochs; ``direction``: ``‖∇_v L‖`` at the first steps; ``weights``: changes by
        layer; with ``all`` also ``kernel`` (``norm`` and ``gap`` to the note before it) and ``tracks`` (points of up to
        100 rows along two axes). Each has its ``seconds``.
        """
        if not self._end:
            return {}
        found: dict[str, Any] = {
            "level": self.level,
            "energy": dict(self._energy),
            "drift": {**self._end["drift"], "rows": len(self._places), "course": self._notes["drift"]},
            "direction": {"norms": self._notes["direction"]},
            "weights": self._end["weights"],
        }
        if self.level == "all":
            found["kernel"] = {
                "notes": self._notes["kernel"],
                "rows": min(KERNEL_PROBES, len(self._places)),
                "directions": DIRECTIONS,
                "reason": self._notes["reason"],
            }
            explained = [] if self._axes is None else self._axes.explained.tolist()
            found["tracks"] = {"notes": self._notes["tracks"], "explained": explained, "classes": self._codes()}
        for name, part in found.items():
            if name != "level":
                part["seconds"] = self._seconds.get(name, 0.0)
        return found

    # ------------------------------------------------------------------------------------------- looking

    def _note(self, epoch: int, *, again: bool = False) -> dict[str, Any]:
        """The features now; with ``again`` also where this epoch was noted before, as the weights may be others."""
        with self._looking("drift"):
            features = self._features()
            found = dataclasses.asdict(drift(self._first, features))
            note = {"epoch": epoch, **plain(found)}
        same = note in self._notes["drift"][-1:]
        if again and not same:
            self._forget(epoch)
        if not same:
            self._notes["drift"].append(note)
        if self.level == "all":
            if not same:
                with self._looking("tracks"):
                    self._track(epoch, features)
            known = any(held["epoch"] == epoch for held in self._notes["kernel"])
            if (again or epoch.bit_length() % 2) and not known:  # after epochs 1, 4, 16, …: it is dear
                self._note_kernel(epoch)
        return note

    def _forget(self, epoch: int) -> None:
        """Drop what was noted after this epoch, of weights that are not kept."""
        for name in ("drift", "tracks", "kernel"):
            held = self._notes[name]
            if held and held[-1]["epoch"] == epoch:
                held.pop()
                if name == "kernel":
                    self._kernels = self._kernels[1:]

    def _features(self) -> Tensor:
        """What the head reads of the fixed rows, ``(n, h)``; below its hidden layer where it has one."""
        module = self._there()[0]
        if _deep(module):
            network = self._bare(module)
            (block,) = plan(network, [Taps(("embedding",), (None,))]).blocks
            return self._passed(self._places, lambda batch: pool_batch(network, [block], batch)[block.name])

        def read(batch: Any) -> Tensor:
            return torch.cat([values.flatten(1) for values in module.features(module.network.laid_out(batch))], 1)

        return self._passed(self._places, read)

    @torch.no_grad()
    def _passed(self, places: Tensor, function: Callable[[Any], Tensor]) -> Tensor:
        """A function of the module's on some rows, in eval mode, on the processor."""
        module, rows = self._there()
        was_training = module.training
        module.eval()
        try:
            device = str(module.network.device)
            parts = [function(place(rows.inputs(part), device)).cpu() for part in places.split(AT_ONCE)]
        finally:
            module.train(was_training)
        self.rows_passed += len(places)
        return torch.cat(parts)

    def _there(self) -> tuple[Grafted, Rows]:
        if self._module is None or self._rows is None:
            raise RecipeError("the instruments were not there when the training began", do="call begin first")
        return self._module, self._rows

    def _track(self, epoch: int, features: Tensor) -> None:
        if self._axes is not None:
            points = self._axes.project(features[:TRACKED])
            self._notes["tracks"].append({"epoch": epoch, "points": points.tolist()})

    def _note_kernel(self, epoch: int) -> None:
        """The kernel now, and its distance from the one noted before; a network that has none says why."""
        module, rows = self._there()
        if self._notes["reason"]:
            return
        blocks = module.adapted.plan.blocks
        if len(blocks) != 1 or blocks[0].kind != "embedding":
            self._notes["reason"] = "the head reads other taps than the embedding"
            return
        with self._looking("kernel"):
            try:
                network = self._bare(module)
                batch = network.place(rows.inputs(self._places[:KERNEL_PROBES]))
                found = feature_kernel(network, batch, directions=DIRECTIONS, seed=self.seed)
            except (ModelError, RuntimeError) as error:
                self._notes["reason"] = first_line(error)
                return
        gap = self._kernels[0].gap(found) if self._kernels else None
        self._notes["kernel"].append({"epoch": epoch, "norm": found.norm, "gap": gap})
        self._kernels = (found, *self._kernels[:1])

    @staticmethod
    def _bare(module: Grafted) -> Network:
        """The network as it is now, without a hidden layer of the head's."""
        network = module.result().network
        return without_hidden(network) if _deep(module) else network

    @staticmethod
    def _head(module: Grafted) -> list[torch.nn.Parameter]:
        """The head's weights, those of its hidden layer among them."""
        below = [module.backbone.get_parameter(hidden_parameters(module.network)[0])] if _deep(module) else []
        return [*below, *module.weights]

    @staticmethod
    def _backbone(module: Grafted) -> dict[str, Tensor]:
        """The backbone's parameters but for a last layer that it brought along, which nothing trains, and for the
        head's own hidden layer."""
        path = module.network.head
        path = path.rpartition(".")[0] if _deep(module) else path
        named = module.backbone.named_parameters()
        return {n: p.detach().cpu() for n, p in named if not (path and n.startswith(f"{path}."))}

    def _codes(self) -> list[int]:
        """The classes of the tracked rows; none but where rows have one class."""
        labels = torch.empty(0) if self._rows is None else self._rows.labels
        return [] if labels.ndim != 1 or labels.is_floating_point() else labels[self._places[:TRACKED]].tolist()

    @contextlib.contextmanager
    def _looking(self, name: str) -> Iterator[None]:
        """Time what happens inside, and put the random state back after it: even making a layer draws from it."""
        began = time.perf_counter()
        device = torch.device("cpu") if self._module is None else self._module.network.device
        try:
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - began


def _deep(module: Grafted) -> bool:
    """Whether the task's own head has a hidden layer, which is then a part of the module's network."""
    return len(module.adapted.own_head or ()) == 3  # outputs, width and hidden units
