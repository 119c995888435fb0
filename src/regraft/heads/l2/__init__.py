"""Heads with a squared penalty: ridge in the eigenbasis, and logistic heads by batched Newton or L-BFGS."""
