"""Planted rows take their places: a perfect defence, a useless one, one that breaks the model."""

from typing import Any

import pytest
from gists import says
from planted_boards import FIELDS, measure_at, plant

from simsplit.boards.board_verdict import judge
from simsplit.boards.entries import Board
from simsplit.boards.figure_names import BYTES, CHOSEN, HALF, LEAKS, TUNING, UTILITY
from simsplit.boards.scoring import (
    Standing,
    list_below_floor,
    list_unconverged,
    rank_defences,
    score_strengths,
)
from simsplit.boards.tabulating import list_remarks, tabulate_standings, tabulate_strengths
from simsplit.boards.track import Track
from simsplit.errors import ScenarioError


def _places(board: Board) -> dict[str, int | None]:
    return {each.defence: each.place for each in rank_defences(score_strengths(board))}


def _find(board: Board, defence: str) -> Standing:
    (found,) = [e for e in rank_defences(score_strengths(board)) if e.defence == defence]
    return found


@pytest.fixture
def planted() -> Board:
    return plant(
        {name: [name] for name in ("none", "perfect", "useless", "breaks")},
        {
            "none": measure_at(90, 1.0),
            "perfect": measure_at(90, 0.2),
            "useless": measure_at(90, 1.0),
            "breaks": measure_at(10, 0.2),
        },
    )


def test_a_perfect_defence_is_first_and_a_useless_one_last(planted: Board):
    assert _places(planted) == {"perfect": 1, "none": 2, "useless": 2, "breaks": None}
    strengths = {each.name: each for each in score_strengths(planted)}
    assert [*strengths["perfect"].leak.values()] == pytest.approx([0, 0, 0], abs=0.02)
    assert [*strengths["useless"].leak.values()] == pytest.approx([1, 1, 1])


def test_a_defence_that_breaks_the_model_does_not_win(planted: Board):
    assert _find(planted, "breaks").best == {}
    rows = {row[1]: row for row in tabulate_standings(planted).rows}
    assert rows["breaks"][0] == ""
    assert rows["perfect"][0] == "1"


def test_the_worst_attack_counts():
    board = plant(
        {"none": ["none"], "half": ["half"]},
        {"none": measure_at(90, 1.0), "half": measure_at(90, 0.2, other=0.84)},
    )
    (half,) = [each for each in score_strengths(board) if each.name == "half"]
    assert half.worst == "two"
    assert half.leak[1] == pytest.approx(0.8)


@pytest.mark.parametrize(("read", "placed"), [(0.2, False), (0.21, False), (0.3, True)])
def test_no_defence_has_a_place_where_nothing_is_read_undefended(read, placed):
    rows = {"none": measure_at(90, read), "more": measure_at(90, 0.25), "less": measure_at(90, 0.1)}
    leak = {**FIELDS["leak"], "floor": 0.2, "ceiling": 1}
    board = plant({name: [name] for name in rows}, rows, leak=leak)
    assert (set(_places(board).values()) != {None}) is placed
    shown = {row[1]: row[0] for row in tabulate_standings(board).rows}
    assert ({*shown.values()} != {""}) is placed
    silence = "No defence ... undefended"
    assert says("\n".join(list_remarks(board)), silence) is not placed
    assert says(judge(board).answer, silence) is not placed


def test_what_is_inside_the_spread_is_a_tie():
    near = {"none": measure_at(90, 1.0), "a": measure_at(90, 0.6), "b": measure_at(90, 0.61)}
    near["b"][f"{LEAKS}one"] = [0.55, 0.61, 0.66]
    board = plant({name: [name] for name in near}, near)
    assert _places(board) == {"a": 1, "b": 1, "none": 3}


def test_no_place_is_worse_than_that_of_one_that_leaks_more():
    """Seeds tell "steady" from the first beyond doubt, and not "loose", which leaks more."""
    rows = {
        "none": measure_at(90, 1.0),
        "first": measure_at(90, 0.5),
        "steady": measure_at(90, 0.6),
        "loose": measure_at(90, 0.7),
    }
    rows["loose"][f"{LEAKS}one"] = [0.4, 0.7, 0.99]
    board = plant({name: [name] for name in rows}, rows)
    assert _places(board) == {"first": 1, "steady": 1, "loose": 1, "none": 3}


def test_one_seed_tells_none_apart():
    one = (0.0,)
    rows = {"none": measure_at(90, 1, seeds=one), "best": measure_at(90, 0.2, seeds=one)}
    board = plant({name: [name] for name in rows}, rows)
    assert _places(board) == {"best": 1, "none": 1}
    assert any("one seed" in line for line in list_remarks(board))


def test_the_best_strength_within_each_budget_is_taken():
    rows = {
        "none": measure_at(90, 1.0),
        "weak": measure_at(89.5, 0.8),
        "fair": measure_at(88, 0.5),
        "strong": measure_at(86, 0.3),
    }
    board = plant({"none": ["none"], "tuned": ["weak", "fair", "strong"]}, rows)
    best = _find(board, "tuned").best
    assert {budget: each.name for budget, each in best.items()} == {
        1: "weak",
        3: "fair",
        5: "strong",
    }


def test_an_attack_below_its_floor_is_said_to_be():
    rows = {"none": measure_at(90, 1.0, other=0.1)}
    board = plant({"none": ["none"]}, rows)
    assert list_below_floor(score_strengths(board)) == ["two"]
    assert any("two" in line and "floor" in line for line in list_remarks(board))


def test_what_the_attacker_chose_stands_in_the_table_and_what_it_cost_below():
    tuned = {f"{CHOSEN}one_lr": [0.01, 0.1, 0.01], TUNING: [60.0, 60.0, 60.0]}
    rows = {"none": {**measure_at(90, 1.0), **tuned}, "other": measure_at(90, 0.5)}
    board = plant({name: [name] for name in rows}, rows)
    table = tabulate_strengths(board)
    assert table.columns[-1].startswith("chosen")
    assert [row[-1] for row in table.rows] == ["one_lr 0.01, 0.1, 0.01", ""]
    assert any("3.0 min" in line for line in list_remarks(board))
    plain = {name: measure_at(90, 1.0) for name in rows}
    untuned = tabulate_strengths(plant({name: [name] for name in plain}, plain))
    assert not untuned.columns[-1].startswith("chosen")


def test_an_attack_that_still_reads_more_in_its_second_half_is_said_to_be_a_lower_bound():
    halves = {f"{HALF}one": [0.5, 0.5, 0.5], f"{HALF}two": [0.2, 0.2, 0.2]}
    rows = {"none": {**measure_at(90, 1.0), **halves}, "other": measure_at(90, 0.5)}
    board = plant({name: [name] for name in rows}, rows)
    ((strength, attack, grown),) = list_unconverged(score_strengths(board))
    assert (strength, attack) == ("none", "one")
    assert grown == pytest.approx(0.5 / 0.8, abs=0.02)
    assert any({"one", "converged"} <= set(line.split()) for line in list_remarks(board))


def test_what_an_attack_has_not_met_has_no_place():
    rows = {"none": measure_at(90, 1.0), "half": measure_at(90, 0.2)}
    del rows["half"][f"{LEAKS}two"]
    board = plant({name: [name] for name in rows}, rows)
    assert _places(board)["half"] is None
    assert _find(board, "half").lacking == ["half"]


def test_of_threats_in_training_the_worst_counts():
    def row(success: float) -> dict[str, list[float]]:
        return {UTILITY: [90.0] * 3, BYTES: [1.0] * 3, f"{LEAKS}success": [success] * 3}

    board = plant(
        {"none": ["none"], "blind": ["blind"]},
        {
            "none, patch": row(0.9),
            "none, blend": row(0.8),
            "blind, patch": row(0.0),
            "blind, blend": row(0.7),
        },
        threats={"patch": {}, "blend": {}},
        leak={"figures": ["success"], "floor": 0, "ceiling": 1},
    )
    (blind,) = [each for each in score_strengths(board) if each.name == "blind"]
    assert (blind.worst, blind.leak[0]) == ("blend", 0.7)
    assert tabulate_strengths(board).columns[-3:] == ("patch", "blend", "seeds")


def test_bytes_are_held_against_the_undefended_run():
    rows = {"none": measure_at(90, 1.0), "small": measure_at(90, 1.0)}
    rows["small"][BYTES] = [25.0] * 3
    board = plant({name: [name] for name in rows}, rows)
    (small,) = [each for each in score_strengths(board) if each.name == "small"]
    assert set(small.bytes_ratio.values()) == {0.25}


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"defences": {"mine": {"mine": []}}}, "defences.none"),
        ({"defences": {"none": {"none": []}, "a": {"none": []}}}, "defences"),
        ({"leak": {"floor": 0, "ceiling": 1}}, "leak"),
    ],
)
def test_a_track_that_cannot_be_scored_is_refused(change: dict[str, Any], path: str):
    with pytest.raises(ScenarioError) as caught:
        Track.model_validate({**FIELDS, **change})
    assert caught.value.field == path
