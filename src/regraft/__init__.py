"""regraft grafts a new task onto a pretrained network."""
