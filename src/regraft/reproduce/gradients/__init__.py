"""The experiments of paper 000, Gradients as Features."""
