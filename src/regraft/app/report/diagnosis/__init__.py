"""The sections of a diagnosis and of a ranking of backbones."""
