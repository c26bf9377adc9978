"""Attacks in a run: what they are fed, when they are judged, and against what."""

from simsplit.attacking.attacking import Attacking, Progress
from simsplit.attacking.judging import Judgement

__all__ = ["Attacking", "Judgement", "Progress"]
