"""This registry has each kind of things that attacks recover: its figures, guesses and views.

A kind needs a judge (`attacking.judges`) and an entry here. Every table, plot and report shows it
then; `report.presentations` adds what it alone has, such as pictures.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simsplit.metrics.metric_registry import MEMBER_AUC, MEMBER_RATES
from simsplit.metrics.text import combine_ends, compute_defence_score
from simsplit.results.leak_table import CEILING, ORIGINALS, WRITTEN
from simsplit.results.member_leaks import (
    CLUSTERS,
    COIN,
    EPSILON,
    EVEN,
    LABEL,
    LARGEST,
    OF_WEIGHTS,
    summarise_members,
)

if TYPE_CHECKING:
    import pandas as pd

MAJORITY, CHANCE = "majority", "chance"
BEST_AUC, PURITY = "best_auc", "purity"
LEARNED = ("bert_score", "bleurt")
"""Metrics of scenarios that name weights for them."""
SIDES = (PROMPT, RESPONSE, BOTH) = ("prompt", "response", "both")
"""The views of sessions."""
SILENT = "(silent)"
"""A control in tables of defences, not an attack: a model that sends and says nothing."""


@dataclass(frozen=True)
class Worst:
    """An attack's leak is its worst row over views, adapters and rounds, beside its floors."""

    floors: Mapping[str, Sequence[str]]
    """The floors, and which of their columns stand beside a leak: `value`, `high`."""
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Groups of views that have a worst leak of their own, and their views."""
    uncounted: Sequence[str] = ()
    """Figures that are shown and are no leak."""
    overall: Sequence[str] = ()
    """Figures that count in the worst leak over all views, and not in that of one view."""


@dataclass(frozen=True)
class Defence:
    """A score of a defence joins what attacks read at two ends with the utility that it costs."""

    name: str
    """Its heading; in small letters the name of its table."""
    leaks: tuple[str, str, str]
    """The figures of what is read at the two ends, and of both."""
    utility: str
    """The figure of what a model wrote."""
    utility_words: tuple[str, str]
    """The utility's name in words, and in a heading."""
    join: Callable[[float, float, float], float]
    """Weigh the leaks of the two ends, the first by the third argument."""
    score: Callable[[float, float, float], float]
    """Score a leak and a utility against the utility without a defence."""


@dataclass(frozen=True)
class Kind:
    """One kind of things that attacks recover."""

    recovers: str
    """What its attacks name in `AttackConfig.recovers`; each has its judge."""
    metrics: tuple[str, ...]
    """Its figures, in the order of tables. The first that a run has says how much was read."""
    guesses: Mapping[str, str] = field(default_factory=dict)
    """The names of its floors, and their words in tables."""
    by_view: bool = False
    """Whether its table has a row for each view, such as the seat of an attacker."""
    title: str = "what attacks recovered of {count} {kind}"
    """The title of its table; `count` is the number of targets."""
    reserved: tuple[str, ...] = ()
    """Further names in the column `attack` that no attack may have."""
    views: Mapping[str, str] = field(default_factory=dict)
    """The views that attacks have of it, in the order of tables, and their words."""
    unlisted: tuple[str, ...] = ()
    """Figures that its table of one run leaves out."""
    decimals: int | None = None
    """How many decimals its table of one run has; None for four significant digits."""
    success: tuple[str, ...] = ()
    """Figures that say how much an attack reads, before the first of `metrics`."""
    worst: Worst | None = None
    """How its worst leak is chosen; None if its leak is a mean over targets, judged last."""
    defence: Defence | None = None
    """How a defence is scored against its attacks, if there is a score."""
    summarise: "Callable[[pd.DataFrame], dict[str, Any]] | None" = None
    """A function that makes own entries of `summary.json` from the kind's rows."""


_OF_IMAGES = ("mse", "psnr", "ssim", "lpips", "stretched_mse", "correlation")
_OF_TEXTS = ("rouge_l", "token_rouge_l", "meteor", "token_accuracy")
_TOKENS = {"random_tokens": "(random tokens)", "frequent_token": "(the most frequent token)"}
_NEAREST = {"nearest_other": "(the nearest of as many held-out samples)"}
_FEATURES = ("features", "shift", "difference", "sum")
_GRADIENTS = ("gradient", "direction", "recovered", "adapter_gradient")
VIEW_GROUPS = {
    "features": _FEATURES,
    "gradients": _GRADIENTS,
    "both": (*_FEATURES, *_GRADIENTS),
}
"""Groups of labels' views: of what the trunk makes of samples, of what the client sends back, and
all, for attacks that read gradients together with their features."""
KINDS: dict[str, Kind] = {
    "images": Kind(
        "inputs",
        (*_OF_IMAGES, *(f"fg_{name}" for name in _OF_IMAGES[:4]), "label_accuracy"),
        {"black": "(a black image)", "mean_image": "(the mean image)", **_NEAREST},
        reserved=(ORIGINALS,),
        success=("ssim",),
    ),
    "texts": Kind(
        "inputs",
        (*_OF_TEXTS, "batch_rouge_l", "best_rouge_l", "best_meteor", "best_token_accuracy"),
        _TOKENS,
    ),
    "rows": Kind("inputs", ("mse",), {"mean_row": "(the mean row)", **_NEAREST}),
    "labels": Kind(
        "labels",
        ("auc", BEST_AUC, "accuracy", PURITY),
        {MAJORITY: "majority", CHANCE: "chance"},
        views={  # in the order of P3EFT's figures
            "gradient": "gradients of features",
            "direction": "gradients, unit length",
            "recovered": "gradients, recovered from all messages of one server",
            "features": "features",
            "shift": "shift of features",
            "difference": "differences of features",
            "sum": "searched sums of features",
            "adapter_gradient": "gradients of adapters",
        },
        worst=Worst(
            floors={CHANCE: ("value", "high"), MAJORITY: ("value",)},
            groups=VIEW_GROUPS,
            # Papers do not count the purity of clusters, which stands beside their accuracy, and
            # judge the first of several scores alone.
            uncounted=(PURITY,),
            overall=(BEST_AUC,),
        ),
    ),
    "sessions": Kind(
        "sessions",
        ("ap", "meteor", "token_rouge_l", "token_accuracy", "entity_f1", *LEARNED),
        {**_TOKENS, "said_to_nothing": "(what the model says to nothing)"},
        reserved=(WRITTEN,),
        views=dict(zip(SIDES, SIDES, strict=True)),
        unlisted=("meteor", "token_rouge_l"),
        decimals=3,
        success=("ap_both", "ap_response", "ap_prompt"),
        defence=Defence(
            name="DCS",
            leaks=("ap_prompt", "ap_response", "ap_both"),
            utility="meteor_response",
            utility_words=("METEOR", "MP"),
            join=combine_ends,
            score=compute_defence_score,
        ),
    ),
    "members": Kind(
        "members",
        (*MEMBER_RATES, MEMBER_AUC, EPSILON, OF_WEIGHTS),
        {COIN: "(a coin)"},
        by_view=True,
        title="members found among up to {count} samples, half of which were trained on",
        summarise=summarise_members,
    ),
    "attributes": Kind(
        "attributes",
        ("accuracy",),
        {LARGEST: "(the largest class)", LABEL: "(the label alone)"},
        by_view=True,
        title="attributes read of {count} samples",
    ),
    "origins": Kind(
        "origins",
        ("accuracy",),
        {EVEN: "(one of all clients)", CLUSTERS: "(clusters at random)"},
        by_view=True,
        title="clients named of up to {count} samples",
    ),
}


def find_kinds(table: "pd.DataFrame") -> list[str]:
    """Return the kinds in a table of leaks, in the registry's order."""
    held = set(table["kind"]) if len(table) else set()
    return [name for name in KINDS if name in held]


def entitle(kind: str, attack: str, role: str) -> str:
    """Return the title of an attack, a guess or an upper bound in tables."""
    if role == CEILING:
        return f"{attack} (ceiling)"
    return KINDS[kind].guesses.get(attack, attack)


def list_reserved() -> list[str]:
    """List the names that no attack may have, since tables have them beside attacks."""
    return [name for kind in KINDS.values() for name in (*kind.guesses, *kind.reserved)]


def list_recovered() -> Sequence[str]:
    """List what attacks may name as what they recover."""
    return list(dict.fromkeys(kind.recovers for kind in KINDS.values()))
