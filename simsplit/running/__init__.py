"""A run in progress: its live parts, and the observers that save, stop and describe it."""
