"""The rows that regraft must reproduce, the words they are written in, and the gates before them."""

from regraft.reproduce.harness import reproduce
from regraft.reproduce.registry import ROWS

__all__ = ["ROWS", "reproduce"]
