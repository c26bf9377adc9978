"""Verdicts on planted measurements: orders that hold, fail, lie inside the spread."""

import math

import pytest
from scipy import stats

from simsplit.errors import ScenarioError
from simsplit.evidence.statements import parse_statement
from simsplit.evidence.verdicts import ClaimVerdict, Judged, judge, together

ROWS = ("raw", "lightsplit-8", "lightsplit-32")


def judge_text(text: str, *rows: dict[int, float]) -> list[ClaimVerdict]:
    measured = dict(zip(ROWS, rows, strict=False))
    return [judge(one, measured).verdict for one in parse_statement(text, ROWS, "holds")]


def seeds(*values: float, first: int = 0) -> dict[int, float]:
    return dict(enumerate(values, first))


CASES = {
    "an order that holds": ("raw > lightsplit-8", ClaimVerdict.HOLDS, (90, 91, 92), (80, 81.5, 82)),
    "reversed": ("raw > lightsplit-8", ClaimVerdict.FAILS, (80, 81.5, 82), (90, 91, 92)),
    "inside the spread": (
        "raw > lightsplit-8",
        ClaimVerdict.NOT_SETTLED,
        (90, 80, 92),
        (85, 86, 84),
    ),
    "one seed alone": ("raw > lightsplit-8", ClaimVerdict.NOT_SETTLED, (90,), (10,)),
    "one seed against": ("raw > lightsplit-8", ClaimVerdict.NOT_SETTLED, (10,), (90,)),
    "a row without a measurement": (
        "raw > lightsplit-8",
        ClaimVerdict.NOT_MEASURED,
        (90, 91, 92),
        (),
    ),
    "a difference below": (
        "raw - lightsplit-8 < 12",
        ClaimVerdict.HOLDS,
        (90, 91, 92),
        (80, 81, 82.5),
    ),
    "a difference above": (
        "raw - lightsplit-8 < 5",
        ClaimVerdict.FAILS,
        (90, 91, 92),
        (80, 81, 82.5),
    ),
    "a share": ("lightsplit-8 / raw >= 0.95", ClaimVerdict.FAILS, (90, 91, 92), (80, 81, 82.5)),
    "level": ("raw ~ lightsplit-8 within 2", ClaimVerdict.HOLDS, (90, 91, 92), (90.1, 90.9, 92)),
    "level, too wide": (
        "raw ~ lightsplit-8 within .1",
        ClaimVerdict.NOT_SETTLED,
        (90, 91),
        (90.1, 91.9),
    ),
    "apart": ("raw ~ lightsplit-8 within 2", ClaimVerdict.FAILS, (90, 91, 92), (80, 81, 82.5)),
    "equal on every seed": ("raw > lightsplit-8", ClaimVerdict.FAILS, (5, 6, 7), (5, 6, 7)),
    "equal, and so at least": ("raw >= lightsplit-8", ClaimVerdict.HOLDS, (5, 6, 7), (5, 6, 7)),
    "not finite": ("raw > lightsplit-8", ClaimVerdict.NOT_SETTLED, (5, math.nan, 7), (1, 2, 3)),
}


@pytest.mark.parametrize(("text", "verdict", "first", "second"), CASES.values(), ids=CASES)
def test_planted_measurements_get_their_verdict(text, verdict, first, second):
    assert judge_text(text, seeds(*first), seeds(*second)) == [verdict]


def test_a_chain_is_judged_step_by_step():
    rows = [seeds(90, 91, 92), seeds(80, 81, 82.5), seeds(80.5, 80.7, 82.4)]
    assert judge_text("raw > lightsplit-8 > lightsplit-32", *rows) == [
        ClaimVerdict.HOLDS,
        ClaimVerdict.NOT_SETTLED,
    ]


def test_what_all_seeds_share_is_no_spread():
    """Pairs by seed: seeds differ by ten points, the difference is one in all of them."""
    better, worse = seeds(60, 70, 80), seeds(59, 69.1, 78.9)
    assert judge_text("raw > lightsplit-8", better, worse) == [ClaimVerdict.HOLDS]
    other_seeds = {seed + 10: value for seed, value in worse.items()}
    assert judge_text("raw > lightsplit-8", better, other_seeds) == [ClaimVerdict.NOT_SETTLED]


def test_intervals_are_scipys():
    first, second = (90.0, 91.0, 93.5), (88.0, 90.0, 92.0)
    (comparison,) = parse_statement("raw > lightsplit-8", ROWS, "holds")
    paired = judge(comparison, {"raw": seeds(*first), "lightsplit-8": seeds(*second)})
    low, high = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert interval(paired) == pytest.approx((low, high))
    apart = judge(comparison, {"raw": seeds(*first), "lightsplit-8": seeds(*second, first=7)})
    low, high = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert interval(apart) == pytest.approx((low, high))


def interval(judged: Judged) -> tuple[float, float]:
    assert judged.half is not None
    return judged.mean - judged.half, judged.mean + judged.half


def test_the_worst_of_several_counts():
    assert together([ClaimVerdict.HOLDS, ClaimVerdict.HOLDS]) is ClaimVerdict.HOLDS
    assert together([ClaimVerdict.HOLDS, ClaimVerdict.NOT_SETTLED]) is ClaimVerdict.NOT_SETTLED
    assert together([ClaimVerdict.NOT_MEASURED, ClaimVerdict.HOLDS]) is ClaimVerdict.NOT_MEASURED
    assert together([ClaimVerdict.NOT_MEASURED, ClaimVerdict.FAILS]) is ClaimVerdict.FAILS
    assert together([ClaimVerdict.OUT_OF_REACH, ClaimVerdict.HOLDS]) is ClaimVerdict.HOLDS
    assert together([ClaimVerdict.OUT_OF_REACH]) is ClaimVerdict.OUT_OF_REACH
    assert together([]) is ClaimVerdict.NOT_MEASURED


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raw", "compares nothing"),
        ("raw > lightsplt-8", "'lightsplit-8'"),
        ("raw ~ lightsplit-8", "within"),
        ("raw > lightsplit-8 within 2", "within"),
        ("raw ~ lightsplit-8 within -2", "above 0"),
        ("raw - > 2", "rows and numbers"),
        ("1 > 2", "numbers alone"),
        ("raw > __import__('os')", "unknown row"),
        ("raw > inf", "unknown row"),
    ],
)
def test_what_is_no_statement_is_refused_by_its_place(text, reason):
    with pytest.raises(ScenarioError) as refused:
        parse_statement(text, ROWS, "table4.holds.0")
    assert refused.value.field == "table4.holds.0"
    assert reason in refused.value.reason
