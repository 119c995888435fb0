"""Dense labels: a head on every position of a feature map, scored on the pixels of the masks."""
