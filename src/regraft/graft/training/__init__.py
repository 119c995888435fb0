"""Training the backbone: head probing, fine-tuning, a head refitted on what was tuned."""
