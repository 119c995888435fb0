"""Rows and labels: folders, tables, arrays and rendered tasks become a Manifest."""
