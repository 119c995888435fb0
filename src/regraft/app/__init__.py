"""Command line and report."""
