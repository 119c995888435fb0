"""Gaussian processes given kernel matrices or a design: regression, classification, hyperparameters."""
