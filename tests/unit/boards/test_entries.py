"""Every shipped track is whole, and a user's methods and attacks stand among the shipped ones."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from simsplit.boards import entries
from simsplit.boards.cards import write_card
from simsplit.boards.entries import build_board
from simsplit.boards.guests import Guest
from simsplit.boards.tabulating import list_remarks
from simsplit.boards.track import NONE, Track, list_tracks, load_track, merge_fields
from simsplit.errors import ScenarioError, SimsplitError
from simsplit.evidence.evidence_tables import KnownRows
from simsplit.evidence.measurements import Measurement
from simsplit.evidence.row_code import write_code
from simsplit.plugins import gather_plugins

NOTHING = KnownRows({}, {})
MINE = '''
from typing import Literal

from simsplit.methods.method import Method, MethodConfig


class MineConfig(MethodConfig):
    """A shift of what is sent."""

    kind: Literal["mine"] = "mine"
    shift: float = 1.0

    def build(self, site):
        return Mine(self.shift)


class Mine(Method):
    def __init__(self, shift):
        self.shift = shift

    def encode(self, z, step):
        return z + self.shift


METHODS = {"mine": MineConfig}
'''


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    file = tmp_path / "board_mine.py"
    file.write_text(MINE, encoding="utf-8")
    return file


@pytest.mark.parametrize("track", list_tracks())
def test_every_cell_of_a_track_is_a_scenario_of_its_own(track: str):
    for tier in load_track(track).tiers:
        board = build_board(track, tier, known=NOTHING)
        assert not board.refused
        assert len({(cell.digest, cell.seed) for cell in board.table.cells}) == len(
            board.table.cells
        )
        assert {cell.name for cell in board.table.lacking} == {c.name for c in board.table.cells}
        assert board.attacks


def test_what_an_attacker_chooses_is_measured():
    figures = build_board("images", "small", known=NOTHING).table.cells[0].digests
    assert {"chosen_unsplit_lr", "chosen_rmle_tv", "tuning_seconds", "half_rmle"} <= set(figures)


def test_attacks_that_know_too_much_are_named():
    known = build_board("images", "small").bounds
    assert known == ["ridge", "whitebox", "rmle", "ridge_8", "whitebox_8"]
    assert build_board("generation", "quick").bounds == ["known_pairs"]
    assert not build_board("labels", "quick").bounds


@pytest.mark.parametrize("track", list_tracks())
def test_no_row_that_ships_is_stale(track: str):
    for tier in load_track(track).tiers:
        stale = len(build_board(track, tier).table.stale)
        assert not stale, "measure it again: simsplit board TRACK --tier TIER"


@pytest.mark.parametrize("track", list_tracks())
def test_the_quick_tier_needs_nothing_that_does_not_ship(track: str):
    for cell in build_board(track, "quick", known=NOTHING).table.cells:
        assert not hasattr(cell.base.data.source, "path")


def test_a_users_method_stands_beside_the_shipped_ones(plugin: Path):
    guest = Guest([{"kind": "mine"}, {"kind": "mine", "shift": 2}], (), gather_plugins(plugin))
    board = build_board("bytes", "quick", guest, known=NOTHING)
    assert list(board.defences)[-1] == "mine"
    assert list(board.defences["mine"]) == ["mine", "mine-2"]
    shipped = build_board("bytes", "quick", known=NOTHING)
    digests = {cell.digest for cell in shipped.table.cells}
    assert digests < {cell.digest for cell in board.table.cells}, "shipped rows stay known"
    assert {cell.axes["defence"] for cell in board.own_cells} == {"mine", "mine-2"}
    (command,) = [each for each in list_remarks(board) if each.startswith("measure it:")]
    given = shlex.split(command)
    assert given[given.index("--plugin") + 1] == plugin.name
    assert [json.loads(each) for each in given if "shift" in each] == [guest.methods[1]]


def test_no_strength_is_lost_whatever_its_options_are():
    """Names are of values: two fields may have the same one, and a list is no name of a run."""
    both = {"kind": "cast", "legs": ["smashed", "features"]}
    given = [{"kind": "lightsplit", "ratio": 9}, {"kind": "lightsplit", "k": 9}, both]
    guest = Guest([*given, given[0]])
    board = build_board("images", "quick", guest, known=NOTHING)
    assert board.refused == {}
    assert board.defences["lightsplit"] == ["lightsplit-9", "lightsplit-k-9"]
    assert board.defences["cast"] == ["cast-smashed-features"]
    assert [one for of in guest.strengths.values() for (one,) in of.values()] == given
    alike = [{"kind": "lightsplit", "ratio": each} for each in ("a-b", "a/b", "a+b")]
    with pytest.raises(SimsplitError, match="lightsplit-ratio-a-b"):
        _ = Guest(alike).strengths


@pytest.mark.parametrize("part", [{"k": 8}, 8, {"kind": 8}])
def test_a_part_of_a_user_s_has_a_kind(part: Any):
    for option in ("methods", "attacks"):
        with pytest.raises(SimsplitError, match=option):
            Guest(**{option: [part]})


def test_an_edited_plugin_makes_its_rows_stale(plugin: Path, tmp_path: Path):
    def cells(file: Path) -> Mapping[str, str]:
        guest = Guest([{"kind": "mine"}], (), gather_plugins(file))
        board = build_board("bytes", "quick", guest, known=NOTHING)
        (cell,) = board.own_cells
        return {**cell.digests, "name": cell.name}

    other = tmp_path / "board_mine_edited.py"
    other.write_text(MINE.replace("z + self.shift", "z - self.shift"), encoding="utf-8")
    before, after = cells(plugin), cells(other)
    assert all(before[name] != after[name] for name in before)


def test_a_users_attack_needs_no_other_attack_again():
    attack = {"kind": "ridge", "name": "few", "pairs": 50}
    board = build_board("images", "quick", Guest((), [attack]), known=NOTHING)
    assert board.attacks[-1] == "few"
    for cell in board.own_cells:
        assert [each.title for each in cell.base.attacks] == ["few"]
        assert {name for name in cell.digests if name.startswith("leaks_")} == {"leaks_few"}


def test_an_attack_beside_leaves_the_others_rows_as_they_are(monkeypatch: pytest.MonkeyPatch):
    guest = Guest([{"kind": "cast", "to": "fp16"}])
    others = build_board("texts", "quick", guest, known=NOTHING).table.cells
    track = load_track("texts")
    tiers = {
        name: tier.model_copy(update={"attacks_beside": ({"kind": "span_search"},)})
        for name, tier in track.tiers.items()
    }
    widened = track.model_copy(update={"tiers": tiers})
    monkeypatch.setattr(entries, "load_track", lambda name: widened)
    cells = build_board("texts", "quick", guest, known=NOTHING).table.cells
    beside = [cell for cell in cells if len(cell.base.attacks) == 1]
    assert {cell.axes["defence"] for cell in beside} == {cell.axes["defence"] for cell in cells}
    assert all(set(cell.digests) == {"leaks_span_search"} for cell in beside)
    assert [c.digests for c in cells if c not in beside] == [c.digests for c in others]


def test_an_attack_beside_is_refused_where_nothing_is_attacked_after_training():
    fields = yaml.safe_load(list_tracks()["bytes"].read_text(encoding="utf-8"))
    fields["tiers"]["quick"]["attacks_beside"] = [{"kind": "ridge"}]
    with pytest.raises(ScenarioError, match=r"tiers\.quick\.attacks_beside.*nothing is attacked"):
        Track.model_validate(fields)


@pytest.mark.parametrize("twice", [{"kind": "sip"}, {"kind": "span_search"}])
def test_an_attack_beside_whose_name_is_taken_is_refused(twice):
    fields = yaml.safe_load(list_tracks()["texts"].read_text(encoding="utf-8"))
    quick = fields["tiers"]["quick"]
    quick["attacks_beside"] = [{"kind": "span_search"}, twice]
    with pytest.raises(ScenarioError, match=rf"attacks_beside.*{twice['kind']}"):
        Track.model_validate(fields)
    quick["attacks_beside"][-1] = twice | {"name": "other"}
    Track.model_validate(fields)


@pytest.mark.parametrize(
    ("methods", "match"),
    [
        ([{"kind": "lightspilt"}], "lightsplit"),
        ([{"kind": "santext"}], "method"),
        ([{"kind": "lightsplit", "ratio": -1}], "ratio"),
    ],
)
def test_a_method_that_does_not_fit_is_refused_by_path(methods: list[dict[str, Any]], match: str):
    with pytest.raises((SimsplitError, ScenarioError), match=match):
        build_board("images", "quick", Guest(methods), known=NOTHING)


def test_one_strength_that_does_not_fit_leaves_the_others():
    guest = Guest([{"kind": "cast"}, {"kind": "cast", "to": "fp7"}])
    board = build_board("images", "quick", guest, known=NOTHING)
    assert list(board.defences["cast"]) == ["cast"]
    assert "fp16" in board.refused["cast-fp7"]


def test_unknown_names_get_the_nearest():
    with pytest.raises(SimsplitError, match="images"):
        build_board("image", "quick")
    with pytest.raises(SimsplitError, match="quick"):
        build_board("labels", "night")
    taken = Guest([{"kind": "lightsplit", "ratio": 8}])
    with pytest.raises(SimsplitError, match="lightsplit-8"):
        build_board("images", "quick", taken, known=NOTHING)


@pytest.mark.parametrize(
    ("track", "attack", "gist"),
    [
        ("images", {"kind": "ridge"}, "ridge"),
        ("texts", {"kind": "vocabulary_matching"}, "vocabulary_matching"),
        ("bytes", {"kind": "ridge", "name": "a"}, "bytes"),
    ],
)
def test_an_attack_that_would_change_nothing_is_refused(
    track: str, attack: dict[str, Any], gist: str
):
    with pytest.raises(SimsplitError, match=rf"--attack.*{gist}"):
        build_board(track, "quick", Guest((), [attack]), known=NOTHING)


def test_fields_are_merged_but_for_parts_of_another_kind():
    first = {"data": {"source": "digits", "auxiliary": 0.4}, "model": {"kind": "mlp", "head": 1}}
    second = {"data": {"source": {"kind": "npz"}}, "model": {"kind": "simplecnn"}}
    assert merge_fields(first, second) == {
        "data": {"source": {"kind": "npz"}, "auxiliary": 0.4},
        "model": {"kind": "simplecnn"},
    }


def test_a_card_has_the_users_rows_alone(plugin: Path, tmp_path: Path):
    guest = Guest([{"kind": "mine"}], (), gather_plugins(plugin))
    empty = build_board("bytes", "quick", guest, known=NOTHING)
    with pytest.raises(SimsplitError, match="--card"):
        write_card(empty, guest, tmp_path / "card.yaml")
    board = build_board("bytes", "quick", guest, known=_know_all(empty))
    write_card(board, guest, tmp_path / "card.yaml")
    card = yaml.safe_load((tmp_path / "card.yaml").read_text(encoding="utf-8"))
    assert {row["setting"] for row in card["rows"]} == {"defence=mine"}
    assert card["plugins"][0]["digest"]
    assert str(tmp_path) not in (tmp_path / "card.yaml").read_text(encoding="utf-8")
    assert NONE not in {row["setting"] for row in card["rows"]}


def _know_all(board: Any) -> KnownRows:
    """Return a row for every figure of every cell."""
    made = {
        digest: {
            cell.seed: [
                Measurement(
                    cell.setting,
                    cell.seed,
                    name,
                    1.0,
                    digest,
                    write_code(cell.uses.code),
                    "1",
                    "",
                    "",
                    "m",
                    1,
                    1.0,
                    "2026-01-01",
                )
            ]
        }
        for cell in board.table.cells
        for name, digest in cell.digests.items()
    }
    return KnownRows(made, {})
