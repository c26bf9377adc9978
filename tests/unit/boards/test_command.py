"""`simsplit board` measures what a board lacks, a user's row among it, and goes on where it was."""

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import TINY
from gists import says

from simsplit import board
from simsplit.boards import track
from simsplit.boards.entries import build_board
from simsplit.errors import SimsplitError
from simsplit.evidence import evidence_tables
from simsplit.evidence.measurements import read

TRACK = {
    "title": "Tiny",
    "says": "what does it cost?",
    "utility": {"is": "test_accuracy", "at": "last", "times": 100, "unit": "points"},
    "leak": {"called": "bytes", "figures": ["bytes_total"], "floor": 0, "ceiling": "undefended"},
    "scenario": {name: value for name, value in TINY.items() if name != "name"},
    "tiers": {"quick": {"seeds": [0], "takes_min": 0.01}},
    "defences": {"none": {"none": []}, "half": {"fp16": [{"kind": "cast", "to": "fp16"}]}},
}
SIGN = Path(__file__).parents[3] / "examples" / "plugins" / "sign.py"
BROKEN = '''
from typing import Literal

from simsplit.methods.method import Method, MethodConfig


class BrokenConfig(MethodConfig):
    """A method that fails."""

    kind: Literal["broken"] = "broken"

    def build(self, site):
        return Broken()


class Broken(Method):
    def encode(self, z, step):
        if step.training and len(z) > 2:  # a rehearsal has two samples
            raise RuntimeError("no way")
        return z


METHODS = {"broken": BrokenConfig}
'''


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A track of two defences in an empty folder, where nothing is measured."""
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(TRACK), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evidence_tables, "find_shipped_results", lambda: tmp_path / "none")
    monkeypatch.setattr(track, "list_tracks", lambda: {"tiny": file})
    track.load_track.cache_clear()
    yield
    track.load_track.cache_clear()


def read_fresh(**words: Any) -> list[int]:
    """Return the seed of each row that counts on a board of these seeds."""
    return [row.seed for row in build_board("tiny", "quick", **words).table.fresh]


def _read_rows() -> set[str]:
    return {row.setting for row in read(Path("results/boards/tiny.quick.csv"))}


def test_a_users_defence_takes_its_place(simsplit):
    words = ("board", "tiny", "--plugin", SIGN, "--method", "sign", "--jobs", 1)
    code, out, err = simsplit(*words, "--json", "--card", "card.yaml", "--figure", "b.png")
    assert code == 0, err
    result = json.loads(out)
    standings = {each["defence"]: each for each in result["standings"]}
    assert result["missing"] == 0
    assert standings["sign"]["own"]
    strengths = {each["strength"]: each for each in result["strengths"]}
    assert strengths["none"]["leak"] == pytest.approx(1)
    assert strengths["sign"]["leak"] < strengths["fp16"]["leak"] < 1
    assert Path("card.yaml").is_file()
    assert Path("b.png").read_bytes()[:4] == b"\x89PNG"
    assert _read_rows() == {"defence=none", "defence=fp16", "defence=sign"}
    before = Path("results/boards/tiny.quick.csv").read_bytes()
    assert simsplit(*words, "-q")[0] == 0
    rows = read(Path("results/boards/tiny.quick.csv"))
    (kept,) = {row.command for row in rows if row.setting == "defence=sign"}
    shutil.copy(SIGN, SIGN.name)  # a row does not say in whose folder it lay
    assert simsplit(*shlex.split(kept)[1:], "-q")[0] == 0, "the row's command, as it is typed"
    assert Path("results/boards/tiny.quick.csv").read_bytes() == before, "nothing anew"
    frame = board("tiny", methods=["sign"], plugins=SIGN)
    assert set(frame["strength"]) == {"none", "fp16", "sign"}
    assert frame["leak"].notna().all()
    assert len(board("tiny")) == 2, "a user's row is not there unless it is asked for"


def test_python_measures_and_keeps_what_is_missing():
    lines: list[str] = []
    words = {"methods": ["sign"], "plugins": SIGN}
    frame = board("tiny", **words, measure=True, only={"defence": "sign"}, say=lines.append)
    assert len(lines) == 1
    assert lines[0].startswith("[1/1] defence=sign")
    assert _read_rows() == {"defence=sign"}
    assert frame.set_index("strength").loc["sign", "utility"] > 0
    assert board("tiny", measure=True, seeds=[1], say=lines.append)["leak"].notna().all()
    assert len(lines) == 3
    assert not {*read_fresh(seeds=[0])} & {*read_fresh(seeds=[1])}
    assert {*read_fresh(seeds=[1])} == {1}


@pytest.mark.parametrize("methods", ["sign", {"kind": "sign"}])
def test_python_takes_methods_in_a_list(methods: Any):
    with pytest.raises(SimsplitError, match="methods"):
        board("tiny", methods=methods, plugins=SIGN)


def test_a_method_without_a_file_is_refused_since_an_edited_one_would_keep_its_rows():
    names: dict[str, Any] = {}
    exec(BROKEN, names)  # as a cell of a notebook does
    with pytest.raises(SimsplitError, match="file"):
        board("tiny", methods=["broken"], plugins={"METHODS": names["METHODS"]})


def test_a_defence_that_fails_leaves_the_others(simsplit):
    Path("broken_board.py").write_text(BROKEN, encoding="utf-8")
    words = ("board", "tiny", "--plugin", "broken_board.py", "--method", "broken", "--jobs", 1)
    code, out, err = simsplit(*words)
    assert code == 1
    assert "broken" in err
    assert _read_rows() == {"defence=none", "defence=fp16"}
    assert "broken (yours)" in out


def test_a_defence_that_never_works_is_named_before_others_are_measured(simsplit):
    Path("never_works.py").write_text(BROKEN.replace("> 2", "> 0"), encoding="utf-8")
    words = ("board", "tiny", "--plugin", "never_works.py", "--method", "broken", "--jobs", 1)
    code, out, err = simsplit(*words)
    assert (code, out) == (2, "")
    assert says(err, "error: ... never_works.py ... 'broken', hook encode")
    assert not Path("results").exists()


def test_a_dry_board_says_what_it_would_take(simsplit):
    code, out, err = simsplit("board", "tiny", "--dry", "--jobs", 1)
    assert (code, out) == (0, ""), err
    assert "2 cells" in err
    assert not Path("results").exists()
    code, _, err = simsplit("board", "tiny", "--budget", "1s", "--jobs", 1)
    assert code == 0
    assert "1 cell more" in err


def test_only_one_row_is_measured_where_it_is_asked_for(simsplit):
    assert simsplit("board", "tiny", "--only", "defence=none", "--jobs", 1)[0] == 0
    assert _read_rows() == {"defence=none"}
    assert simsplit("board", "tiny", "--show")[0] == 0
    assert _read_rows() == {"defence=none"}, "--show measures nothing"


@pytest.mark.parametrize(
    ("words", "gist"),
    [
        (("tinny",), "tiny"),
        (("tiny", "--tier", "small"), "quick"),
        (("tiny", "--method", "sgn"), "sgn"),
        (("tiny", "--method", "[1, 2]"), "--method"),
        (("tiny", "--only", "defense=none"), "defence"),
        (("tiny", "--only", "defence=nobody"), "nobody"),
        (("tiny", "--budget", "soon"), "--budget"),
        (("tiny", "--show", "--card", "card.yaml"), "--card"),
        (("tiny", "--show", "--figure", "b.png"), "tiny"),
    ],
)
def test_what_cannot_be_is_a_sentence(simsplit, words: tuple[str, ...], gist: str):
    code, _, err = simsplit("board", *words)
    assert code == 2
    assert gist in err
    assert "Traceback" not in err


def test_tracks_are_listed(simsplit):
    code, out, _ = simsplit("board", "--json")
    assert code == 0
    (listed,) = json.loads(out)
    assert (listed["track"], listed["tiers"]) == ("tiny", ["quick"])
