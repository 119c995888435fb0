"""The Record of one run and its JSON form."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from regraft.errors import ArtifactError, MissingPathError
from regraft.files import intact, plain, sealed, write_json
from regraft.record.finding import Finding, counted
from regraft.record.ledger import Cost

__all__ = ["SCHEMA", "Candidate", "Record", "Score", "figure", "now"]

SCHEMA = 1


def now() -> str:
    """The time in UTC, in ISO 8601 to the second: when a record was made."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def figure(value: float, metric: str, sign: str = "") -> str:
    """A score, or a difference of two with the sign ``+``, for people: four digits behind the point; four that count
    where these would be noughts, for an error has the unit of its targets, or more than anyone reads."""
    small = metric == "rmse" and 0 < abs(value) < 0.1
    return f"{value:{sign}.4g}" if small or abs(value) >= 1e6 else f"{value:{sign}.4f}"


@dataclass(frozen=True)
class Score:
    """A metric's value with its spread.

    Attributes:
        metric: ``accuracy``, ``balanced-accuracy``, ``f1``, ``roc-auc``, ``map``, ``miou``, ``r2``, ``rmse``,
            ``nll``, ``ece``, ``brier``, ``gaussian-nll``, ``coverage-90``.
        value: the point estimate.
        low, high: a 95 % interval.
        interval: how it was made: ``wilson``, ``bootstrap over rows``, ``wilson, by a bootstrap over N groups``,
            ``Student's t, by a bootstrap over N groups``, ``wilson over N rows: every resample agrees``, ``wilson of
            each class``, ``wilson of each class and bootstrap over rows`` (of labels ``of each value of a label``),
            ``hanley-mcneil of each area and bootstrap over rows``; or ``unknown: …`` and why, with ``low`` and ``high``
            NaN.
        rows: how many rows it was measured on.
        per_fold: the same metric on each outer fold, where the score is a cross-validation.
        protocol: which rows: one of :mod:`regraft.record.protocol`; of later rows, their name.
    """

    metric: str
    value: float
    low: float
    high: float
    interval: str
    rows: int
    per_fold: tuple[float, ...] = ()
    protocol: str = ""

    def __str__(self) -> str:
        rows = counted(self.rows, "row")
        return f"{self.stated} ({rows}, {self.protocol})" if self.protocol else f"{self.stated} ({rows})"

    @property
    def stated(self) -> str:
        """The value with its interval: ``accuracy 0.9540, 95 % interval 0.9435 to 0.9620``."""
        known = math.isfinite(self.low) and math.isfinite(self.high)
        return f"{self.metric} {figure(self.value, self.metric)}, {'95 % interval ' * known}{self.spread}"

    @property
    def spread(self) -> str:
        """The interval in words: ``0.9435 to 0.9620``, or why there is none."""
        known = math.isfinite(self.low) and math.isfinite(self.high)
        low, high = (figure(bound, self.metric) for bound in (self.low, self.high))
        return f"{low} to {high}" if known else self.interval


@dataclass(frozen=True)
class Candidate:
    """One cell of the search: what was tried, how it scored in the inner folds."""

    name: str
    strength: float
    score: float
    standard_error: float
    chosen: bool = False


@dataclass(frozen=True)
class Record:
    """Everything that is known about one run, without its tensors.

    ``scores`` maps ``validation`` and ``test`` to the headline :class:`Score` (or ``None``);
    ``other_scores`` maps the same names to further metrics on the same rows. ``figures`` holds the
    data of pictures (confusion matrix, reliability, layers, mistakes) as plain JSON values, so that
    the report is a function of the Record alone.
    """

    verb: str
    status: str
    method: str
    task: dict[str, Any]
    model: dict[str, Any]
    data: dict[str, Any]
    scores: dict[str, Score | None]
    other_scores: dict[str, tuple[Score, ...]] = field(default_factory=dict)
    candidates: tuple[Candidate, ...] = ()
    costs: tuple[Cost, ...] = ()
    findings: tuple[Finding, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)
    seeds: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    command: str = ""
    citations: tuple[str, ...] = ()
    created: str = ""
    paths: dict[str, str] = field(default_factory=dict)
    artifact_bytes: int = 0

    def __repr__(self) -> str:
        scored = "" if self.headline is None else f": {self.headline}"
        return f"Record({self.verb} {self.status}, {self.method}{scored})"

    @property
    def headline(self) -> Score | None:
        """The score to quote: the test split's if there is one, else the validation score."""
        return self.scores.get("test") or self.scores.get("validation")

    def total(self, name: str) -> float:
        """Sum of a :class:`Cost` field over the stages, such as ``seconds`` or ``flops``."""
        return float(sum(getattr(cost, name) for cost in self.costs))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; NaN and infinities become ``null``."""
        return {"schema": SCHEMA, **plain(dataclasses.asdict(self))}

    @classmethod
    def from_json(cls, value: dict[str, Any], name: str = "this value") -> Record:
        """The inverse of :meth:`to_json`; ``name`` is that of the value in messages.

        Raises:
            ArtifactError: the value is no Record of this schema.
        """
        value = dict(value) if isinstance(value, dict) else {}
        schema = value.pop("schema", None)
        if schema is None:
            raise ArtifactError(
                f"{name} is no record",
                expected="a JSON object with a schema",
                got="none",
                do="name a run folder, or run the command that made it again",
            )
        if schema != SCHEMA:
            raise ArtifactError(
                f"{name} cannot be read as a record",
                expected=f"schema {SCHEMA}",
                got=f"schema {schema}",
                do="use the regraft version that wrote it",
            )
        try:
            value["scores"] = {k: None if v is None else _score(v) for k, v in value["scores"].items()}
            value["other_scores"] = {k: tuple(map(_score, v)) for k, v in value["other_scores"].items()}
            value["candidates"] = tuple(Candidate(**_numbers(Candidate, v)) for v in value["candidates"])
            value["costs"] = tuple(Cost(**_numbers(Cost, v)) for v in value["costs"])
            value["findings"] = tuple(Finding(**_numbers(Finding, v)) for v in value["findings"])
            value["citations"] = tuple(value["citations"])
            return cls(**value)
        except (KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(
                f"{name} cannot be read as a record",
                got=f"{type(error).__name__}: {error}",
                do="run the command that made it again",
            ) from error

    def save(self, path: Path) -> None:
        """Write the JSON form atomically, with its digest."""
        write_json(path, sealed(self.to_json()))

    @classmethod
    def load(cls, path: Path | str) -> Record:
        """Read a record written by :meth:`save`, named by its file or by the run folder that holds it.

        Raises:
            MissingPathError: there is no such file.
            ArtifactError: the file is no record, or was changed.
        """
        path = Path(path)
        file = path / "record.json" if path.is_dir() else path
        try:
            value = json.loads(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise MissingPathError(
                f"{path} is not there", do="name the run folder that `regraft adapt` printed"
            ) from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ArtifactError(
                f"{file} is no record", got=str(error), do="run the command that made it again"
            ) from error
        if not isinstance(value, dict):
            raise ArtifactError(f"{file} is no record", expected="a JSON object", got=type(value).__name__)
        if not intact(value):
            raise ArtifactError(
                f"{file} was changed after it was written", do="restore it, or run the command that made it again"
            )
        value.pop("digest", None)
        return cls.from_json(value, str(file))


def _score(value: dict[str, Any]) -> Score:
    numbers = _numbers(Score, value)
    numbers["per_fold"] = tuple(math.nan if v is None else v for v in value["per_fold"])
    return Score(**numbers)


def _numbers(cls: type, value: dict[str, Any]) -> dict[str, Any]:
    """Give ``null`` back its meaning (not a number) in the float fields of ``cls``."""
    floats = {f.name for f in dataclasses.fields(cls) if f.type == "float"}
    return {k: math.nan if v is None and k in floats else v for k, v in value.items()}
