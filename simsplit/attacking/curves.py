"""Curves of attacks show how well each attack does with only a part of its iterations.

An attack is built anew for each point, so that a point is the result of a shorter attack, including
its schedule of learning rates. If a curve still rises at its end, the attack needs more iterations.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from simsplit.attacking.judging import Row
from simsplit.attacks import AttackConfig
from simsplit.results.recovers import RECOVERS


def shorten(config: AttackConfig, share: float) -> AttackConfig:
    """Return the same attack with a part of its iterations, at least one of each kind."""
    whole = {name: getattr(config, name) for name in config.effort if hasattr(config, name)}
    # A field that is 0 or null sets no amount of work that could shrink.
    less = {name: max(1, round(share * n)) for name, n in whole.items() if n}
    return config.model_copy(update=less)


def make_point(config: AttackConfig, share: float, rows: Sequence[Row]) -> Row:
    """Return a point of an attack's curve: the means of its figures over the targets."""
    own = [row for row in rows if row["attack"] == config.title]
    no_figures = (*RECOVERS[config.recovers].place, "label")
    names = [name for name in own[0] if name not in no_figures]
    figures = cast("Sequence[Mapping[str, float]]", own)
    means = {name: sum(float(row[name]) for row in figures) / len(own) for name in names}
    return {"round": own[0]["round"], "attack": config.title, "share": round(share, 4), **means}
