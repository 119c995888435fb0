"""One file for each place that networks come from; each imports its package only when it is used."""
