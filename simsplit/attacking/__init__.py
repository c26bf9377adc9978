"""Attacks in a run: what they are given, when they are scored, and against what."""

from simsplit.attacking.attacking import Attacking, Progress
from simsplit.attacking.judging import Judgement

__all__ = ["Attacking", "Judgement", "Progress"]
