"""The evidence of a run: scores with spread, costs, findings. JSON in, JSON out, no tensors."""

from regraft.record.finding import Finding, Severity, counted
from regraft.record.ledger import Cost, Ledger
from regraft.record.record import Candidate, Record, Score, figure, now

__all__ = ["Candidate", "Cost", "Finding", "Ledger", "Record", "Score", "Severity", "counted", "figure", "now"]
