"""Curves of attacks show how well each attack does with only a part of its iterations.

An attack is built anew for each point, so that a point is the result of a shorter attack, including
its schedule of learning rates. If a curve still rises at its end, the attack needs more iterations.
"""

from collections.abc import Sequence
from typing import cast

from simsplit.attacks import AttackConfig
from simsplit.results.leak_table import Row


def shorten(config: AttackConfig, share: float) -> AttackConfig:
    """Return the same attack with a part of its iterations, at least one of each kind."""
    whole = {name: getattr(config, name) for name in config.effort if hasattr(config, name)}
    # A field that is 0 or null sets no amount of work that could shrink.
    less = {name: max(1, round(share * n)) for name, n in whole.items() if n}
    return config.model_copy(update=less)


def make_point(config: AttackConfig, share: float, rows: Sequence[Row]) -> Row:
    """Return a point of an attack's curve: the means of its figures over the targets.

    A figure that some targets lack, as an image without a foreground has none of it, is averaged
    over the others.
    """
    own = [row for row in rows if row["attack"] == config.title]
    known: dict[str, list[float]] = {}
    for row in own:
        known.setdefault(str(row["metric"]), []).append(cast("float", row["value"]))
    means = {name: sum(values) / len(values) for name, values in known.items()}
    return {"round": own[0]["round"], "attack": config.title, "share": round(share, 4), **means}
