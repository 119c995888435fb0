"""What the run cost, as multiples of one pass of the backbone."""

from __future__ import annotations

from dataclasses import dataclass

from regraft.app.report import read, words
from regraft.app.report.price import Price, price
from regraft.app.report.scale import Scale, Tick, linear_ticks, padded
from regraft.record import Record

__all__ = ["Costs", "Fact", "Stage", "costs"]

_CHECKS = {
    "diagnose": "Passes and operations are those that made features; what the checks pass and compute themselves is in "
    "their seconds alone.",
    "rank": "Passes and operations are those that made features; what the scores compute is in their seconds alone.",
}
SHADES = 6  # colours of the stacked bar; a run with more stages starts over


@dataclass(frozen=True)
class Fact:
    """A number with its name; ``note`` says what it means."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Stage:
    """A stage: its cells in the table and its piece of the bar (in per cent)."""

    name: str
    seconds: str
    multiple: str
    passes: str
    flops: str
    peak: str
    reused: bool
    shade: int
    start: float
    width: float
    tip: str
    raw: tuple[float, float, float, float]  # seconds, passes, FLOPs, peak bytes: what sorting compares


@dataclass(frozen=True)
class Costs:
    """The section."""

    lead: str
    facts: tuple[Fact, ...]
    stages: tuple[Stage, ...]
    ticks: tuple[Tick, ...]
    one_pass: float | None
    one_pass_label: str
    has: dict[str, bool]
    price: Price | None = None


def costs(record: Record) -> Costs | None:
    """The section, or ``None`` where no stage was metered."""
    if not record.costs:
        return None
    floor = read.number(record.figures.get("floor_seconds"))
    floor = floor if floor and floor > 0 else None
    seconds = [max(read.number(c.seconds) or 0.0, 0.0) for c in record.costs]
    total = sum(seconds)
    peak = max([0.0, *read.numbers([c.peak_bytes for c in record.costs])])
    work = sum(read.numbers([c.flops for c in record.costs]))
    spent = sum(read.numbers([c.backbone_passes for c in record.costs]))
    top = max(total, floor or 0.0) or 1.0
    scale = Scale(0.0, padded([0.0, top], 0.03)[1])
    stages = []
    start = 0.0
    for index, (cost, lasted) in enumerate(zip(record.costs, seconds, strict=True)):
        stages.append(_stage(cost, lasted, floor, index % SHADES, scale(start), scale(start + lasted)))
        start += lasted
    unit = floor or 1.0
    ticks = linear_ticks(0.0, scale.high / unit, 4)
    write = words.times if floor else words.seconds
    found = read.text(record.verb) in ("diagnose", "rank")
    of, counted = ("rows through the backbone", " of the backbone, counted") if not found else _features(record)
    facts = [
        Fact("Backbone passes", words.passes_number(spent), f"{of} ÷ rows of the run"),
        Fact("Time", words.seconds(total), f"{words.times(total / floor)} one pass" if floor else ""),
        Fact("Arithmetic", words.flops(work) if work else "", f"floating-point operations{counted}"),
        Fact("Peak memory", words.bytes_(peak) if peak else "", "largest resident set of the process"),
        Fact(
            "Artifact",
            words.bytes_(read.number(record.artifact_bytes)) if record.artifact_bytes else "",
            "files on disk",
        ),
    ]
    return Costs(
        lead=_lead(total, floor, stages, seconds) + (f" {_CHECKS[read.text(record.verb)]}" if found else ""),
        facts=tuple(f for f in facts if f.value),
        stages=tuple(stages),
        ticks=tuple(Tick(scale(t * unit), words.trimmed(write(t))) for t in ticks),
        one_pass=scale(floor) if floor else None,
        one_pass_label=f"one pass of the backbone, {words.seconds(floor)}" if floor else "",
        has={
            "multiple": floor is not None,
            "passes": spent > 0,
            "flops": work > 0,
            "peak": peak > 0,
            "bar": total > 0,
        },
        price=price(record),
    )


def _features(record: Record) -> tuple[str, str]:
    """What passes and operations are of where only those that made features were counted."""
    blank = [
        read.text(c.stage)
        for c in record.costs
        if read.number(c.backbone_passes) and not read.number(c.flops) and not read.flag(c.reused)
    ]
    but = f", without those of {' and '.join(blank)}" if blank else ""
    return "rows passed for features", f" of the passes for features{but}"


def _stage(cost: object, lasted: float, floor: float | None, shade: int, start: float, end: float) -> Stage:
    def get(name: str) -> float:
        return read.number(getattr(cost, name, None)) or 0.0

    name = read.text(getattr(cost, "stage", "")) or "stage"
    multiple = words.times(lasted / floor) if floor else ""
    reused = read.flag(getattr(cost, "reused", False))
    parts = [f"{name}: {words.seconds(lasted)}"]
    parts += [f"{multiple} one pass"] if multiple else []
    parts += [words.passes(get("backbone_passes"))] if get("backbone_passes") else []
    parts += ["reused from the store"] if reused else []
    return Stage(
        name=name,
        seconds=words.seconds(lasted),
        multiple=multiple,
        passes=words.passes_number(get("backbone_passes")) if get("backbone_passes") else "",
        flops=words.flops(get("flops")) if get("flops") else "",
        peak=words.bytes_(get("peak_bytes")) if get("peak_bytes") else "",
        reused=reused,
        shade=shade,
        start=start,
        width=round(max(end - start, 0.0), 3),
        tip=", ".join(parts),
        raw=(lasted, get("backbone_passes"), get("flops"), get("peak_bytes")),
    )


def _lead(total: float, floor: float | None, stages: list[Stage], seconds: list[float]) -> str:
    parts = []
    if floor:
        parts.append(
            f"The run took {words.times(total / floor)} the time of one backbone pass ({words.seconds(floor)})"
        )
    else:
        parts.append(f"The run took {words.seconds(total)}")
    if len(stages) > 1 and total > 0:
        index = max(range(len(seconds)), key=seconds.__getitem__)
        parts.append(f"the {stages[index].name} stage took {words.percent(seconds[index] / total)} of it")
    return "; ".join(parts) + "."
