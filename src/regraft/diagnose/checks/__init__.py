"""Instruments pointed at a case: each gives findings and a picture, or says why it does not apply."""
