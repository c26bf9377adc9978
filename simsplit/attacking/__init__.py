"""A run gives its attacks packets and knowledge, and scores what they recover against the truth."""

from simsplit.attacking.attack_judge import Judgement
from simsplit.attacking.run_attacks import Attacking, Progress

__all__ = ["Attacking", "Judgement", "Progress"]
