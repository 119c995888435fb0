"""The rows of paper 003: experiments, checks, and the disturbances after which the checks must fail."""
