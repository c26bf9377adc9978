"""A run in progress: its live parts, and what keeps watch over them from round to round."""
