"""A board's page has its verdict and commands, and nothing that a browser would load."""

import re

import pytest
from planted_boards import FIELDS, measure_at, plant

from simsplit.boards.board_verdict import judge
from simsplit.boards.figure_names import UTILITY
from simsplit.boards.page import write_board_page

LEAK = FIELDS["leak"]


def say(board):
    verdict = judge(board)
    return " ".join((verdict.answer, *verdict.rest))


def planted(rows):
    return plant({name: [name] for name in rows}, rows)


def test_the_verdict_says_what_is_worth_something_and_what_is_beaten_by_what():
    rows = {
        "none": measure_at(90, 1.0),
        "good": measure_at(89, 0.3),
        "useless": measure_at(90, 0.2, other=0.99),
        "breaks": measure_at(10, 0.2),
    }
    said = say(planted(rows))
    assert "behind good (0.1" in said
    assert "useless (two)" in said
    assert re.search(r"costs more: breaks", said)
    assert "one seed" not in said


def test_a_cost_that_seeds_do_not_settle_is_said_and_a_settled_one_is_not():
    rows = {"none": measure_at(90, 1.0), "good": measure_at(89, 0.3)}
    settled = judge(planted(rows)).rest
    scattered = measure_at(89, 0.3)
    scattered[UTILITY] = [90.0, 84.0, 90.0]
    (said,) = {*judge(planted({**rows, "good": scattered})).rest} - {*settled}
    assert "good (2." in said


def test_worth_is_held_against_what_is_read_undefended_and_one_seed_is_said():
    """Where little is read undefended, a small leak is no merit."""
    rows = {
        "none": measure_at(90, 0.5, seeds=(0.0,)),
        "same": measure_at(90, 0.5, seeds=(0.0,)),
    }
    said = say(plant({name: [name] for name in rows}, rows, leak={**LEAK, "ceiling": 1}))
    assert "same (one)" in said
    assert "one seed" in said


def test_a_defence_whose_interval_reaches_across_half_is_not_settled():
    """Its mean alone would say that it is worth something, or that it is not."""
    open_ = measure_at(90, 0.45) | {"leaks_one": [0.3, 0.45, 0.6]}
    rows = {"none": measure_at(90, 1.0), "open": open_, "good": measure_at(90, 0.21)}
    said = say(plant({name: [name] for name in rows}, rows, leak={**LEAK, "ceiling": 1}))
    assert re.search(r"settle it for open \(0\.\d\d, 0\.\d\d to 0\.\d\d\)", said)
    assert re.search(r"behind good \(0\.\d\d, 0\.\d\d to 0\.\d\d\)\.", said)
    assert "3 seeds" in said


@pytest.mark.parametrize(("chance", "said"), [(88.0, True), (10.0, False)])
def test_a_budget_that_what_learned_nothing_keeps_is_said_to_tell_little(chance, said) -> None:
    rows = {"none": measure_at(90, 1.0), "good": measure_at(89, 0.3)}
    board = plant({name: [name] for name in rows}, rows, controls={"chance": chance})
    assert ("chance" in say(board)) is said


def test_nothing_is_said_of_what_is_not_measured():
    assert "Nothing is measured" in say(planted({"none": measure_at(90, 1.0)}))


@pytest.mark.slow
def test_a_page_holds_all_it_needs():
    from simsplit.boards.entries import build_board

    page = write_board_page(planted({"none": measure_at(90, 1.0), "a<b": measure_at(89, 0.3)}))
    assert "<b:" not in page
    assert "a&lt;b" in page
    assert not re.search(r'(src|href)="https?:', page)
    assert 'src="data:image/svg+xml' in page
    whole = write_board_page(build_board("bytes", "quick"))
    links = set(re.findall(r'href="#(command-[^"]+)"', whole))
    assert links
    assert links == set(re.findall(r'id="(command-[^"]+)"', whole))
    assert "<code>simsplit board bytes --tier quick --only defence=lightsplit-8</code>" in whole
