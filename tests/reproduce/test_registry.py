"""The registry against the page that the rows were written down on."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from regraft.errors import DataError, RecipeError, RegraftError
from regraft.files import read_json
from regraft.reproduce.harness import load_result, result_path
from regraft.reproduce.packs import DATA, TRAINED, WEIGHTS, missing
from regraft.reproduce.registry import PAPERS, ROWS, choose

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT.parent / "shared" / "SHAPES.md"
PATHS = {row: result_path(ROOT / "papers", row, "mini") for row in ROWS}
STORED = {row.id: (row, load_result(path)[0], read_json(path)) for row, path in PATHS.items() if path.is_file()}


@pytest.fixture(scope="module")
def page() -> dict[str, list[str]]:
    if not PAGE.is_file():
        pytest.skip("the page of shapes is absent: ../shared/SHAPES.md")
    rows: dict[str, list[str]] = {}
    paper = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"## (00\d) ", line):
            paper = heading.group(1)
        elif paper and line.startswith("| ") and not line.startswith("| id "):
            cells = [c.strip().replace(r"\|", "|") for c in re.split(r"(?<!\\)\|", line)[1:-1]]
            rows[cells[0]] = [paper, *cells[1:]]
    return rows


def test_counts_and_unique_names():
    counts = Counter(row.paper for row in ROWS)
    assert counts == {"000": 9, "001": 16, "002": 20, "003": 22, "004": 18}
    assert len({row.id for row in ROWS}) == len(ROWS) == 85
    assert set(PAPERS) == set(counts)


def test_every_row_is_whole():
    for row in ROWS:
        assert all((row.source, row.shows, row.paper_figure, row.mini)), row.id
        letters = [clause.letter for clause in row.clauses]
        assert letters == [""] or letters == list("abcdefgh"[: len(letters)]), row.id
        assert all(clause.text for clause in row.clauses), row.id
        assert set(row.needs) <= {*WEIGHTS, *TRAINED, *DATA}, row.id
        assert all((c.check is None) == (row.run is None) for c in row.clauses), row.id


def test_texts_equal_the_page(page):
    assert [row.id for row in ROWS] == list(page)
    for row in ROWS:
        paper, source, shows, figure, mini, _, _ = page[row.id]
        assert (row.paper, row.source, row.shows) == (paper, source, shows)
        assert (row.paper_figure, row.mini) == (figure, mini), row.id


def test_clauses_equal_the_page(page):
    for row in ROWS:
        check = page[row.id][5]
        if check == "same, mIoU":  # the clauses of the row above it, measured in mIoU
            check = page["th-fig4-graph"][5].replace("; b", ", mIoU; b") + ", mIoU"
        if check.startswith("a "):
            ours = "; ".join(f"{clause.letter} {clause.text}" for clause in row.clauses)
        else:
            ours = "; ".join(clause.text for clause in row.clauses)
        assert ours == check, row.id


def test_fragile_letters_equal_the_page(page):
    for row in ROWS:
        written = page[row.id][6]
        ours = [clause.letter for clause in row.clauses if clause.fragile]
        everything = [clause.letter for clause in row.clauses]
        expected = {"all": everything, "-": []}.get(written, written.split())
        assert ours == expected, row.id


def test_counts_of_clauses_hold_without_the_page():
    clauses = [clause for row in ROWS for clause in row.clauses]
    assert (len(clauses), sum(clause.fragile for clause in clauses)) == (212, 82)


def test_choose_by_row_paper_gate_or_nothing():
    assert choose(())[0] == ROWS
    assert [row.id for row in choose(["tr-thm1", "gf-gap", "tr-thm1"])[0]] == ["gf-gap", "tr-thm1"]
    assert len(choose(["003"])[0]) == 22
    rows, gates = choose(["V1a"], gates=("V1a", "V2"))
    assert (rows, gates) == ((), ("V1a",))
    assert choose(["gates", "gf-gap"], gates=("V1a", "V2"))[1] == ("V1a", "V2")


def test_an_unknown_row_is_answered_with_near_names():
    with pytest.raises(RegraftError, match="h2t-table1"):
        choose(["h2t-tabel1"])
    with pytest.raises(RecipeError, match="no row or gate"):
        choose(["nonsense"])


def test_missing_names_the_paths_once(tmp_path):
    assert missing(("S4-sup of F", "mnist", "S4-vae of F"), tmp_path) == ("images/fashion_mnist", "images/mnist")
    (tmp_path / "images" / "mnist").mkdir(parents=True)
    assert missing(("mnist",), tmp_path) == ()
    assert missing((), tmp_path) == ()


@pytest.mark.parametrize(
    ("name", "packs"),
    [("tr-fig7abd", {"flowers5"}), ("tr-fig7c", {"flowers5"}), ("tr-fig4", {"mnist", "usps", "tiny_imagenet"})],
)
def test_rows_name_the_targets_that_their_page_leaves_out(name, packs, tmp_path):
    row = next(row for row in ROWS if row.id == name)
    assert {DATA[pack] for pack in packs} <= set(missing(row.needs, tmp_path))


def test_the_pack_has_all_that_rows_need(data_pack):
    assert {path for row in ROWS for path in missing(row.needs, data_pack)} == set()


def test_stored_numbers_are_judged_as_their_files_say():
    """But for the last digits of intervals, which are another processor's."""
    assert len(STORED) > 80
    for name, (row, result, told) in STORED.items():
        found = row.judge(result)
        assert (found.status, found.reason) == (told["status"], told["reason"]), name
        compared = [
            each for each in found.verdicts if each.clause.paper_effect and math.isfinite(each.outcome.estimate)
        ]
        assert [v.clause.letter for v in compared if math.isnan(v.outcome.low)] == [], name  # no label could use it
        clauses = json.loads(json.dumps([verdict.to_json() for verdict in found.verdicts]))
        for now, then in zip(clauses, told["clauses"], strict=True):
            assert {k: v for k, v in now.items() if k not in ("low", "high", "estimate")} == {
                k: v for k, v in then.items() if k not in ("low", "high", "estimate")
            }, name


def test_clauses_that_hold_on_stored_numbers_fail_on_disturbed_ones():
    held = 0
    for name, (row, result, _) in STORED.items():
        for clause in row.clauses if result.arms else ():
            if clause.check(result).holds:
                held += 1
                assert not clause.check(clause.disturb(result)).holds, f"{name} {clause.letter}"
    assert held > 100


def _lost(value):
    return [_lost(each) for each in value] if isinstance(value, list) else None


def test_no_clause_holds_on_numbers_that_are_not_there():
    for row, result, _ in STORED.values():
        arms = {arm: {task: _lost(values) for task, values in table.items()} for arm, table in result.arms.items()}
        with contextlib.suppress(DataError):  # what is refused does not hold
            found = row.judge(replace(result, arms=arms))
            assert [verdict.clause.letter for verdict in found.verdicts if verdict.outcome.holds] == [], row.id
