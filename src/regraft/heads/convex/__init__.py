"""Ridge-penalised heads on any design, gradient features among them: solvers with a certificate."""
