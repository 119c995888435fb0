"""Whether features suit a task: scores from features and labels, their intervals, and the order of networks."""
