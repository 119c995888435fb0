"""Losses, penalties and solvers: a Design and labels become a Readout."""
