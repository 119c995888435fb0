"""Heads on a frozen backbone: its features, which of them are chosen, and what each layer gives."""
