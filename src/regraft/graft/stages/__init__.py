"""What recipes are made of: frozen values that say what is done, and how."""
