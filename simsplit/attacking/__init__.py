"""Attacks in a run: what they are given, when they are scored, and against what."""

from simsplit.attacking.judging import Judgement
from simsplit.attacking.run_attacks import Attacking, Progress

__all__ = ["Attacking", "Judgement", "Progress"]
