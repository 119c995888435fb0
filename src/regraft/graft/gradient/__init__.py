"""*Gradients as Features*: heads on the derivatives of a network by its own parameters."""
