"""A card that somebody hands in is believed only where it fits the board."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Command
from gists import says

from simsplit.boards.card_checks import NO_ROWS, check_card, compare_rows, read_card
from simsplit.boards.entries import build_board
from simsplit.boards.guests import Guest
from simsplit.boards.tabulating import list_remarks, tabulate_strengths
from simsplit.boards.track import list_tracks, load_track
from simsplit.errors import DataError, ScenarioError
from simsplit.evidence.measurements import Measurement
from simsplit.plugins import NO_PLUGINS

METHODS = [{"kind": "lightsplit", "ratio": 64}]


@pytest.fixture
def card() -> dict[str, Any]:
    """Return the card of a shipped method with other options, all rows in place."""
    board = build_board("bytes", "quick", Guest(METHODS), seeds=[0], known=NO_ROWS)
    facts = {"version": "1", "machine": "m", "threads": 1, "minutes": 0.5, "date": "2026-01-01"}
    rows = [
        {"setting": cell.setting, "seed": 0, "figure": name, "value": 2.0, "digest": digest} | facts
        for cell in board.own_cells
        for name, digest in cell.digests.items()
    ]
    both = {"track": "bytes", "tier": "quick", "methods": METHODS, "attacks": [], "plugins": []}
    return both | {"rows": rows}


def write(card: Any, folder: Path) -> Path:
    file = folder / "card.json"
    file.write_text(json.dumps(card))
    return file


def test_a_card_that_fits_has_no_faults(card, tmp_path):
    checked = check_card(write(card, tmp_path), NO_PLUGINS)
    assert checked.faults == []
    assert checked.draw_cell() in checked.board.own_cells


@pytest.mark.parametrize(
    ("change", "gist"),
    [
        (lambda card: card["rows"].pop(), "rows: 1"),
        (lambda card: card["rows"][0].update(digest="0" * 16), "rows.0.digest"),
        (lambda card: card["rows"][1].update(figure="beauty"), "beauty"),
        (lambda card: card["rows"].append(card["rows"][0]), "twice"),
        (lambda card: card["methods"][0].update(ratio=48), "rows.0"),
        (lambda card: card["plugins"].append({"name": "a.py", "digest": "1"}), "plugins: a.py"),
    ],
)
def test_a_card_that_does_not_fit_is_named_by_its_field(card, tmp_path, change, gist):
    card["methods"] = [dict(METHODS[0])]
    change(card)
    assert any(gist in fault for fault in check_card(write(card, tmp_path), NO_PLUGINS).faults)


@pytest.mark.parametrize(
    ("field", "value"),
    [("value", float("nan")), ("machine", ""), ("threads", 0), ("date", "today"), ("seed", "0")],
)
def test_a_row_that_is_none_is_refused(card, tmp_path, field, value):
    card["rows"][0][field] = value
    with pytest.raises(DataError, match=rf"rows\.0\.{field}"):
        read_card(write(card, tmp_path))


def test_what_is_no_card_is_refused(tmp_path):
    (tmp_path / "card.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="JSON"):
        read_card(tmp_path / "card.json")
    with pytest.raises(DataError, match="track"):
        read_card(write({}, tmp_path))


@pytest.mark.parametrize(
    ("machine", "value", "fits"),
    [("m", 2.0, True), ("m", 2.001, False), ("other", 2.05, True), ("other", 2.3, False)],
)
def test_values_are_equal_on_one_machine_and_near_on_another(card, tmp_path, machine, value, fits):
    parsed, _ = read_card(write(card, tmp_path))
    first = parsed.rows[0]
    row = Measurement(
        first.setting, 0, first.figure, value, first.digest, "", "1", "", "", machine, 1, 1.0, ""
    )
    assert (compare_rows(parsed, [row]) == []) is fits


def test_the_command_fails_for_a_card_with_faults(card, simsplit, tmp_path):
    code, out, _ = simsplit("card", write(card, tmp_path), "--json")
    assert (code, json.loads(out)["faults"]) == (0, [])
    card["rows"].pop()
    code, _, err = simsplit("card", write(card, tmp_path))
    assert code == 1
    assert "rows: 1" in err
    code, _, err = simsplit("card", write([], tmp_path))
    assert code == 2


@pytest.mark.slow
def test_a_cell_is_measured_again_and_a_false_value_is_found(simsplit, tmp_path):
    board = Command(tmp_path, ("simsplit",))
    given = ("--method", json.dumps(METHODS[0]), "--only", "defence=lightsplit-64", "-q")
    code, _, err = board.run("board", "bytes", *given, "--card", "card.json", within_s=300)
    assert code == 0, err
    code, out, err = simsplit("card", tmp_path / "card.json", "--rerun", "--json")
    assert (code, json.loads(out)["faults"]) == (0, []), err
    card = json.loads((tmp_path / "card.json").read_text())
    for row in card["rows"]:
        row["value"] += 1
    code, out, _ = simsplit("card", write(card, tmp_path), "--rerun", "--json")
    assert code == 1
    assert json.loads(out)["faults"]


def test_an_unreliable_defence_is_marked_with_its_reason(monkeypatch):
    track = load_track("bytes")
    name = list(track.defences)[1]
    changed = track.model_copy(update={"unreliable": {name: "an attack undoes it"}})
    monkeypatch.setattr("simsplit.boards.entries.load_track", lambda _: changed)
    board = build_board("bytes", "quick", known=NO_ROWS)
    assert f"{name}, unreliable" in {row[0] for row in tabulate_strengths(board).rows}
    assert any(
        says(line, f"{name}, unreliable: an attack undoes it") for line in list_remarks(board)
    )
    fields = yaml.safe_load(list_tracks()["bytes"].read_text()) | {"unreliable": {"nobody": "why"}}
    with pytest.raises(ScenarioError, match=r"unreliable\.nobody"):
        type(track).model_validate(fields)
