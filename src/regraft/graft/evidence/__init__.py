"""What a run shows for itself: figures, findings and advice."""
