"""The table of what attacks read of sessions, and its means."""

import math
from typing import TYPE_CHECKING, Any, cast

from simsplit.metrics.ends import of_both_ends

if TYPE_CHECKING:
    import pandas as pd

FIGURES = ("ap", "meteor", "token_accuracy", "entity_f1")
LEARNED = ("bert_score", "bleurt")
"""Figures that are there where a scenario names weights for them."""
COLUMNS = ("round", "attack", "session", "side", *FIGURES)
SIDES = (PROMPT, RESPONSE, BOTH) = ("prompt", "response", "both")
WRITTEN = "written"
"""The row of what the model wrote against the reference: no attack, but the utility."""
FLOORS = ("random_tokens", "frequent_token", "said_to_nothing")
"""Rows that take no attack; the last is what the model says without a prompt."""


def means_of(table: "pd.DataFrame") -> "pd.DataFrame":
    """A row per judged round, attack and side: means over sessions."""
    if table.empty:
        return table
    groups = table.groupby(["round", "attack", "side"], sort=False, as_index=False)
    means: pd.DataFrame = groups[_figures_in(table)].mean()
    return means


def judged_last(table: "pd.DataFrame") -> "pd.DataFrame":
    """A row per attack (what is written and the floors last), with the means of its last judgement:
    `ap_prompt`, `token_accuracy_response`, ...; empty without attacks on sessions.
    """
    if table.empty:
        return table
    latest = table.groupby("attack")["round"].transform("max")
    last = table[table["round"] == latest]
    means = last.groupby(["attack", "side"], sort=False)[_figures_in(table)].mean()
    wide = cast("pd.DataFrame", means.unstack("side"))
    wide.columns = wide.columns.map("_".join)
    wide["round"] = last.groupby("attack")["round"].max()
    wide["sessions"] = last.groupby("attack")["session"].nunique()
    own = [name for name in dict.fromkeys(table["attack"]) if name not in (*FLOORS, WRITTEN)]
    return wide.loc[[name for name in (*own, *FLOORS, WRITTEN) if name in wide.index]]


def _figures_in(table: "pd.DataFrame") -> list[str]:
    return [name for name in (*FIGURES, *LEARNED) if name in table]


def strongest(last: "pd.DataFrame") -> str | None:
    """The attack that reads most of both ends; None where there is none."""
    own = last.drop(index=[*FLOORS, WRITTEN], errors="ignore")[f"ap_{BOTH}"].dropna()
    return None if own.empty else str(own.idxmax())


def most_read(last: "pd.DataFrame", alpha: float | None = None) -> float:
    """The highest AP of an attack, where the prompt weighs alpha against the response (None: as the
    run weighed them); 0 where there is no attack.
    """
    own = last.drop(index=[*FLOORS, WRITTEN], errors="ignore")
    read = [float(ap) for ap in own[f"ap_{BOTH}"]]
    if alpha is not None:
        ends = own[[f"ap_{PROMPT}", f"ap_{RESPONSE}"]].itertuples(index=False)
        read = [of_both_ends(prompt, response, alpha) for prompt, response in ends]
    return max((ap for ap in read if not math.isnan(ap)), default=0.0)


def summarise_sessions(table: "pd.DataFrame") -> dict[str, Any]:
    """What the strongest attack read of sessions, the best floor, and the utility; empty without
    such attacks.
    """
    last = judged_last(table)
    attack = None if last.empty else strongest(last)
    if attack is None:
        return {}
    told = {f"ap_{side}": value_of(last, attack, f"ap_{side}") for side in SIDES}
    floors = [value_of(last, name, f"ap_{BOTH}") for name in FLOORS if name in last.index]
    told |= {"floor": max(floors, default=0.0), "mp": utility_of(last)}
    counts = {name: int(value_of(last, attack, name)) for name in ("round", "sessions")}
    return {"sessions": {"attack": attack, **counts, **told}}


def utility_of(last: "pd.DataFrame") -> float:
    """MP: METEOR of what was written against the references."""
    return value_of(last, WRITTEN, f"meteor_{RESPONSE}")


def value_of(last: "pd.DataFrame", attack: str, figure: str) -> float:
    """One figure of an attack, of what `judged_last` gives."""
    value: Any = last.at[attack, figure]
    return float(value)
