"""The training loop, which knows no method: a module, rows, an objective; checkpointed and resumed bit for bit."""
