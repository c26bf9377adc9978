"""The two sides of the cut, client and server, and nothing of each other."""
