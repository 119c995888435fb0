"""Rows of paper 001, Fast adaptation with linearized neural networks."""
