"""The test that every row's checks must pass, or rather fail.

A check that still holds when its arms are exchanged, or when its x-axis is shuffled, measures nothing.
"""

from __future__ import annotations

import json

from regraft.reproduce.result import Result
from regraft.reproduce.row import Row, Scale

__all__ = ["must_fail_when_disturbed"]


def must_fail_when_disturbed(row: Row, results: Result, scale: Scale = "mini") -> None:
    """Demand that each clause holds on ``results`` and fails once its own disturbance is applied.

    The result goes through its JSON form first, so that what is stored is what is judged.

    Raises:
        AssertionError: naming the row and the clause that does not hold undisturbed, that still holds
            disturbed, that names no disturbance, or whose disturbance changes nothing.
    """
    result = Result.from_json(json.loads(json.dumps(results.to_json(), allow_nan=False)))
    if not row.clauses:
        raise AssertionError(f"{row.id}: no clause to test")
    if row.judge(result, scale).status != "pass":
        said = [v.outcome.sentence for v in row.judge(result, scale).verdicts if not v.outcome.holds]
        raise AssertionError(f"{row.id}: the undisturbed result must pass; {'; '.join(said)}")
    for clause in row.clauses:
        name = f"{row.id} {clause.letter}".strip()
        if clause.check is None or clause.disturb is None:
            raise AssertionError(f"{name}: names no check or no disturbance")
        disturbed = clause.disturb(result)
        if disturbed.to_json() == result.to_json():
            raise AssertionError(f"{name}: its disturbance changes nothing")
        outcome = clause.check(disturbed)
        if outcome.holds:
            raise AssertionError(f"{name}: still holds on disturbed numbers: {outcome.sentence}")
