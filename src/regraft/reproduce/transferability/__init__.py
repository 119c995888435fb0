"""The experiments of paper 002 (transferability)."""
