"""What attacks read by a view that places no defence stands beside, and moves no place."""

from dataclasses import replace

import pytest
from planted_boards import FIELDS, NOISE, measure_at, plant

from simsplit.boards.board_verdict import judge
from simsplit.boards.entries import Board, build_board
from simsplit.boards.figure_names import BESIDE, FLOOR, LEAKS
from simsplit.boards.guests import Guest
from simsplit.boards.scoring import rank_defences, score_strengths
from simsplit.boards.tabulating import describe_board, list_remarks, tabulate_standings
from simsplit.boards.tabulating import tabulate_strengths as tabulate
from simsplit.boards.track import Track
from simsplit.errors import ScenarioError, SimsplitError
from simsplit.evidence.evidence_tables import KnownRows

NOTHING = KnownRows({}, {})
LEAK = {"reads": "{attack}_{view}", "floor": "mean", "views": ["one", "two"], "ceiling": 1}


def measure(placed: float, beside: float) -> dict[str, list[float]]:
    return measure_at(90, placed) | {
        f"{FLOOR}_two_late": [0.2 for _ in NOISE],
        f"{BESIDE}two_late": [beside + each for each in NOISE],
    }


def plant_views(rows) -> Board:
    board = plant({name: [name] for name in rows}, rows, leak=LEAK)
    return replace(board, beside={"two": ["late"]})


@pytest.fixture
def planted() -> Board:
    """Both defences leak all by view two, and differ by view one, which places them."""
    rows = {"none": measure(1, 1), "hides": measure(0.2, 1), "useless": measure(1, 0.44)}
    return plant_views(rows)


def test_defences_are_placed_by_the_first_view_alone(planted):
    places = {each.defence: each.place for each in rank_defences(score_strengths(planted))}
    assert places == {"hides": 1, "useless": 2, "none": 2}


def test_the_other_view_has_a_column_and_the_worst_is_named(planted):
    table = tabulate_standings(planted)
    rows = {row[1]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert rows["hides"]["leak by one within 3 points"].startswith("0.00")
    assert rows["hides"]["by two"] == "1.00 (0.99 to 1.01) (late)"
    assert {name: row["worst view"] for name, row in rows.items()} == {
        "hides": "two",
        "useless": "one",
        "none": "one and two",
    }
    assert [row[-2][:4] for row in tabulate(planted).rows] == ["1.00", "1.00", "0.30"]
    strengths = {each["strength"]: each for each in describe_board(planted)["strengths"]}
    assert strengths["useless"]["leak_by_two_late"] == pytest.approx(0.3)
    assert any("read by one" in each for each in list_remarks(planted))


def test_the_verdict_says_what_the_other_view_tells(planted):
    verdict = judge(planted)
    assert "by one at most half" in verdict.answer
    assert "hides (" in verdict.answer
    assert "By two 90 % or more" in verdict.answer
    assert verdict.answer.endswith("each but useless.")
    (beaten,) = [line for line in verdict.rest if line.startswith("By two the worst")]
    (less,) = [line for line in verdict.rest if line.startswith("By two it reads less")]
    assert "hides" in beaten
    assert "useless" not in beaten
    assert "useless (0.30" in less


def test_what_one_view_lacks_makes_a_strength_incomplete():
    rows = {"none": measure(1, 1), "half": measure_at(90, 0.2)}
    half = next(each for each in score_strengths(plant_views(rows)) if each.name == "half")
    assert (half.is_complete, half.lacking) == (False, ["late by two"])


def test_where_undefended_clients_lack_a_view_the_verdict_leaves_it_out():
    rows = {"none": measure_at(90, 1), "hides": measure(0.2, 1)}
    verdict = judge(plant_views(rows))
    assert "hides (" in verdict.answer
    assert "two" not in " ".join([verdict.answer, *verdict.rest])


def test_labels_are_measured_by_gradients_with_features_beside():
    board = build_board("labels", "small", known=NOTHING)
    blind = {"spectral", "norm", "kmeans", "probe", "direction_scoring", "model_completion"}
    assert set(board.attacks) == {*blind, "singular_direction"}
    beside = {view: set(of) for view, of in board.beside.items()}
    assert beside == {"features": blind, "both": {"exploit"}}
    for cell in board.table.cells:
        assert {n for n in cell.digests if n.startswith(LEAKS)} == {
            LEAKS + n for n in board.attacks
        }
        beside = {n for n in cell.digests if n.startswith(BESIDE)}
        assert beside == {*(f"{BESIDE}features_{name}" for name in blind), f"{BESIDE}both_exploit"}
    figures = board.table.claim.figures
    assert figures[f"{BESIDE}both_exploit"].is_ == "labels_exploit_both_leak"
    assert figures[f"{BESIDE}features_norm"].is_ == "labels_norm_features_leak"
    assert figures[f"{FLOOR}_features_norm"].is_ == "labels_norm_features_chance"


def test_attacks_that_know_labels_are_named():
    board = build_board("labels", "small", known=NOTHING)
    assert board.known_shares == {"probe": 0.5, "direction_scoring": 0.05, "model_completion": 0.05}
    assert any("probe 50%" in each for each in list_remarks(board))


def test_a_users_attack_on_one_view_is_measured_by_that_alone():
    attack = {"kind": "kmeans", "name": "mine", "views": ["features"]}
    board = build_board("labels", "quick", Guest((), [attack]), known=NOTHING)
    assert "mine" not in board.attacks
    assert "mine" in board.beside["features"]
    with pytest.raises(SimsplitError, match=r"--attack: .unsplit.*gradients"):
        build_board("labels", "quick", Guest((), [{"kind": "unsplit"}]), known=NOTHING)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"views": []}, r"leak\.views"),
        ({"reads": "{attack}_ssim"}, r"leak\.views"),
        ({"ceiling": "undefended"}, r"leak\.ceiling"),
    ],
    ids=str,
)
def test_views_that_cannot_be_scored_are_refused(change, path):
    with pytest.raises(ScenarioError, match=path):
        Track.model_validate({**FIELDS, "leak": {**LEAK, **change}})
