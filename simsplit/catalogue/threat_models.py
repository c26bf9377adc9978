"""Two tables of facts: what each attack assumes of its attacker, and what a scenario must keep.

The first is read from attacks' threats, the second from the rules by which scenarios are checked.
"""

from collections.abc import Mapping
from typing import Any

from simsplit.attacks import AttackConfig
from simsplit.methods.method import NUMBERS, TEXTS
from simsplit.needs import Given, join_needs
from simsplit.report.tables import Table
from simsplit.scenario.refusals import RULES

_RECOVERED = {"sessions": "tokens of prompts and responses"}
_IN_COLUMNS = (Given.CROSSES, Given.SAMPLES, Given.READABLE, Given.PUBLIC)
"""Needs that other columns name in words of their own."""


def tabulate_threats(attacks: Mapping[str, type[Any]]) -> Table:
    """Return a row for each attack with default options."""
    rows = [(kind, *_describe(config())) for kind, config in attacks.items()]
    columns = ("attack", "attacker", "sits at", "sees", "knows", "needs", "recovers")
    return Table("what attacks assume, with default options", columns, rows, "lllllll")


def _describe(attack: AttackConfig) -> tuple[str, ...]:
    threat = attack.whole_threat
    seen = ", ".join(each.value.words for each in threat.sees)
    inputs = {TEXTS: "tokens", NUMBERS: "images, or the values of rows"}
    others = join_needs(need for need in attack.needs if need.what not in _IN_COLUMNS)
    return (
        threat.attacker,
        ", ".join(threat.roles),
        f"{seen} ({threat.when.value.words})",
        ", ".join(each.value.words for each in threat.knows),
        "; ".join(filter(None, (others, threat.limits))),
        inputs.get(attack.modalities, "images")
        if attack.recovers == "inputs"
        else _RECOVERED.get(attack.recovers, attack.recovers),  # or a kind of a plugin's own
    )


def tabulate_rules() -> Table:
    """Return a row for each rule of scenarios, in the order in which they are checked."""
    rows = [
        (occasion.value, rule.severity, rule.field, rule.about)
        for occasion, rules in RULES.items()
        for rule in rules
    ]
    columns = ("when", "severity", "field", "what is checked")
    return Table("what is refused, and what is warned of", columns, rows, "llll")
