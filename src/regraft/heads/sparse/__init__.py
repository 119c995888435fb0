"""The exact group lasso and lasso: few features or few layers, with a certificate of optimality."""
