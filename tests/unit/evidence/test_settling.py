"""Seeds until settled: looks err in 5 % at most, the cheapest come first, the hopeless are left."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from gists import says
from scipy.special import stdtrit

from simsplit.commands import table_measuring
from simsplit.evidence import settling
from simsplit.evidence.evidence_tables import build_table
from simsplit.evidence.measurements import Measurement, add, read
from simsplit.evidence.papers import find_table
from simsplit.evidence.reproducing import Reproduction
from simsplit.evidence.row_code import write_code
from simsplit.evidence.settling import HOPELESS, choose_next, find_chance, find_prospects
from simsplit.evidence.statements import Comparison, Side
from simsplit.evidence.verdicts import LOOKS, ClaimVerdict, Judged, find_confidence, judge

DRAWS = 20_000


def count_errors(draws, confidences):
    """Return the share of draws in which a look says what is not so: that the mean is above 0."""
    settled, wrong = np.zeros(len(draws), bool), np.zeros(len(draws), bool)
    for seeds, confidence in confidences.items():
        seen = draws[:, :seeds]
        half = stdtrit(seeds - 1, (1 + confidence) / 2) * seen.std(1, ddof=1) / np.sqrt(seeds)
        mean = seen.mean(1)
        wrong |= ~settled & (mean > half)
        settled |= np.abs(mean) > half
    return wrong.mean()


@pytest.mark.parametrize("planned", [3, 5])
def test_verdicts_are_95_percent_sure_over_all_looks(planned):
    draws = np.random.default_rng(7).standard_normal((DRAWS, max(LOOKS)))
    looks = [each for each in LOOKS if each >= planned]
    assert count_errors(draws, {n: find_confidence(n, planned) for n in looks}) <= 0.05
    # the interval of each look by itself is not enough, which is why later ones are wider
    assert count_errors(draws, dict.fromkeys(LOOKS, 0.95)) > 0.06


@pytest.mark.parametrize(("name", "seeds"), [("mixguard/figure5", 10), ("lightsplit/table3", 3)])
def test_a_table_plans_the_seeds_that_its_sweep_has(name, seeds):
    # ten planned seeds are one look, whose interval need not be wider
    table = build_table(find_table(name), "small")
    assert table.planned == seeds
    assert find_confidence(seeds, table.planned) == 0.95


def test_a_table_plans_the_fewest_seeds_of_its_scenarios():
    cells = [SimpleNamespace(planned=seeds) for seeds in (6, 3)]
    table = replace(build_table(find_table("lightsplit/table3"), "small"), cells=cells)
    assert table.planned == 3


ABOVE = Comparison(Side(("a",)), ">", Side(("b",)))


def judge_values(values, planned=3):
    rows = {"a": dict(enumerate(values)), "b": dict.fromkeys(range(len(values)), 0.0)}
    return judge(ABOVE, rows, planned=planned)


def test_the_verdict_has_the_interval_of_its_look():
    values = [1.0, 3.0, 5.0, 0.5, 6.0]
    planned, later = judge_values(values, 5), judge_values(values)
    assert planned.verdict is ClaimVerdict.HOLDS
    assert later.verdict is ClaimVerdict.NOT_SETTLED
    assert later.interval[0] < 0 < planned.interval[0]


@pytest.mark.parametrize("seeds", [5, 10])
def test_of_what_is_open_as_many_settle_as_foreseen(seeds):
    """Three seeds are seen of 1,000 statements, whose true means and spreads vary widely.

    A chance that takes what was seen as true foresees far too many: large effects shrink.
    """
    rng = np.random.default_rng(3)
    spreads = np.exp(rng.uniform(0, 3, 8000))[:, None]
    draws = rng.uniform(-20, 20, 8000)[:, None] + spreads * rng.standard_normal((8000, seeds))

    def is_settled(count):
        half = stdtrit(count - 1, (1 + find_confidence(count)) / 2) / np.sqrt(count)
        seen = draws[:, :count]
        return np.abs(seen.mean(1)) > half * seen.std(1, ddof=1)

    is_open = np.flatnonzero(~is_settled(3))[:1000]
    chances = []
    for seen in draws[is_open, :3]:
        known = (ABOVE, ClaimVerdict.NOT_SETTLED, 3, seen.mean(), (-1.0, 3.0), seen.std(ddof=1))
        chances.append(find_chance(Judged(*known), seeds, 3))
    assert np.mean(chances) == pytest.approx(is_settled(seeds)[is_open].mean(), abs=0.04)


@pytest.fixture
def plant(paper):
    """Write rows of a statement `raw > noise-50` by the differences of their seeds."""

    def write(*differences, minutes=2.0):
        paper.rows.unlink(missing_ok=True)
        cells = build_table(find_table("tiny/table1"), "small", seeds=range(len(differences))).cells
        add(
            paper.rows,
            [
                Measurement(
                    setting=cell.setting,
                    seed=cell.seed,
                    figure="accuracy",
                    value=50 + differences[cell.seed] * (cell.axes["method"] == "raw"),
                    digest=cell.digests["accuracy"],
                    code=write_code(cell.uses.code),
                    version="1",
                    commit="c",
                    command="x",
                    machine="m",
                    threads=1,
                    minutes=minutes,
                    date="2026-01-01",
                )
                for cell in cells
            ],
        )
        return build_table(find_table("tiny/table1"), "small")

    return write


def test_an_open_statement_says_what_would_settle_it_and_at_what_price(plant, simsplit):
    (prospect,) = find_prospects(plant(4.0, 10.0, 16.0), most=10)
    assert prospect.seeds in LOOKS
    assert prospect.chance > 0.7
    seeds = range(3, prospect.seeds)
    assert {chosen.cell.seed for chosen in prospect.cells} == {*seeds}
    assert prospect.minutes == 2 * 2 * len(seeds)
    (described,) = json.loads(simsplit("papers", "tiny/table1", "--json")[1])
    assert described["prospects"][0]["seeds"] == prospect.seeds
    assert says(simsplit("papers", "tiny/table1")[1], f"open ... {prospect.seeds} seeds ... min")


def test_open_statements_of_all_tables_are_listed_with_their_price(plant, simsplit):
    plant(4.0, 10.0, 16.0)
    (listed,) = json.loads(simsplit("papers", "--open", "--json")[1])
    assert (listed["table"], listed["why_not"]) == ("tiny/table1", "")
    out = simsplit("papers", "--open")[1]
    assert says(out, f"tiny/table1 ... {listed['seeds']} seeds ... min")
    assert says(out, "1 statement open ... 1, in about ... min")
    plant(10.0, 10.5, 11.0)
    assert json.loads(simsplit("papers", "--open", "--json")[1]) == []


def test_a_look_measures_no_more_than_its_seeds(plant):
    (prospect,) = find_prospects(plant(1.0, 6.0, 14.0), most=10)
    assert prospect.seeds > 5
    assert {chosen.cell.seed for chosen in choose_next([prospect]).cells} == {3, 4}


def test_no_look_comes_before_the_seeds_that_a_table_plans(plant):
    """The level of these seeds allows for one look, not for one at each number before them."""
    (prospect,) = find_prospects(plant(1.0, 6.0, 14.0), most=10)
    cells = [replace(each, cell=replace(each.cell, planned=7)) for each in prospect.cells]
    look = choose_next([replace(prospect, cells=cells)]).cells
    assert {chosen.cell.seed for chosen in look} == {3, 4, 5, 6}


def test_a_cell_that_failed_is_not_measured_again_and_holds_up_no_other_statement(
    plant, monkeypatch
):
    (prospect,) = find_prospects(plant(1.0, 6.0, 14.0), most=10)
    broken, other = prospect.cells[0], prospect.cells[-1]
    sound = replace(prospect, cells=[replace(other, cell=replace(other.cell, seed=3))])
    looks = []

    def measure(selection, _):
        looks.append(selection.cells)
        ended = sound.cells if len(looks) == 1 else []
        return Reproduction(measured=[*ended], failed={broken.name: "no model"})

    monkeypatch.setattr(settling, "find_prospects", lambda *_, **__: [prospect, sound])
    monkeypatch.setattr(table_measuring, "_measure_selection", measure)
    monkeypatch.setattr(table_measuring, "build_again", lambda built: built)
    quiet = table_measuring.MeasuringOptions(quiet=True)
    outcome = table_measuring.settle_open([prospect.table], {}, 10, quiet)
    first, second = looks
    assert broken in first
    assert second == sound.cells
    assert [*outcome.failed] == [broken.name]


def test_what_is_settled_has_no_prospect(plant):
    assert find_prospects(plant(10.0, 10.5, 11.0), most=10) == []


def test_the_hopeless_is_left_with_its_reason(plant, simsplit):
    (prospect,) = find_prospects(plant(-10.0, 0.5, 10.0), most=10)
    assert prospect.chance < HOPELESS
    assert (prospect.cells, choose_next([prospect]).cells) == ((), [])
    assert "10 seeds" in prospect.why_not
    code, out, err = simsplit("reproduce", "tiny/table1", "--settle")
    assert code == 0
    assert says(out + err, "raw > noise-50 ... 10 seeds ... chance")
    (none_left,) = find_prospects(plant(*(1.0, 6.0, 14.0, -9.0, 2.0) * 2), most=10)
    assert none_left.why_not


def test_the_cheapest_for_its_chance_comes_first(plant):
    (dear,) = find_prospects(plant(4.0, 10.0, 16.0, minutes=60.0), most=10)
    (cheap,) = find_prospects(plant(4.0, 10.0, 16.0, minutes=1.0), most=10)
    firsts = [choose_next(each).cells[0].minutes for each in ([dear, cheap], [cheap, dear])]
    assert firsts == [1.0, 1.0]


def test_only_the_statements_of_the_rows_that_are_named_are_settled(paper, plant, simsplit):
    paper.write(
        printed="data, method, accuracy\nours, raw, 90.0\nours, noise-50, 20.5\n",
        measured={
            "small": [
                {"scenario": "small/table1.yaml", "with": {"data": "ours"}, "takes_min": 2},
            ]
        },
    )
    table = plant(3.0, 6.0, 14.0)
    (prospect,) = find_prospects(table, most=10)
    assert find_prospects(table, most=10, only={"data": "ours"}) == [prospect]
    assert find_prospects(table, most=10, only={"method": "raw"}) == []  # it needs noise-50 too
    code, _, err = simsplit("reproduce", "tiny/table1", "--settle", "--only", "dta=ours")
    assert (code, says(err, "no axis 'dta', did you mean 'data'?")) == (2, True)
    code, out, err = simsplit("reproduce", "tiny/table1", "--settle", "--only", "method=raw")
    assert (code, says(err + out, "nothing to measure")) == (0, True)


def test_settling_measures_until_a_look_settles(paper, plant, simsplit):
    plant(3.0, 6.0, 14.0)
    code, _, err = simsplit("reproduce", "tiny/table1", "--settle", "--most", 5, "--jobs", 1)
    assert code == 0, err
    assert {row.seed for row in read(paper.rows)} == {0, 1, 2, 3, 4}
    code, _, err = simsplit("reproduce", "tiny/table1", "--settle", "--seeds", "0-4")
    assert (code, says(err, "--settle ... --seeds")) == (2, True)
    code, _, err = simsplit("reproduce", "tiny/table1", "--settle", "--most", 12)
    assert code == 2
