"""What a run leaves: a network with a solved head, its parts, what it predicts, and the file that keeps it."""
