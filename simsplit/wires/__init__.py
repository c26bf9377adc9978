"""Transcripts: recorded wires of any split system, written and read within bounds.

`Transcript.open(folder)` reads what crossed, and never the truth; `Truth.open(folder)` reads the
truth, through a handle of its own, and only judges have one.
"""
