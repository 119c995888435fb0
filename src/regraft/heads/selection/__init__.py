"""Which features of which layers a task needs: scores, the search over them, and what it keeps."""
