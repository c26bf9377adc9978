"""Where clients live: in this process."""
