"""The comparison with another commit: its cases leave nothing out, its words name what differs."""

import copy
import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from golden.cases import CASES, Values, rename_fields
from golden.differences import differences
from golden.recording import EXPLAINED, StaleCommit, _has, choose_cases, find_carried, write_cases

from simsplit.attacks import ATTACKS
from simsplit.detectors import DETECTORS
from simsplit.methods import METHODS
from simsplit.poisons import POISONS
from simsplit.schedules.aggregation import AGGREGATIONS
from simsplit.schedules.schedule import SCHEDULES

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "golden" / "against.py"


def parts(values: Values, field: str) -> list[Values]:
    """Return what a dotted field of a scenario holds: one part, several, or none."""
    here = values
    for word in field.split("."):
        here = (here or {}).get(word)
    return here if isinstance(here, list) else [here] if here else []


@pytest.mark.parametrize(
    ("field", "known"),
    [
        ("method", METHODS),
        ("attacks", ATTACKS),
        ("detectors", DETECTORS),
        ("clients.malicious.poison", POISONS),
        ("schedule", SCHEDULES),
        ("aggregation", AGGREGATIONS),
    ],
)
def test_every_kind_of_part_is_in_some_case(field, known):
    used = {part.get("kind") for case in CASES.values() for part in parts(case.values, field)}
    default = {"none"}  # of aggregations, which is not written
    assert known.keys() <= used | default


def test_every_shipped_scenario_is_a_case():
    folder = ROOT / "scenarios"
    cases = [case.values.get("extends", "") for case in CASES.values()]
    assert {f"$TREE/scenarios/{file.name}" for file in folder.glob("*.yaml")} <= set(cases)


def test_fields_under_new_names():
    values = {"method": [{"kind": "a", "ratio": 2}, {"kind": "b"}], "train": {"size": 1, "old": 0}}
    names = {"method.*.ratio": "method.*.times", "train.size": "batches.size", "train.old": None}
    expected = {
        "method": [{"kind": "a", "times": 2}, {"kind": "b"}],
        "train": {},
        "batches": {"size": 1},
    }
    assert rename_fields(values, names) == expected
    assert values["train"] == {"size": 1, "old": 0}


OUTCOME = {
    "tables": {
        "rounds": {
            "digest": "1",
            "rows": 2,
            "columns": {"round": ["1", "2"], "loss": ["2.0", "1.0"], "phase": ["train", "train"]},
        }
    },
    "tensors": {"round-000002": {"a": "F32[2] 11", "b": "F32[3] 22", "c": "F32[] 33"}},
    "texts": {"round-000002.jsonl": ["one", "two"]},
}


def list_differences(change) -> list[str]:
    newer = copy.deepcopy(OUTCOME)
    change(newer)
    return differences(OUTCOME, newer)


def test_equal_outcomes_are_not_reported():
    assert list_differences(lambda newer: None) == []


def test_a_value_is_named_with_its_column_and_row():
    def change(newer):
        newer["tables"]["rounds"]["columns"]["loss"][1] = "1.25"

    (line,) = list_differences(change)
    assert line.startswith("table rounds: loss in 1 of 2 rows, by at most 0.2 of its size")
    assert "row 1: 1.0 -> 1.25" in line


def test_columns_rows_and_tables_that_come_and_go():
    def change(newer):
        columns = newer["tables"]["rounds"]["columns"]
        columns["gain"] = columns.pop("loss")
        newer["tables"]["rounds"]["rows"] = 3
        newer["tables"]["signals"] = {"rows": 0, "columns": {}}

    rounds, signals = list_differences(change)
    assert "1 columns missing: loss" in rounds
    assert "1 columns added: gain" in rounds
    assert "2 rows became 3" in rounds
    assert signals == "table signals: added"


READ = {
    "recovered": {"round": ["1"], "attack": ["ridge"], "image": ["0"], "mse": ["0.5"]},
    "labels": {
        "round": ["1"],
        "attack": ["norm"],
        "view": ["both"],
        "figure": ["f1"],
        "leak": ["0.75"],
    },
    "sessions": {
        "round": ["1"],
        "attack": ["mc"],
        "session": ["0"],
        "side": ["prompt"],
        "ap": ["1.0"],
    },
}
LEAKS = [
    ["1", "ridge", "0", "", "mse", "0.5"],
    ["1", "norm", "", "both", "f1", "0.75"],
    ["1", "mc", "0", "prompt", "ap", "1.0"],
]


@pytest.mark.parametrize("lost", [None, 0, 1, 2])
def test_tables_of_leaks_whose_figures_stand_in_one_are_not_missed(lost):
    names = ("round", "attack", "target", "view", "metric", "value")
    rows = [[*cells[:-1], "0.9"] if row == lost else cells for row, cells in enumerate(LEAKS)]
    leaks = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    leaks |= dict.fromkeys(("label", "low", "high", "samples", "known"), [""] * len(rows))
    older, newer = copy.deepcopy(OUTCOME), copy.deepcopy(OUTCOME)
    older["tables"] |= {name: {"rows": 1, "columns": read} for name, read in READ.items()}
    newer["tables"]["leaks"] = {"rows": len(rows), "columns": leaks}
    missing = [] if lost is None else [f"table {[*READ][lost]}: missing"]
    assert differences(older, newer) == [*missing, "table leaks: added"]


def test_tensors_that_changed_moved_or_have_another_shape():
    def change(newer):
        held = newer["tensors"]["round-000002"]
        held |= {"a": "F32[2] 99", "c": "F64[1] 33", "z": held.pop("b")}

    (line,) = list_differences(change)
    assert "1 tensors missing: b" in line
    assert "1 tensors added: z" in line
    assert "1 of those missing are among the added, to the bit" in line
    assert "2 of 3 differ: a, c (F32[] -> F64[1])" in line


def test_texts_and_failures():
    def change(newer):
        newer["texts"]["round-000002.jsonl"][1] = "too"

    assert list_differences(change) == [
        "file round-000002.jsonl: 1 of 2 lines (line 1: two -> too)"
    ]
    failed = differences(OUTCOME, {"failed": "KeyError: 1"})
    assert failed == ["failed: newer: KeyError: 1"]


@pytest.mark.slow
def test_a_tree_is_like_itself_and_not_like_another(tmp_path: Path):
    """One of the two cases is kept as if another tree had counted other bytes."""
    kept = tmp_path / "kept.json"
    cases = ("--only", "raw*")

    def run_command(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(TOOL), *cases, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run_command("--save", str(kept)).returncode == 0
    outcomes = json.loads(kept.read_text())
    outcomes["cases"]["raw-vanilla"]["tables"]["wire"]["columns"]["bytes"][0] = "1"
    kept.write_text(json.dumps(outcomes))
    compared = run_command("--baseline", str(kept), "--json")
    assert compared.returncode == 1
    document = json.loads(compared.stdout)
    assert document["raw"] == []
    assert document["raw-vanilla"][0].startswith("table wire: bytes in 1 of")


PARTS = {
    "raw": {"centre", "models.cnn"},
    "sdar": {"centre", "models.cnn", "attacking", "attacks.sdar"},
    "both": {"centre", "models.cnn", "attacking", "attacks.sdar", "attacks.pcat"},
}
BEFORE = {
    "centre": "c1",
    "models.cnn": "m",
    "attacking": "a1",
    "attacks.sdar": "s1",
    "data.npz": "n",
}
NOW = {**BEFORE, "centre": "c2", "attacks.sdar": "s2", "attacks.pcat": "p2"}
EQUAL, DIFFERS = [], ["table rounds: loss in 2 of 2 rows"]
ADDS = ["table recovered: 1 columns added: rouge", "table leaks: added"]
BOTH = ["table recovered: 1 columns added: rouge; loss in 2 of 2 rows"]
NO_OLDER = ["failed: older: ScenarioError: unknown 'pcat'"]


@pytest.mark.parametrize(
    ("results", "carried"),
    [
        ({"raw": EQUAL, "sdar": EQUAL}, {"centre", "models.cnn", "attacking", "attacks.sdar"}),
        ({"raw": EQUAL}, {"centre", "models.cnn"}),
        ({"raw": ADDS}, {"centre", "models.cnn"}),
        ({"raw": EQUAL, "sdar": BOTH}, {"centre", "models.cnn"}),
        ({"raw": EQUAL, "sdar": DIFFERS}, {"centre", "models.cnn"}),
        (
            {"raw": EQUAL, "sdar": EQUAL, "both": NO_OLDER},
            {"centre", "models.cnn", "attacking", "attacks.sdar"},
        ),
        # an attack that differs in one of two cases is not carried over, and all else is
        (
            {"raw": EQUAL, "sdar": EQUAL, "both": DIFFERS},
            {"centre", "models.cnn", "attacking", "attacks.sdar"},
        ),
    ],
)
def test_what_equal_cases_use_is_carried_over(results, carried):
    found = find_carried(results, PARTS, BEFORE, NOW)
    assert found.keys() - {"data.npz"} == carried
    assert all(found[name] == (BEFORE[name], NOW[name]) for name in carried)
    assert found["data.npz"] == ("n", "n")  # no case uses it, and it is as it was


@pytest.mark.parametrize("others", [{"sdar": DIFFERS}, {"both": EQUAL}])
def test_nothing_is_carried_over_where_what_all_runs_share_differs(others):
    assert find_carried({"raw": DIFFERS, **others}, PARTS, BEFORE, NOW) == {}


def test_a_case_whose_difference_is_explained_is_blamed_on_nothing():
    parts = {**PARTS, "mended": [*PARTS["sdar"]]}
    results = {"raw": EQUAL, "mended": DIFFERS}
    assert "attacks.sdar" not in find_carried(results, parts, BEFORE, NOW)
    assert "attacks.sdar" in find_carried(results, parts, BEFORE, NOW, ["mended"])
    assert EXPLAINED.keys() <= CASES.keys()


def test_a_difference_is_explained_against_commits_before_the_mending_alone():
    """Against a later one the same case says that something is wrong."""
    for mended, _ in EXPLAINED.values():
        if not _has(ROOT, "HEAD", f"{mended}~1"):
            pytest.skip("this checkout lacks the commits")
        assert not _has(ROOT, f"{mended}~1", mended)
        assert _has(ROOT, "HEAD", mended)


@pytest.mark.parametrize("word", ["rollback", "foolsgold", "kind: contra", "coin_", "asynchronous"])
def test_no_table_has_what_explains_a_difference(word):
    folders = [ROOT / "scenarios" / "papers", ROOT / "scenarios" / "boards"]
    files = [file for folder in folders for file in folder.rglob("*.yaml")]
    assert len(files) > 50
    assert not [file.name for file in files if word in file.read_text(encoding="utf-8")]


def test_rows_of_public_samples_behind_fresh_noise_are_of_the_mended_code():
    """Until 30 November 2026 they had the noise of the targets."""
    fresh = ("noise", "shredder", "quantise")
    for tier in ("quick", "small"):
        file = ROOT / "results" / "boards" / f"images.{tier}.csv"
        with file.open(encoding="utf-8", newline="") as rows:
            dates = [
                row["date"]
                for row in csv.DictReader(rows)
                if row["setting"].removeprefix("defence=").startswith(fresh)
            ]
        assert all(date > "2026-11-29" for date in dates)


def test_what_no_case_uses_is_not_carried_once_it_changes():
    found = find_carried({"raw": EQUAL}, PARTS, {**BEFORE, "data.npz": "old"}, NOW)
    assert "data.npz" not in found


def test_cases_are_written_shortly():
    assert write_cases(dict.fromkeys(PARTS, EQUAL), PARTS) == "all"
    assert write_cases({"raw": EQUAL, "sdar": EQUAL, "both": DIFFERS}, PARTS) == "all but both"
    assert write_cases({"raw": EQUAL}, PARTS) == "raw"


def test_stale_rows_need_the_cases_of_their_parts():
    rows = StaleCommit("c", 3, frozenset({"centre", "models.cnn", "attacks.sdar"}))
    assert choose_cases(rows, PARTS) == ["sdar", "both"]
    assert choose_cases(StaleCommit("c", 3, frozenset({"centre"})), PARTS) == ["raw"]
