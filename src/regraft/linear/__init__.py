"""The design matrix as a linear operator over named coefficient blocks."""
