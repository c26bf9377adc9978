"""The table `sessions` scores what attacks read of sessions; here it is averaged and summarised."""

import math
from typing import TYPE_CHECKING, Any, cast

from simsplit.metrics.text import combine_ends

if TYPE_CHECKING:
    import pandas as pd

FIGURES = ("ap", "meteor", "token_rouge_l", "token_accuracy", "entity_f1")
LEARNED = ("bert_score", "bleurt")
"""Figures of scenarios that name weights for them."""
COLUMNS = ("round", "attack", "session", "side", *FIGURES)
SIDES = (PROMPT, RESPONSE, BOTH) = ("prompt", "response", "both")
WRITTEN = "written"
"""The row that compares the model's texts with the references: the utility, not an attack."""
SILENT = "(silent)"
"""A control in tables of defences, not an attack: a model that sends and says nothing."""
CEILING = "known_pairs"
"""How the names of upper bounds begin, which are told the texts of some sessions."""
FLOORS = ("random_tokens", "frequent_token", "said_to_nothing")
"""Rows of guesses that need no attack; the last is what the model writes without a prompt."""


def is_ceiling(name: str) -> bool:
    """Return whether a row of the table is an upper bound, not an attack."""
    return name == CEILING or name.startswith(f"{CEILING}_")


def average_over_sessions(table: "pd.DataFrame") -> "pd.DataFrame":
    """Average the figures over sessions, for each judged round, attack and side."""
    if table.empty:
        return table
    groups = table.groupby(["round", "attack", "side"], sort=False, as_index=False)
    means: pd.DataFrame = groups[_list_figures(table)].mean()
    return means


def average_last_judged(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return a row per attack with the means of its last judgement; may be empty.

    Columns are `ap_prompt`, `token_accuracy_response`, ... The floors and the written texts are the
    last rows.
    """
    if table.empty:
        return table
    latest = table.groupby("attack")["round"].transform("max")
    last = table[table["round"] == latest]
    means = last.groupby(["attack", "side"], sort=False)[_list_figures(table)].mean()
    wide = cast("pd.DataFrame", means.unstack("side"))
    wide.columns = wide.columns.map("_".join)
    wide["round"] = last.groupby("attack")["round"].max()
    wide["sessions"] = last.groupby("attack")["session"].nunique()
    own = [name for name in dict.fromkeys(table["attack"]) if name not in (*FLOORS, WRITTEN)]
    return wide.loc[[name for name in (*own, *FLOORS, WRITTEN) if name in wide.index]]


def _list_figures(table: "pd.DataFrame") -> list[str]:
    return [name for name in (*FIGURES, *LEARNED) if name in table]


def find_strongest(last: "pd.DataFrame") -> str | None:
    """Return the attack with the highest AP of both ends, or None without attacks."""
    own = _keep_attacks(last)[f"ap_{BOTH}"].dropna()
    return None if own.empty else str(own.idxmax())


def find_highest_ap(last: "pd.DataFrame", alpha: float | None = None) -> float:
    """Return the highest AP of an attack, or 0 without attacks; upper bounds do not count.

    `alpha` is the weight of the prompt against the response; None is the weight of the run.
    """
    own = _keep_attacks(last)
    read = [float(ap) for ap in own[f"ap_{BOTH}"]]
    if alpha is not None:
        ends = own[[f"ap_{PROMPT}", f"ap_{RESPONSE}"]].itertuples(index=False)
        read = [combine_ends(prompt, response, alpha) for prompt, response in ends]
    return max((ap for ap in read if not math.isnan(ap)), default=0.0)


def _keep_attacks(last: "pd.DataFrame") -> "pd.DataFrame":
    """Leave out guesses, what was written, and upper bounds."""
    ceilings = [name for name in last.index if is_ceiling(str(name))]
    return last.drop(index=[*FLOORS, WRITTEN, *ceilings], errors="ignore")


def summarise_sessions(table: "pd.DataFrame") -> dict[str, Any]:
    """Return the figures of the strongest attack, the best floor, and the utility.

    The summary is empty without attacks on sessions.
    """
    last = average_last_judged(table)
    attack = None if last.empty else find_strongest(last)
    if attack is None:
        return {}
    figures = {f"ap_{side}": get_figure(last, attack, f"ap_{side}") for side in SIDES}
    floors = [get_figure(last, name, f"ap_{BOTH}") for name in FLOORS if name in last.index]
    figures |= {"floor": max(floors, default=0.0), "mp": get_utility(last)}
    counts = {name: int(get_figure(last, attack, name)) for name in ("round", "sessions")}
    return {"sessions": {"attack": attack, **counts, **figures}}


def get_utility(last: "pd.DataFrame") -> float:
    """Return MP: the METEOR of the written texts against the references."""
    return get_figure(last, WRITTEN, f"meteor_{RESPONSE}")


def get_figure(last: "pd.DataFrame", attack: str, figure: str) -> float:
    """Return one figure of an attack from the table of `average_last_judged`."""
    value: Any = last.at[attack, figure]
    return float(value)
