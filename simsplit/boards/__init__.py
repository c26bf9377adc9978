"""Boards hold the defences of a track against its attacks, and a user's own among them."""
