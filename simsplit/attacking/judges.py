"""This registry has a judge for each kind of things that attacks recover (`results.recovers`)."""

from typing import Any

from simsplit.attacking.input_judge import InputJudge
from simsplit.attacking.judging import AttackJudge
from simsplit.attacking.label_judge import LabelJudge
from simsplit.attacking.session_judge import SessionJudge

JUDGES: dict[str, type[AttackJudge[Any]]] = {
    "inputs": InputJudge,
    "labels": LabelJudge,
    "sessions": SessionJudge,
}
