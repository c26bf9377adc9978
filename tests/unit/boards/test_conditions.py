"""A board says under which conditions its rows were measured, and which threats it leaves out."""

import pytest
import yaml

from simsplit.attacks.unsplit import UnsplitConfig
from simsplit.boards.entries import build_board
from simsplit.boards.figure_names import LEAKS
from simsplit.boards.scoring import score_strengths
from simsplit.boards.tabulating import describe_board, list_remarks, tabulate_strengths
from simsplit.boards.track import Track, list_tracks, load_track
from simsplit.errors import ScenarioError
from simsplit.evidence.evidence_tables import KnownRows

NOTHING = KnownRows({}, {})


@pytest.mark.parametrize(
    ("track", "attack", "length"),
    [
        ("images", "unsplit", "10 of 1,000 turns, 40 of 100 steps a turn"),
        ("images", "rmle", "1,000 of 5,000 steps"),
        ("texts", "bisr", "100 of 600 steps"),
    ],
)
def test_an_attack_that_runs_for_less_than_published_says_so(track, attack, length):
    board = build_board(track, "small", known=NOTHING)
    assert board.shorter[attack] == length
    assert f"{attack}, short" in tabulate_strengths(board).columns
    assert attack not in tabulate_strengths(board).columns
    assert any(f"{attack}, short" in each and length in each for each in list_remarks(board))
    assert describe_board(board)["shorter"][attack] == length


def test_an_attack_of_published_length_has_its_plain_name():
    full = build_board("images", "full", known=NOTHING)
    assert "unsplit" not in full.shorter
    assert "unsplit" in tabulate_strengths(full).columns


@pytest.mark.parametrize(
    ("published", "gist"),
    [
        ({"unsplitt": {"outer": {"is": 9, "of": "turns"}}}, r"published\.unsplitt.*unsplit"),
        ({"unsplit": {"outter": {"is": 9, "of": "turns"}}}, r"published\.unsplit\.outter"),
    ],
    ids=str,
)
def test_a_published_length_of_nothing_is_refused(published, gist):
    fields = yaml.safe_load(list_tracks()["images"].read_text(encoding="utf-8"))
    with pytest.raises(ScenarioError, match=gist):
        find_shorter(fields | {"published": published})


def find_shorter(fields) -> dict[str, str]:
    return Track.model_validate(fields).find_shorter({"unsplit": UnsplitConfig()})


@pytest.mark.parametrize("tier", ["quick", "small", "full"])
def test_images_are_attacked_over_epochs_too(tier):
    board = build_board("images", tier, known=NOTHING)
    assert board.epochs["ridge_8"] == 8
    assert any("ridge_8 in 8" in each for each in list_remarks(board))
    alone = [cell for cell in board.table.cells if f"{LEAKS}ridge_8" in cell.digests]
    assert {cell.axes["defence"] for cell in alone} == {
        each.name for each in score_strengths(board)
    }
    assert not any(f"{LEAKS}ridge" in cell.digests for cell in alone), "the others' rows stay"


@pytest.mark.parametrize("tier", ["quick", "small", "full"])
def test_backdoors_that_start_late_or_are_clipped_or_seldom_are_threats(tier):
    cells = build_board("backdoor", tier, known=NOTHING).table.cells
    poisons = {cell.axes["threat"]: cell.base.clients.malicious.poison for cell in cells}
    rounds = cells[0].base.schedule.rounds
    assert 1 < poisons["late"][0].from_round < rounds
    assert poisons["clipped"][0].clip is not None
    assert poisons["seldom"][0].rate < poisons["badnets"][0].rate / 2


def test_detectors_that_are_not_as_published_are_named_so():
    names = load_track("backdoor").defences
    assert {"STRIP, adapted", "Beatrix, adapted"} <= set(names)
    assert not {"STRIP", "Beatrix"} & set(names)
