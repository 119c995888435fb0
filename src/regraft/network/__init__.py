"""Pretrained networks as pure functions with named parameters, taps and preprocessing."""
