"""This room runs clients: in this process, or on several hosts by Ray."""
