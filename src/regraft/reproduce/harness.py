"""Running rows: gates first, then each row, its numbers written before they are judged."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from regraft.errors import RecipeError, RegraftError
from regraft.features import cache_root
from regraft.files import write_json
from regraft.graft.options import pick_device
from regraft.record.folder import check_folder
from regraft.reproduce.environment import environment
from regraft.reproduce.gates import GATES, Gate, GateContext
from regraft.reproduce.packs import absence, missing
from regraft.reproduce.registry import ROWS, choose
from regraft.reproduce.report import Report, RowReport
from regraft.reproduce.result import GateReport, Result
from regraft.reproduce.row import UNMEASURED, Context, Judgement, Row, Scale

__all__ = ["Progress", "load_result", "reproduce", "result_path"]

Progress = Callable[[str, int, int], None]
SCHEMA = 1


def reproduce(
    rows: Sequence[str] = (),
    *,
    scale: Scale = "mini",
    data: Path,
    output: Path,
    gates: bool = True,
    device: str | None = None,
    arms: Path | None = None,
    progress: Progress | None = None,
    page: Sequence[Row] = ROWS,
    known_gates: Mapping[str, Gate] = GATES,
) -> Report:
    """Measure rows and judge them by the page that was written before any result.

    Gates come first. Those that check loaded weights run whenever a row that was asked for names the
    network; those that must train a source run only for rows that can be measured, or when they are
    named. A row whose gate fails *fails*; one whose gate or data is absent or cannot be read is *not run*.
    The numbers of a measured row are written to ``output/PAPER/ROW.SCALE.json``; rows that were not asked
    for are judged anew from theirs, so that the first line counts the whole page.

    Args:
        rows: row ids, papers (``003``), gates (``V1a``) or ``gates``; nothing stands for every row.
        scale: ``mini``, or ``full`` for the papers' own settings, where no clause is fragile.
        data: the data pack's folder.
        output: the folder that keeps the results, ``papers`` in the project.
        gates: whether to try the gates; where not, what a row's file says of them stays, a closed one with its row's
            failure.
        device: where the networks of arms run, ``auto``, ``cpu``, ``cuda`` or ``mps``; sources and gates stay on the
            processor. Where none is named it is ``cpu`` at scale mini and ``auto`` at scale full.
        arms: the folder that measured arms are read from and written to; in the cache if ``None``.
        progress: called with (what, done, total): before each of the ``gates`` and ``rows``, and by a row itself, under
            its id, for its parts, and under its id and a name for what takes long inside them.
        page, known_gates: other rows and gates than the page's own, for tests.

    Raises:
        RecipeError: an unknown row (with near names) or scale.
            An unknown device, or one that is not there.
        DataError: ``output`` cannot be written.
    """
    if scale not in get_args(Scale):
        raise RecipeError(f"no scale is called {scale!r}", expected="mini or full")
    page = [row.at(scale) for row in page]
    chosen, named = choose(rows, tuple(known_gates), page)
    where = pick_device(device or ("auto" if scale == "full" else "cpu"))
    for paper in dict.fromkeys(row.paper for row in chosen if _can_run(row, scale, data)):
        check_folder(output / paper)
    asked = [(name,) for name in named] + [_gates_of(row, scale, data, known_gates) for row in chosen if gates]
    tried = _try_gates(asked, known_gates, GateContext(data, cache_root(), progress=progress))
    context = Context(data, cache_root(), scale, device=where, arms=arms)
    reports = []
    for number, row in enumerate(chosen):
        if progress:
            progress("rows", number, len(chosen))
        own, within = (partial(progress, row.id), partial(_told_within, progress, row.id)) if progress else (None, None)
        apart = replace(context, progress=own, within=within, measured_on=set(), arm_seconds={})
        reports.append(_one(row, apart, output, tried, known_gates))
    if progress and chosen:
        progress("rows", len(chosen), len(chosen))
    fresh = {report.row.id: report.judgement.status for report in reports}
    statuses = tuple((row.id, fresh.get(row.id) or _stored(row, scale, output)) for row in page)
    return Report(scale, tuple(reports), tuple(tried.values()), statuses)


def _told_within(progress: Progress, row: str, what: str, done: int, total: int) -> None:
    progress(f"{row}, {what}", done, total)


def _can_run(row: Row, scale: Scale, data: Path) -> bool:
    return row.run is not None and not missing(row.needs_at(scale), data)


def _gates_of(row: Row, scale: Scale, data: Path, known: Mapping[str, Gate]) -> tuple[str, ...]:
    """What stands before a row, sources that must be trained last, and only where the row can be measured."""
    ready = _can_run(row, scale, data)
    wanted = [name for name in row.needs_at(scale) if name in known and (ready or not known[name].trains)]
    return tuple(sorted(wanted, key=lambda name: known[name].trains))


def _try_gates(
    asked: Sequence[Sequence[str]], known: Mapping[str, Gate], context: GateContext
) -> dict[str, GateReport]:
    """Each gate once; of those that stand before one row none trains a source where another has failed."""
    tried: dict[str, GateReport] = {}
    total = len({name for names in asked for name in names})
    for names in asked:
        for name in names:
            failed = any(tried[other].status == "fail" for other in names if other in tried)
            if name in tried or (failed and known[name].trains):
                continue
            if context.progress:
                context.progress("gates", len(tried), total)
            tried[name] = _tried(known[name], context)
    if context.progress and total:
        context.progress("gates", total, total)
    return tried


def _tried(gate: Gate, context: GateContext) -> GateReport:
    try:
        return gate.run(context)
    except RegraftError as error:  # the rows that do not stand behind it can be run
        return GateReport(gate.name, "not run", gate.needed, {}, str(error))


def _one(
    row: Row, context: Context, output: Path, tried: Mapping[str, GateReport], known: Mapping[str, Gate]
) -> RowReport:
    if row.run is None:
        return RowReport(row, Judgement("not run", reason=UNMEASURED))
    needs = row.needs_at(context.scale)
    if absent := missing(needs, context.data):
        return RowReport(row, Judgement("not run", reason=absence(absent, context.data)))
    closed = [tried[name] for name in needs if name in tried and tried[name].status != "pass"]
    if closed:
        return _closed(row, [tried[name] for name in needs if name in tried], context, output)
    began = time.perf_counter()
    try:
        result = row.run(context)
    except RegraftError as error:
        return RowReport(row, Judgement("not run", reason=str(error)))
    seconds = time.perf_counter() - began
    path = result_path(output, row, context.scale)
    stands = [name for name in needs if name in known]
    gates = {gate.name: gate for gate in _gates_kept(path) if gate.name in stands}
    gates |= {name: tried[name] for name in stands if name in tried}
    result = replace(result, gates=(*gates.values(), *result.gates))
    # before they are judged, for some took hours
    write_json(path, _file(row, result, Judgement("not run", reason="not judged"), context, seconds))
    judgement = _judged(row, result, context.scale)
    write_json(path, _file(row, result, judgement, context, seconds))
    return RowReport(row, judgement, seconds, path)


def _judged(row: Row, result: Result, scale: Scale) -> Judgement:
    """The row's judgement; where a check cannot read its numbers, as those of an unknown form, it is not run."""
    try:
        return row.judge(result, scale)
    except (RegraftError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        return Judgement("not run", reason=f"its numbers cannot be judged: {error!r}")


def _closed(row: Row, gates: Sequence[GateReport], context: Context, output: Path) -> RowReport:
    """A row whose gates are not all open. One that fails by them is kept as failed; numbers measured before stay."""
    result = Result({}, seeds=context.seeds, gates=[gate for gate in gates if gate.status != "pass"])
    judgement, path = row.judge(result, context.scale), result_path(output, row, context.scale)
    if judgement.status != "fail":
        return RowReport(row, judgement)
    if (earlier := _measured_before(path)) is None:
        write_json(path, _file(row, result, judgement, context, 0.0))
    else:
        said = {gate.name: gate for gate in gates if gate.status != "not run"}
        now = [*said.values(), *(gate for gate in earlier.gates if gate.name not in said)]
        value = json.loads(path.read_text(encoding="utf-8"))
        value["result"]["gates"] = [gate.to_json() for gate in now]
        again = _judged(row, replace(earlier, gates=now), context.scale)
        write_json(path, {**value, **_verdict(again)})
    return RowReport(row, judgement, path=path)


def _gates_kept(path: Path) -> Sequence[GateReport]:
    """What a stored row says of its gates."""
    try:
        return load_result(path)[0].gates
    except RecipeError:
        return ()


def _measured_before(path: Path) -> Result | None:
    try:
        result, _ = load_result(path)
    except RecipeError:
        return None
    return result if result.arms else None


def result_path(output: Path, row: Row, scale: Scale) -> Path:
    """Where a row's numbers are kept."""
    return output / row.paper / f"{row.id}.{scale}.json"


def _file(row: Row, result: Result, judgement: Judgement, context: Context, seconds: float) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "row": row.id,
        "paper": row.paper,
        "source": row.source,
        "shows": row.shows,
        "paper_figure": row.paper_figure,
        "recipe": row.mini if context.scale == "mini" else "the paper's own setting",
        "scale": context.scale,
        **_verdict(judgement),
        "result": result.to_json(),
        "environment": environment(),
        "measured_on": sorted(context.measured_on),
        "wall_seconds": seconds,
        "arm_seconds": sum(context.arm_seconds.values()),
    }


def _verdict(judgement: Judgement) -> dict[str, Any]:
    clauses = [verdict.to_json() for verdict in judgement.verdicts]
    return {"status": judgement.status, "reason": judgement.reason, "clauses": clauses}


def load_result(path: Path) -> tuple[Result, float]:
    """The numbers of a stored row and the seconds that the run took which put them together.

    Raises:
        RecipeError: the file is no result of this schema.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["schema"] != SCHEMA:
            raise RecipeError(f"{path} has another form", expected=f"schema {SCHEMA}", do="measure the row again")
        return Result.from_json(value["result"]), float(value["wall_seconds"])
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError) as error:
        if isinstance(error, RecipeError):
            raise
        raise RecipeError(f"{path} is no result of a row", got=repr(error), do="measure the row again") from error


def _stored(row: Row, scale: Scale, output: Path) -> str:
    """The row judged anew from its stored numbers: what a file says about its own status is not believed."""
    path = result_path(output, row, scale)
    if row.run is None or not path.is_file():
        return "not run"
    try:
        result, _ = load_result(path)
    except RecipeError:
        return "not run"
    return _judged(row, result, scale).status
