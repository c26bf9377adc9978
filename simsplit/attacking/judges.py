"""This registry has a judge for each kind of `results.recovered_kinds`."""

from typing import Any

from simsplit.attacking.attack_judge import AttackJudge
from simsplit.attacking.attribute_judge import AttributeJudge
from simsplit.attacking.input_judge import InputJudge
from simsplit.attacking.label_judge import LabelJudge
from simsplit.attacking.member_judge import MemberJudge
from simsplit.attacking.origin_judge import OriginJudge
from simsplit.attacking.session_judge import SessionJudge

JUDGES: dict[str, type[AttackJudge[Any]]] = {
    "inputs": InputJudge,
    "labels": LabelJudge,
    "sessions": SessionJudge,
    "members": MemberJudge,
    "attributes": AttributeJudge,
    "origins": OriginJudge,
}
