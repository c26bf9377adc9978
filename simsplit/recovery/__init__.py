"""Attacks in a run: what they are fed, when they are judged, and against what."""

from simsplit.recovery.feeding import Progress, Recovery
from simsplit.recovery.judging import Judgement

__all__ = ["Judgement", "Progress", "Recovery"]
