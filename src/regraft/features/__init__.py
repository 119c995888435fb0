"""One pass of the backbone: plan what is needed, sweep once, store it."""
