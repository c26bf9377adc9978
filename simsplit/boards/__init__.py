"""Boards: every defence at the cut against every attack that suits it, with utility and bytes."""
