"""Verdicts on planted measurements: orders that hold, fail, lie inside the spread."""

import math

import pytest
from scipy import stats

from simsplit.errors import ScenarioError
from simsplit.evidence.measures import Measure
from simsplit.evidence.statements import parse_statement
from simsplit.evidence.verdicts import (
    ClaimVerdict,
    Judged,
    VerdictCounts,
    combine_most,
    combine_verdicts,
    count_verdicts,
    judge,
)
from simsplit.metrics.intervals import clopper_pearson

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
    "equal on every seed": ("raw > lightsplit-8", ClaimVerdict.NOT_SETTLED, (5, 6, 7), (5, 6, 7)),
    "one difference on every seed": (
        "raw > lightsplit-8",
        ClaimVerdict.NOT_SETTLED,
        (6, 7, 8),
        (5, 6, 7),
    ),
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
    assert judged.interval is not None
    return judged.interval


def judge_with(text: str, measure: Measure, **rows: tuple[float, ...]) -> Judged:
    """Judge a statement on rows a and b of one figure."""
    (comparison,) = parse_statement(text, ("a", "b"), "holds")
    measures = dict.fromkeys(rows, measure)
    return judge(comparison, {name: seeds(*values) for name, values in rows.items()}, measures)


def test_equal_values_have_the_step_of_their_measure():
    """An F1 of 1 on three seeds is 1 within one more flag, not 1 without an error."""
    step = Measure(0, 1, step=1 / 3)
    exact = judge_with("a >= 0.9", step, a=(1.0, 1.0, 1.0))
    assert exact.verdict is ClaimVerdict.NOT_SETTLED
    assert interval(exact) == pytest.approx((0.1 - 1 / 3, 0.1 + 1 / 3))
    assert judge_with("a >= 0.6", step, a=(1.0, 1.0, 1.0)).verdict is ClaimVerdict.HOLDS
    two = judge_with("a - b <= 0.5", step, a=(1.0, 1.0, 1.0), b=(1.0, 1.0, 1.0))
    assert interval(two) == pytest.approx((-0.5 - 2 / 3, -0.5 + 2 / 3))
    bytes_ = judge_with("a / b ~ 8 within 0.1", Measure(0, step=1), a=(800.0,) * 3, b=(100.0,) * 3)
    assert bytes_.verdict is ClaimVerdict.HOLDS
    assert interval(bytes_)[1] == pytest.approx(8 * (1 / 800 + 1 / 99) - 8 / 99 + 8 / 100, rel=0.05)


def test_a_step_widens_no_interval_that_is_wider():
    spread = (0.8, 0.9, 1.0)
    wide = judge_with("a >= 0.5", Measure(0, 1, step=0.01), a=spread)
    assert interval(wide) == pytest.approx(interval(judge_with("a >= 0.5", Measure(), a=spread)))


def test_what_has_no_spread_and_no_known_step_is_not_settled():
    judged = judge_with("a >= 0.9", Measure(), a=(1.0, 1.0, 1.0))
    assert judged.verdict is ClaimVerdict.NOT_SETTLED
    assert judged.why_open


def test_a_counted_share_has_its_exact_interval():
    """Two turns a seed, all flagged on three seeds: 6 of 6, which leaves shares down to .54."""
    share = Measure(0, 100, trials=2, whole=100)
    judged = judge_with("a >= 99", share, a=(100.0, 100.0, 100.0))
    low, high = clopper_pearson(6, 6)
    assert interval(judged) == pytest.approx((100 * low - 99, 100 * high - 99))
    assert judged.verdict is ClaimVerdict.NOT_SETTLED
    assert judge_with("a > 50", share, a=(100.0, 100.0, 100.0)).verdict is ClaimVerdict.HOLDS


def test_a_difference_of_counted_shares_has_newcombes_interval():
    share = Measure(0, 1, trials=10)
    judged = judge_with("a > b", share, a=(1.0, 1.0), b=(0.5, 0.5))
    (a_low, _), (_, b_high) = clopper_pearson(20, 20), clopper_pearson(10, 20)
    assert interval(judged)[0] == pytest.approx(0.5 - math.hypot(1 - a_low, b_high - 0.5))


def test_seeds_that_differ_more_than_their_counts_keep_students_interval():
    share = Measure(0, 1, trials=1000)
    spread = (0.2, 0.5, 0.8)
    assert interval(judge_with("a > 0.1", share, a=spread)) == pytest.approx(
        interval(judge_with("a > 0.1", Measure(), a=spread))
    )


def test_most_is_more_than_half():
    holds, fails, settled = ClaimVerdict.HOLDS, ClaimVerdict.FAILS, ClaimVerdict.NOT_SETTLED
    assert combine_most([holds, holds, fails]) is holds
    assert combine_most([holds, fails, fails]) is fails
    assert combine_most([holds, fails]) is settled
    assert combine_most([holds, settled, settled]) is settled
    assert combine_most([ClaimVerdict.NOT_MEASURED]) is ClaimVerdict.NOT_MEASURED
    assert combine_most([holds, ClaimVerdict.OUT_OF_REACH]) is holds
    assert combine_most([ClaimVerdict.OUT_OF_REACH]) is ClaimVerdict.OUT_OF_REACH


def test_comparisons_are_counted_as_holding_failing_and_open():
    counts = count_verdicts(ClaimVerdict)
    assert (counts.holds, counts.fails, counts.open, counts.out_of_reach) == (1, 1, 2, 1)


def test_counts_are_written_with_their_verbs() -> None:
    assert str(VerdictCounts(holds=1, fails=2, open=3)) == "1 holds, 2 fail, 3 open"
    assert str(VerdictCounts(fails=1, out_of_reach=4)) == "0 hold, 1 fails, 0 open, 4 out of reach"


def test_the_worst_of_several_counts():
    holds, fails, settled = ClaimVerdict.HOLDS, ClaimVerdict.FAILS, ClaimVerdict.NOT_SETTLED
    missing, beyond = ClaimVerdict.NOT_MEASURED, ClaimVerdict.OUT_OF_REACH
    assert combine_verdicts([holds, holds]) is holds
    assert combine_verdicts([holds, settled]) is settled
    assert combine_verdicts([missing, holds]) is missing
    assert combine_verdicts([missing, fails]) is fails
    assert combine_verdicts([beyond, holds]) is holds
    assert combine_verdicts([beyond]) is beyond
    assert combine_verdicts([]) is missing


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
