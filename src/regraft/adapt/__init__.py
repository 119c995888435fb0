"""Recipes of frozen stages, the scikit-learn face and the artifact."""
