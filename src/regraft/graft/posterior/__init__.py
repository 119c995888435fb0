"""The finite neural tangent kernel as a Gaussian process: adaptation as posterior inference."""
