"""From data and a backbone, or a run, to a diagnosis and to a ranking of backbones."""
