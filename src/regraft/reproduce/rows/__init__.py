"""The 85 rows, one file per paper."""
