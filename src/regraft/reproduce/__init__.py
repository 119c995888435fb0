"""The rows that regraft must reproduce, the words they are written in, and the gates before them."""
