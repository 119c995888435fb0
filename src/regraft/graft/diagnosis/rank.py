"""`rank`: backbones in the order of a score that trains nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from regraft.data import Manifest, scan
from regraft.diagnose.checks.check import Labelled
from regraft.diagnose.checks.transfer import main_score, scored
from regraft.diagnose.transfer.estimate import Estimate
from regraft.diagnose.transfer.ranking import Place, Ranking, rank_models
from regraft.diagnose.transfer.reliability import Reliability, reliability
from regraft.diagnose.transfer.scores import SCORES, spoken
from regraft.errors import DataError, RecipeError
from regraft.graft.adapted.model import check_modality, readable
from regraft.graft.diagnosis.course import checkpoints
from regraft.graft.diagnosis.probing import probing, remarks
from regraft.graft.network_findings import first_output
from regraft.graft.options import Options
from regraft.graft.preparation import Prepared, Progress
from regraft.graft.recording import data_of, task_of, versions
from regraft.network import Network, Preprocess, check_weights, load
from regraft.record import Finding, Ledger, Record, Severity, now
from regraft.wording import by_folders

__all__ = ["rank"]

_HELD = 2**28  # parameters of backbones that wait for their pass: others are loaded again
_MEASURED = ("binary", "multiclass")  # kinds of labels that the truth is known for


def rank(
    data: Any,
    models: str | Sequence[str | Network],
    *,
    score: str | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    command: str = "",
    **columns: Any,
) -> Record:
    """Order backbones by a transferability score, on the same rows; one pass of each, nothing trained.

    Intervals are by bootstrap over rows or their groups, paired between backbones
    (:func:`regraft.diagnose.rank_models`).

    Args:
        data: as :func:`regraft.graft.adapt` takes it.
        models: two or more backbones; or one folder that holds several, such as the ``checkpoints`` of a pretraining:
            where their names count epochs or steps, the figure ``ranking`` holds a ``course`` too.
        score: of :data:`regraft.diagnose.SCORES`; by default how well ridge predicts rows left out: the accuracy of
            classes, the variance explained of numbers and labels.
        options: of the pass.
        progress: called with (stage, done, total).
        command: kept in the record.
        **columns: ``kind``, ``label``, ``group``, ``input``, ``ignore`` for the data.

    Returns:
        a Record whose figure ``ranking`` holds the order, all scores and the differences that the rows bear out.

    Raises:
        RegraftError: a mistake of the user's, or a score that these labels do not have.
    """
    models, course = checkpoints((models,) if isinstance(models, str) else models)
    if len(models) < 2:
        raise RecipeError("one backbone has no order", expected="two or more", got=f"{len(models)}")
    if score is not None and score not in SCORES:
        raise RecipeError(f"no score is called {score!r}", expected=", ".join(SCORES))
    options, ledger = options or Options(), Ledger()
    for model in models:
        check_weights(model, options.weights)
    found, ready, labelled, reader = _looked(data, models, options, ledger, progress, **columns)
    task, names = task_of(ready), list(found)
    by = score or main_score(task["kind"])
    if lacking := [name for name, seen in found.items() if by not in seen.estimates]:
        why, _, do = found[lacking[0]].skipped.get(by, "").partition(" To mend it: ")
        what = f"{by} is not to be had of {lacking[0]}" + (f": {why}" if why else "")
        raise DataError(what, do=do or "leave it out, or choose another --score")
    if len({seen.parameters for seen in found.values()}) > 1:
        course = None  # of other networks the numbers count something else
    order = rank_models(
        {name: seen.estimates[by] for name, seen in found.items()},
        labels=labelled.known[0].numpy(), groups=labelled.known_groups, seed=options.seed,
    )  # fmt: skip
    first, second = (found[place.name] for place in order.places[:2])
    known = reliability(by) if task["kind"] in _MEASURED else None
    guessing = _guessing(order, labelled.commonest)
    smallest = None if course is not None or guessing else _smallest(order, found)
    said = _findings(order, smallest=smallest, same=first.fingerprint == second.fingerprint, known=known)
    figure = _figure(order, found, labelled.units[1], known)
    read = [note for name, seen in found.items() for note in first_output(seen.unread, f"{name}'s")]
    if course is not None:
        said, figure = (*course.findings(names, order), *said), {**figure, "course": course.figure(names, order)}
    return Record(
        verb="rank",
        status="done",
        method="",
        task={**task, "title": "ranking of backbones"},
        model={"name": f"{len(found)} backbones"},
        data=data_of(ready),
        scores={"validation": None, "test": None},
        costs=ledger.summed,
        findings=(*said, *guessing, *remarks(ready, reader), *read),
        figures={"ranking": figure},
        seeds={"seed": options.seed},
        versions=versions(),
        command=command,
        created=now(),
    )


@dataclass(frozen=True, eq=False)
class _Seen:
    """What one pass of a backbone gave; its features are not kept.

    ``seconds`` are without those of loading, for the first backbone of a library pays for the library's imports.
    """

    estimates: dict[str, Estimate]
    skipped: dict[str, str]
    fingerprint: str
    parameters: int
    seconds: float
    unread: tuple[tuple[int, ...], ...]


def _looked(
    data: Any,
    models: Sequence[str | Network],
    options: Options,
    ledger: Ledger,
    progress: Progress | None,
    **columns: Any,
) -> tuple[dict[str, _Seen], Prepared, Labelled, Preprocess]:
    """Every backbone by name; the rows and labels, which all share, with the last of them; what tells rows apart."""
    found: list[_Seen] = []
    networks: list[str] = []
    last: tuple[Prepared, Labelled] | None = None
    with ledger.stage("data"):
        rows = scan(data, skip_bad=options.skip_bad, **columns)  # read and hashed once for all backbones
    with ledger.stage("model"):
        held, rows, reader = _readers(rows, models, options)
    for number in range(len(models)):
        before = len(ledger.costs)
        last = ready, labelled = probing(rows, held.pop(0), options, ledger, progress, reader)
        with ledger.stage("scores"):
            every = scored(labelled, seed=options.seed)
        networks.append(ready.network.name)
        seen = _Seen(
            {each.name: each for each in every if isinstance(each, Estimate)},
            {each.name: each.reason for each in every if not isinstance(each, Estimate)},
            ready.network.fingerprint,
            ready.network.about.parameters,
            sum(cost.seconds for cost in ledger.costs[before:] if cost.stage not in ("data", "model")),
            ready.network.unread,
        )
        found.append(seen)
        if progress:
            progress("rank", number + 1, len(models))
    if last is None:
        raise DataError("no backbone was looked at")
    return dict(zip(_named(networks), found)), *last, reader


def _readers(
    rows: Manifest, models: Sequence[str | Network], options: Options
) -> tuple[list[str | Network], Manifest, Preprocess]:
    """The backbones, loaded as far as they are small enough to be held together; the rows that every one reads, where
    bad ones are skipped; and the preprocessing that tells them apart for all, lest the order of the names decide: one
    that knows several ways of writing an input, if there is one, for it takes equal bytes for one input as others do.

    A mistake in the last name is told here, before the first pass, which may take long.
    """
    held: list[str | Network] = []
    reader: Preprocess | None = None
    room = _HELD
    for model in models:
        network = model if isinstance(model, Network) else load(model, weights=options.weights)
        check_modality(network, rows)
        rows = readable(network, rows, options.skip_bad)
        room -= network.about.parameters
        held.append(network if room >= 0 or not held else model)
        if reader is None or (network.preprocess.strict and not reader.strict):
            reader = network.preprocess
    if reader is None:
        raise DataError("no backbone was looked at")
    return held, rows, reader


def _named(networks: Sequence[str]) -> list[str]:
    """What backbones are called: folders by as many parts of their paths as tell them apart, from the names of others
    too; of equal names, the later by their number."""
    folders = sorted({name for name in networks if Path(name).is_dir()})
    others = sorted({*networks} - {*folders})
    paths = [*(Path(os.path.abspath(name)) for name in folders), *map(Path, others)]
    short = dict(zip(folders, by_folders(paths)))
    names: list[str] = []
    for name in (short.get(network, network) for network in networks):
        number = next(n for n in count(1) if (name if n == 1 else f"{name} ({n})") not in names)
        names.append(name if number == 1 else f"{name} ({number})")
    return names


def _guessing(order: Ranking, guess: float | None) -> tuple[Finding, ...]:
    """Whether none is surely better than always the commonest class, or the mean."""
    best, floor = order.places[0], {"loo-accuracy": guess, "loo-r2": 0.0}.get(order.score)
    if floor is None or any(place.low > floor for place in order.places):
        return ()
    answer = f"the commonest class ({100 * floor:.1f} %)" if order.score == "loo-accuracy" else "the mean"
    title = f"Not even {best.name} is surely better than {answer}"
    advice = "Check the labels, try other backbones, or bring more rows."
    return (Finding("features-fit", title, "warning", best.value, "", best.low, best.high, advice=advice),)


def _smallest(order: Ranking, found: Mapping[str, _Seen]) -> str | None:
    """Of the backbones that the rows do not tell from the first the one of fewest parameters; none where all have as
    many."""
    first, *others = order.places
    near = [first.name, *(p.name for p in others if not order.between(first.name, p.name).real)]
    sizes = {name: found[name].parameters for name in near}
    return None if len(set(sizes.values())) < 2 else min(near, key=lambda name: sizes[name])


def _findings(order: Ranking, *, smallest: str | None, same: bool, known: Reliability | None) -> tuple[Finding, ...]:
    """``smallest`` of those that are not told from the first; ``same`` are the first two of equal weights."""
    by = spoken(order.score)
    first, second = order.places[0], order.places[1]
    near = [place for place in order.places[1:] if not order.between(first.name, place.name).real]
    sure, other = not near, (near or [second])[0]
    title = f"{first.name} is first by {by}" + ("" if sure else f", but the rows do not tell it from {other.name}")
    if first.rank == second.rank:
        title = f"{first.name} and {second.name} tie by {by}"
    if same:
        title = f"{first.name} and {second.name} are the same network"
    lead = order.between(first.name, other.name)
    detail = f"{first.value:.4g} beside {other.value:.4g}: {lead.value:+.3g} ({lead.low:+.3g} to {lead.high:+.3g})."
    advice = "" if sure or same or smallest is None else f"Take {smallest}, the smallest of them, or adapt and compare."
    severity: Severity = "advice" if advice else "info"
    said = [Finding("first", title, severity, lead.value, "", lead.low, lead.high, detail, advice)]
    if order.unsure:
        pairs = ", ".join(f"{d.better} and {d.worse}" for d in order.unsure[:6])
        which = f"{len(order.unsure)} of {len(order.differences)} pairs" if len(order.differences) > 1 else "the two"
        title = f"These rows do not tell {which} apart"
        said.append(
            Finding("ties", title, "info", len(order.unsure), "pairs", detail=f"The rows do not tell apart {pairs}.")
        )
    if known is not None:
        said.append(Finding("track-record", known.title, "info", known.tau, "τ", known.low, known.high, known.sentence))
    return tuple(said)


def _standing(place: Place, places: Sequence[Place]) -> str:
    """A place as people write it: equal scores share the first of their places, ``2=``."""
    equal = sum(other.rank == place.rank for other in places)
    return f"{place.rank - (equal - 1) / 2:g}{'=' if equal > 1 else ''}"


def _figure(order: Ranking, found: dict[str, _Seen], units: str, known: Reliability | None) -> dict[str, Any]:
    by = spoken(order.score)
    tied: dict[str, list[str]] = {place.name: [] for place in order.places}
    for pair in order.unsure:
        tied[pair.better].append(pair.worse)
        tied[pair.worse].append(pair.better)
    return {
        "score": order.score,
        "lead": f"By {by} of the last layer's features, with 95 % intervals by bootstrap over the {units}.",
        "note": "" if known is None else known.sentence,
        "names": [name for name in SCORES if any(name in seen.estimates for seen in found.values())],
        "models": [
            {
                "place": place.rank, "standing": _standing(place, order.places), "name": place.name,
                "value": place.value, "low": place.low, "high": place.high,
                "rank_low": place.rank_low, "rank_high": place.rank_high, "tied": tied[place.name],
                "scores": {name: estimate.value for name, estimate in found[place.name].estimates.items()},
                "parameters": found[place.name].parameters, "seconds": found[place.name].seconds,
            }
            for place in order.places
        ],
        "differences": [
            {"better": d.better, "worse": d.worse, "value": d.value, "low": d.low, "high": d.high, "real": d.real}
            for d in order.differences
        ],
    }  # fmt: skip
