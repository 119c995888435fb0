"""A row of the reproduction: what a paper shows, and the clauses by which code judges ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from regraft.errors import RecipeError
from regraft.reproduce.outcome import Outcome
from regraft.reproduce.result import Disturbance, GateReport, Result
from regraft.reproduce.words import fragile_label

__all__ = ["UNMEASURED", "Check", "Clause", "Context", "Judgement", "Row", "Scale", "Verdict"]

Scale = Literal["mini", "full"]
Check = Callable[[Result], Outcome]
UNMEASURED = "no experiment measures it"


@dataclass(frozen=True)
class Clause:
    """One condition of a row.

    Attributes:
        letter: its letter within the row (``""`` where the row has a single clause).
        text: the condition as it was written down before any result.
        fragile: whether its failure alone is a fragile-fail at scale mini.
        check: judges a result; ``None`` while the row is not measured by this package.
        disturb: the change of a passing result after which the clause must fail.
        paper_effect: the paper's own figure of what the clause estimates, where it gives one; of several, the mean
            where the clause pools them, the least where it asks for each.
    """

    letter: str
    text: str
    fragile: bool = False
    check: Check | None = None
    disturb: Disturbance | None = None
    paper_effect: float | None = None


@dataclass(frozen=True)
class Context:
    """What a row's run may use.

    Attributes:
        data: the data pack's folder.
        cache: where features, trained sources and runs are kept and shared between rows.
        scale: ``mini`` or ``full``.
        seeds: the seeds of rows, initial weights and folds.
        progress: called with (done, total) now and then.
        within: called with (what, done, total) inside that: for what takes minutes or more.
        device: where networks run that a bench gives out.
        arms: where measured arms are kept, by name; in the cache if ``None``.
        measured_on: devices that the run's arms were measured on, by torch's names; a bench adds to them.
        arm_seconds: wall seconds that each of these arms took when it was measured, by its key; a bench adds to them.
    """

    data: Path
    cache: Path
    scale: Scale = "mini"
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    progress: Callable[[int, int], None] | None = None
    within: Callable[[str, int, int], None] | None = None
    device: str = "cpu"
    arms: Path | None = None
    measured_on: set[str] = field(default_factory=set, compare=False)
    arm_seconds: dict[str, float] = field(default_factory=dict, compare=False)

    def first(self, seeds: int) -> Context:
        """The same with so many of its seeds."""
        return replace(self, seeds=self.seeds[:seeds])

    def mini_only(self) -> None:
        """For rows that have no setting of scale full: their mini setting must not be called it.

        Raises:
            RecipeError: at scale full.
        """
        if self.scale == "full":
            raise RecipeError(
                "the paper's own setting of this row is not written yet", expected="scale mini", got="full"
            )


@dataclass(frozen=True)
class Verdict:
    """A clause with its outcome; ``label`` is set where a fragile clause failed."""

    clause: Clause
    outcome: Outcome
    label: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "letter": self.clause.letter,
            "text": self.clause.text,
            "fragile": self.clause.fragile,
            "label": self.label,
            **self.outcome.to_json(),
        }


@dataclass(frozen=True)
class Judgement:
    """A row's status (``pass``, ``fail``, ``fragile-fail``, ``not run``) and why."""

    status: str
    verdicts: tuple[Verdict, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Row:
    """One row of the reproduction, as data.

    Attributes:
        id: its name on the command line.
        paper: ``000`` … ``004``.
        source: the table, figure, equation or section of the paper.
        shows: the finding, in a phrase.
        paper_figure: the paper's figure, as text.
        mini: the recipe at scale mini, as text.
        needs: networks, data sets and trained sources of scale mini (see :mod:`regraft.reproduce.packs`).
        clauses: the conditions.
        run: measures the row; ``None`` until :meth:`measured_by` gives it.
        one_scale: whether it is the same row at scale full; others find there themselves what they need.
    """

    id: str
    paper: str
    source: str
    shows: str
    paper_figure: str
    mini: str
    needs: tuple[str, ...]
    clauses: tuple[Clause, ...]
    run: Callable[[Context], Result] | None = field(default=None, repr=False)
    one_scale: bool = False

    def needs_at(self, scale: Scale) -> tuple[str, ...]:
        """What the row needs at a scale."""
        return self.needs if scale == "mini" or self.one_scale else ()

    def at(self, scale: Scale) -> Row:
        """The row as it is judged at a scale: at ``full`` no clause is fragile."""
        firm = tuple(replace(clause, fragile=False) for clause in self.clauses)
        return self if scale == "mini" else replace(self, clauses=firm)

    def measured_by(
        self,
        run: Callable[[Context], Result],
        checks: Mapping[str, Check],
        disturb: Mapping[str, Disturbance],
        effects: Mapping[str, float] | None = None,
    ) -> Row:
        """The same row with its experiment: a check and a disturbance for every clause, by letter.

        Raises:
            RecipeError: a clause is left without check or disturbance, or a letter is unknown.
        """
        letters = [clause.letter for clause in self.clauses]
        for what, given in (("check", checks), ("disturbance", disturb)):
            if sorted(given) != sorted(letters):
                raise RecipeError(
                    f"row {self.id} needs one {what} per clause",
                    expected=", ".join(map(repr, letters)),
                    got=", ".join(map(repr, given)) or "none",
                )
        effects = effects or {}
        wired = tuple(
            replace(c, check=checks[c.letter], disturb=disturb[c.letter], paper_effect=effects.get(c.letter))
            for c in self.clauses
        )
        return replace(self, clauses=wired, run=run)

    def judge(self, result: Result, scale: Scale = "mini") -> Judgement:
        """Check every clause of ``result`` and give the row's status.

        Where a gate was closed and nothing measured, the gates alone decide.
        """
        verdicts: list[Verdict] = []
        closed = [gate for gate in result.gates if gate.status != "pass"]
        for clause in self.at(scale).clauses if result.arms or not closed else ():
            if clause.check is None:
                return Judgement("not run", reason=UNMEASURED)
            outcome = _checked(clause.check, result)
            failed_fragile = clause.fragile and not outcome.holds
            label = fragile_label(outcome, clause.paper_effect) if failed_fragile else ""
            verdicts.append(Verdict(clause, outcome, label))
        status = _status_of(verdicts, closed)
        reason = "; ".join(f"gate {gate.name} {gate.status}: {gate.message}" for gate in closed)
        return Judgement(status, tuple(verdicts), reason)


@dataclass(frozen=True, eq=False)
class _Read(Result):
    """A result that notes which arms were read with numbers that are not finite."""

    torn: dict[str, None] = field(default_factory=dict)

    def arm(self, name: str, tasks: Sequence[str] | None = None) -> np.ndarray:
        values = super().arm(name, tasks)
        if not np.isfinite(values).all():
            self.torn[name] = None
        return values


def _checked(check: Check, result: Result) -> Outcome:
    """What a check says; on numbers that are not finite nothing holds, not even that no comparison of them is true."""
    read = _Read(result.arms, result.axes, result.seeds, result.gates, result.notes)
    outcome = check(read)
    if outcome.holds and read.torn:
        why = f"values of {', '.join(read.torn)} are missing or not finite"
        return Outcome.unmeasurable(outcome.needed, why, outcome.side)
    return outcome


def _status_of(verdicts: Sequence[Verdict], closed_gates: Sequence[GateReport]) -> str:
    """``pass`` when all clauses hold, ``fragile-fail`` when only fragile ones do not, else ``fail``.

    A gate that failed makes the row fail whatever its clauses say; a gate that was not run leaves the row not run.
    """
    if any(gate.status == "fail" for gate in closed_gates):
        return "fail"
    if closed_gates or not verdicts:
        return "not run"
    failed = [verdict for verdict in verdicts if not verdict.outcome.holds]
    if not failed:
        return "pass"
    return "fragile-fail" if all(verdict.clause.fragile for verdict in failed) else "fail"
