"""Curves of attacks: how near each comes with a part of its iterations.

An attack is made anew for each point, so that a point is what a shorter attack comes to, schedules
of learning rates and all; whoever sees the curve still rise should give the attack more.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from simsplit.attacking.judging import Row
from simsplit.attacks import AttackConfig
from simsplit.results.recovers import RECOVERS


def shortened(config: AttackConfig, share: float) -> AttackConfig:
    """The same attack with a part of its iterations, at least one of each kind."""
    whole = {name: getattr(config, name) for name in config.effort if hasattr(config, name)}
    less = {name: max(1, round(share * n)) for name, n in whole.items() if n}
    return config.model_copy(update=less)


def point(config: AttackConfig, share: float, rows: Sequence[Row]) -> Row:
    """A point of an attack's curve: its figures, means over targets."""
    own = [row for row in rows if row["attack"] == config.title]
    aside = (*RECOVERS[config.recovers].place, "label")
    names = [name for name in own[0] if name not in aside]
    figures = cast("Sequence[Mapping[str, float]]", own)
    means = {name: sum(float(row[name]) for row in figures) / len(own) for name in names}
    return {"round": own[0]["round"], "attack": config.title, "share": round(share, 4), **means}
