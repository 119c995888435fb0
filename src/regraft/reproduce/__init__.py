"""The rows that regraft must reproduce, the words they are written in, and the gates before them."""

from regraft.reproduce.environment import environment
from regraft.reproduce.gates import GATES, Gate, GateContext, convex
from regraft.reproduce.harness import load_result, reproduce, result_path
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.registry import PAPERS, ROWS, choose
from regraft.reproduce.report import Report, RowReport
from regraft.reproduce.result import GateReport, Result
from regraft.reproduce.row import Clause, Context, Judgement, Row, Scale

__all__ = [
    "GATES",
    "PAPERS",
    "ROWS",
    "Clause",
    "Context",
    "Gate",
    "GateContext",
    "GateReport",
    "Judgement",
    "Outcome",
    "Report",
    "Result",
    "Row",
    "RowReport",
    "Scale",
    "all_of",
    "choose",
    "convex",
    "environment",
    "load_result",
    "reproduce",
    "result_path",
]
