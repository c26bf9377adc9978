"""The judge of each kind of things that attacks recover (see `results.recovers`)."""

from typing import Any

from simsplit.attacking.inputs import InputJudge
from simsplit.attacking.judging import Judge
from simsplit.attacking.labels import LabelJudge
from simsplit.attacking.sessions import SessionJudge

JUDGES: dict[str, type[Judge[Any]]] = {
    "inputs": InputJudge,
    "labels": LabelJudge,
    "sessions": SessionJudge,
}
