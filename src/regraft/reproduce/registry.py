"""All rows by name, and how a user's words become rows."""

from __future__ import annotations

from collections.abc import Sequence

from regraft.errors import RecipeError
from regraft.reproduce.row import Row
from regraft.reproduce.rows import gradients, head2toe, linearized, taskhead, transferability
from regraft.wording import near

__all__ = ["PAPERS", "ROWS", "choose"]

ROWS: tuple[Row, ...] = (
    *gradients.ROWS,
    *linearized.ROWS,
    *transferability.ROWS,
    *head2toe.ROWS,
    *taskhead.ROWS,
)

PAPERS: dict[str, str] = {
    "000": "Gradients as Features for Deep Representation Learning",
    "001": "Fast Adaptation with Linearized Neural Networks",
    "002": "Towards Understanding the Transferability of Deep Representations",
    "003": "Head2Toe: Utilizing Intermediate Representations for Better Transfer Learning",
    "004": "How to Prepare Your Task Head for Finetuning",
}


def choose(
    names: Sequence[str], gates: Sequence[str] = (), rows: Sequence[Row] = ROWS
) -> tuple[tuple[Row, ...], tuple[str, ...]]:
    """The rows and the gates that ``names`` stand for: row ids, papers (``003``), gates, or ``gates``.

    No name stands for every row. Rows come in the order of the page, each once.

    Raises:
        RecipeError: a name that is none of them, with the nearest ones.
    """
    known = {row.id for row in rows}
    papers = {row.paper for row in rows}
    unknown = [name for name in names if name not in known | papers | {*gates, "gates"}]
    if unknown:
        candidates = [*(row.id for row in rows), *gates, "gates", *sorted(papers)]
        raise RecipeError(
            f"no row or gate is called {unknown[0]!r}",
            expected=f"a row such as {candidates[0]}, a paper (000 to 004), a gate, or nothing for all rows",
            do=near(unknown[0], candidates),
        )
    chosen = tuple(row for row in rows if not names or row.id in names or row.paper in names)
    wanted = tuple(gate for gate in gates if gate in names or "gates" in names)
    return chosen, wanted
