"""Leaks of kinds that are judged by means over targets, at each attack's last judgement."""

import math
from typing import TYPE_CHECKING, Any, cast

from simsplit.results.leak_table import (
    ATTACK,
    FLOOR,
    WRITTEN,
    average,
    has_role,
    keep_kinds,
    list_figures,
    take_last_judged,
    widen,
)
from simsplit.results.recovered_kinds import KINDS, Defence

if TYPE_CHECKING:
    import pandas as pd


def average_last(leaks: "pd.DataFrame", kind: str) -> "pd.DataFrame":
    """Return the means over targets of each attack's last judgement, by view; may be empty."""
    return take_last_judged(average(widen(keep_kinds(leaks, kind))))


def average_by_attack(leaks: "pd.DataFrame", kind: str) -> "pd.DataFrame":
    """Return a row per attack with the means of its last judgement; may be empty.

    Columns are the attack's `role` and `round`, and its figures: `mse`, or by view `ap_prompt`,
    `token_accuracy_response`, ... Floors and written texts are the last rows.
    """
    means = average_last(leaks, kind)
    if means.empty:
        return means
    by_attack = means.groupby("attack", sort=False)[["role", "round"]].first()
    figures = list_figures(means)
    if "view" in means:
        views = list(dict.fromkeys([*KINDS[kind].views, *means["view"]]))
        wide = cast("pd.DataFrame", means.set_index(["attack", "view"])[figures].unstack("view"))
        known = [(figure, view) for figure in figures for view in views if (figure, view) in wide]
        wide = wide[known]
        wide.columns = wide.columns.map("_".join)
    else:
        wide = means.set_index("attack")[figures]
    wide = by_attack.join(wide)
    roles = wide["role"].to_dict()
    return wide.loc[sorted(roles, key=lambda name: (roles[name] in (FLOOR, WRITTEN), roles[name]))]


def find_highest(last: "pd.DataFrame", defence: Defence, weight: float | None = None) -> float:
    """Return the highest leak of an attack at both ends, or 0 without attacks; no upper bound's.

    `weight` is that of the first end against the second; None is that of the run.
    """
    own = has_role(last, ATTACK)
    first, second, both = defence.leaks
    read = [float(leak) for leak in own[both]]
    if weight is not None:
        ends = own[[first, second]].itertuples(index=False)
        read = [defence.join(one, other, weight) for one, other in ends]
    return max((leak for leak in read if not math.isnan(leak)), default=0.0)


def get_utility(last: "pd.DataFrame", defence: Defence) -> float:
    """Return the utility of what a model wrote, against the references; NaN without these."""
    if WRITTEN not in last.index:
        return math.nan
    utility: Any = last.at[WRITTEN, defence.utility]
    return float(utility)


def summarise_strongest(rows: "pd.DataFrame", kind: str) -> dict[str, Any]:
    """Return the figures of the strongest attack, the best floor, and the utility.

    The summary is empty without attacks.
    """
    last, defence = average_by_attack(rows, kind), KINDS[kind].defence
    assert defence is not None, "a kind whose defences are scored"
    both = defence.leaks[-1]
    read = has_role(last, ATTACK)[both].dropna() if len(last) else last
    if read.empty:
        return {}
    attack = str(read.idxmax())
    own, floors = last.loc[attack].to_dict(), has_role(last, FLOOR)[both]
    judged = rows[(rows["attack"] == attack) & (rows["round"] == own["round"])]
    facts = {
        "attack": attack,
        "round": int(own["round"]),
        kind: int(judged["target"].nunique()),
        **{figure: float(own[figure]) for figure in defence.leaks},
        "floor": max(map(float, floors), default=0.0),
    }
    if not math.isnan(utility := get_utility(last, defence)):
        facts[defence.utility_words[1].lower()] = utility
    return {kind: facts}
