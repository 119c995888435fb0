"""Training a backbone from nothing: with labels, or on a task that pictures set themselves."""
