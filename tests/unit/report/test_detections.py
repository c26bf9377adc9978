"""What tables say of who was malicious and who was caught."""

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from builders import run_to_end, scenario
from gists import says
from scipy.stats import binom

from simsplit.metrics.intervals import clopper_pearson
from simsplit.report.comparison import compare
from simsplit.report.detections import compare_detections, tabulate_detections
from simsplit.report.grouping import Entry
from simsplit.report.numbers import measure
from simsplit.report.rates import Count, write_success
from simsplit.results import Run

LOUD = {"kind": "tamper", "how": "sign", "strength": 1.0}
HALVES = {"clean": slice(2), "attacked": slice(2, None)}
QUIET = {"kind": "badnets", "rate": 0.1}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Entry]:
    """Clean and attacked, two seeds each."""
    path: Path = tmp_path_factory.mktemp("detections")
    entries = []
    for fraction in (0.0, 0.2):
        for seed in (0, 1):
            malicious = {"fraction": fraction, "poison": [LOUD, QUIET]}
            given = scenario(
                seed=seed,
                clients={"count": 5, "malicious": malicious},
                detectors=[
                    {"kind": "cosine_mad"},
                    {"kind": "krum", "name": "near", "threshold": {"kind": "calibrated"}},
                ],
            )
            run_to_end(given, path / f"{fraction}-{seed}")
            entries.append(Entry(Run.load(path / f"{fraction}-{seed}")))
    return entries


@pytest.mark.slow
def test_numbers_have_how_far_malicious_clients_are(runs: list[Entry]) -> None:
    clean, attacked = runs[0].run, runs[2].run
    last = attacked.clients[attacked.clients["round"] == attacked.clients["round"].max()]
    bad = last.loc[last["malicious"] == 1, "cosine_payload_z"]
    values = measure([attacked], "last")
    assert values["cosine_payload_z_malicious"] == pytest.approx([bad.abs().mean()])
    assert values["cosine_payload_z_malicious"][0] > 3
    assert not [name for name in measure([clean], "last") if name.endswith("z_malicious")]


def test_precision_is_of_the_round_of_its_recall(runs: list[Entry], tmp_path: Path) -> None:
    """Of a last round in which nobody is flagged, an earlier round's precision says nothing."""
    path = tmp_path / "run"
    shutil.copytree(runs[2].run.path, path)
    table = pd.read_csv(path / "detections.csv")
    last = table["round"] == table["round"].max()
    table.loc[~last, ["precision", "recall", "f1"]] = 1.0
    table.loc[last, ["precision", "recall", "f1"]] = [math.nan, 0.0, 0.0]
    table.to_csv(path / "detections.csv", index=False)
    values = measure([Run.load(path)], "last")
    assert values["cosine_payload_recall"] == [0.0]
    assert values["cosine_payload_f1"] == [0.0]
    assert "cosine_payload_precision" not in values


@pytest.mark.slow
def test_a_run_says_who_was_caught(runs: list[Entry]) -> None:
    run = runs[2].run
    table = tabulate_detections(run)
    assert [row[0] for row in table.rows] == ["cosine_payload", "near"]
    (bad,) = {int(c) for c in run.clients.loc[run.clients["malicious"] == 1, "client"]}
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert {row["malicious"] for row in rows} == {f"{bad}"}
    assert rows[0]["flagged"] == f"{bad}"
    assert rows[0]["AUROC"] == "1.00"
    assert [row["threshold"] for row in rows] == ["3 sigma", "calibrated 1%"]
    assert rows[0]["false alarms, all rounds"].endswith(" of 8")


@pytest.mark.slow
def test_a_clean_run_says_that_there_was_nobody(runs: list[Entry]) -> None:
    rows = [
        dict(zip(tabulate_detections(runs[0].run).columns, r, strict=True))
        for r in tabulate_detections(runs[0].run).rows
    ]
    assert {row["malicious"] for row in rows} == {"none"}
    assert {row["AUROC"] for row in rows} == {""}


def test_a_sweep_holds_attacked_runs_against_their_clean_twins(runs: list[Entry]) -> None:
    table = compare_detections(runs)
    assert table is not None
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["detector"] for row in rows] == ["cosine_payload", "near"], "a row for both seeds"
    bad = [
        str(int(e.run.clients.loc[e.run.clients["malicious"] == 1, "client"].iloc[0]))
        for e in runs[2:]
    ]
    assert rows[0]["malicious"] == " | ".join(bad)
    hits = sum(int(e.run.clients["cosine_payload_flagged"].sum()) for e in runs[:2])
    low, high = clopper_pearson(hits, 20)
    rate = f"{5 * hits:.1f}% [{100 * low:.1f}, {100 * high:.1f}], {hits} of 20"
    assert rows[0]["clean run's alarms"] == rate, "two seeds, two rounds, five clients"
    assert rows[0]["caught"] == "100.0% [15.8, 100.0], 2 of 2"
    ends = {n: [e.run.clients.query("round == 2") for e in runs[s]] for n, s in HALVES.items()}
    for column, name in (("honest flagged", "attacked"), ("clean run's flagged", "clean")):
        honest = pd.concat(ends[name]).query("malicious == 0")["cosine_payload_flagged"]
        assert rows[0][column].endswith(f" {int(honest.sum())} of {len(honest)}")
    assert rows[0]["seeds"] == "2"
    assert {row["window"] for row in rows} == {"round"}
    assert {row["threshold"] for row in rows} == {"3 sigma", "calibrated 1%"}
    values = [e.run.rounds["attack_success"].iloc[-1] for e in runs[2:]]
    assert rows[0]["attack success"].startswith(f"{50 * sum(values):.1f}% [")


def copy_entry(entry: Entry, path: Path, clients: pd.DataFrame, success: float = 0.9) -> Entry:
    """Copy a run with another table of clients, and another success of its backdoor."""
    shutil.copytree(entry.run.path, path)
    facts = json.loads((path / "summary.json").read_text())
    facts["last"]["attack_success"] = success
    (path / "summary.json").write_text(json.dumps(facts))
    clients.to_csv(path / "clients.csv", index=False)
    return Entry(Run.load(path))


def test_clients_of_many_runs_are_counted_and_not_named(runs: list[Entry], tmp_path: Path) -> None:
    clients, caught = runs[2].run.clients, runs[2].run.clients.copy()
    (bad,) = clients.loc[clients["malicious"] == 1, "client"].unique()
    caught["cosine_payload_flagged"] = (caught["client"] == bad).astype(int)
    four = [copy_entry(runs[2], tmp_path / f"{number}", caught) for number in range(4)]
    for entries, malicious in ((four[:3], f"{bad} | {bad} | {bad}"), (four, "4 in 4 runs")):
        table = compare_detections(entries)
        assert table is not None
        row = dict(zip(table.columns, table.rows[0], strict=True))
        assert (row["malicious"], row["flagged"]) == (malicious, malicious)


def test_attackers_whose_backdoor_does_not_take_are_counted_apart(
    runs: list[Entry], tmp_path: Path
) -> None:
    """Of two seeds, of which one is caught and one is not, the backdoor takes in one or none."""
    for one, other, message in (
        (0.9, 0.5, "100.0% [2.5, 100.0], 1 of 1"),
        (0.5, 0.51, "0.0% [0.0, 97.5], 0 of 1"),
        (0.2, 0.5, "no seed"),
        (0.9, 0.9, None),
    ):
        spared = runs[3].run.clients.copy()
        spared.loc[spared["malicious"] == 1, "cosine_payload_flagged"] = 0
        entries = [
            copy_entry(runs[2], tmp_path / f"{one}-{other}", runs[2].run.clients, one),
            copy_entry(runs[3], tmp_path / f"{one}-{other}-spared", spared, other),
        ]
        table = compare_detections(entries, "last")
        assert table is not None
        row = dict(zip(table.columns, table.rows[0], strict=True))
        assert row["caught"].endswith("1 of 2")
        shown = row.get("caught where it takes")
        assert says(shown, message) if message else shown is None
        assert ("above 50%" in table.title) == (message is not None)


def test_who_is_left_out_was_caught_and_who_is_never_judged_is_missed(
    runs: list[Entry], tmp_path: Path
) -> None:
    """The client that is left out after the first round, for one honest and one malicious."""
    clients = runs[2].run.clients.copy()
    (bad,) = clients.loc[clients["malicious"] == 1, "client"].unique()
    first, second, unjudged = [c for c in range(5) if c != bad][:3]
    column = "cosine_payload_flagged"
    clients[column] = clients[column].astype(float)
    clients.loc[clients["client"].isin([bad, first]), column] = 1.0
    clients.loc[clients["client"].isin([bad, first]) & (clients["round"] == 2), column] = math.nan
    clients.loc[clients["client"] == second, column] = 0.0
    clients.loc[clients["client"] == unjudged, ["malicious"]] = 1
    clients.loc[clients["client"] == unjudged, column] = math.nan
    table = compare_detections([copy_entry(runs[2], tmp_path / "run", clients)])
    assert table is not None
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["caught"].endswith("1 of 2")
    assert row["honest flagged"].endswith("1 of 3")
    assert set(row["flagged"].split(", ")) == {str(bad), str(first)}
    assert row["F1"] == f"{2 * 1 / (2 + 2):.2f}"


@pytest.mark.parametrize(
    ("hits", "trials", "gist"),
    [
        # R's binom.test(1, 420), binom.test(6, 420), binom.test(0, 420), binom.test(3, 3)
        (1, 420, "0.2% [0.006, 1.3], 1 of 420"),
        (6, 420, "1.4% [0.5, 3.1], 6 of 420"),
        (0, 420, "0.0% [0.0, 0.9], 0 of 420"),
        (3, 3, "100.0% [29.2, 100.0], 3 of 3"),
        (0, 0, ""),
    ],
)
def test_a_rate_has_its_exact_interval(hits: int, trials: int, gist: str) -> None:
    assert Count(hits, trials).cell == gist


def test_an_exact_interval_s_ends_are_where_the_tails_hold_a_fortieth() -> None:
    low, high = clopper_pearson(6, 420)
    assert binom.sf(5, 420, low) == pytest.approx(0.025)
    assert binom.cdf(6, 420, high) == pytest.approx(0.025)


def test_seeds_widen_an_attack_s_interval_and_heads_do_not_narrow_it() -> None:
    def write_cell(*values: float, size: int = 100) -> str:
        runs = [
            SimpleNamespace(
                rounds=pd.DataFrame({"attack_success": [0.0, value]}),
                summary={"attack_samples": size},
            )
            for value in values
        ]
        return write_success(runs, "attack_success", "last")

    assert write_cell(0.9) == "90.0% [82.4, 95.1]"  # binom.test(90, 100)
    assert write_cell(0.9, 0.9, 0.9) == "90.0% [86.0, 93.2]"  # binom.test(270, 300)
    assert write_cell(0.8, 0.9, 1.0) == "90.0% [65.2, 100.0]"  # t.test: a half-width of 24.8
    assert write_cell(0.9, size=0) == "90.0%", "a run that does not say of how many"


def test_accuracy_and_attack_success_are_of_one_round_and_the_clean_run_has_its_own(
    runs: list[Entry], tmp_path: Path
) -> None:
    """The best round on validation is the first here, and the backdoor's success another there."""
    entries = []
    for index, entry in enumerate(runs):
        path = tmp_path / str(index)
        shutil.copytree(entry.run.path, path)
        facts = json.loads((path / "summary.json").read_text())
        early = 0.25 if index < 2 else 0.75
        facts["best_on_validation"] = facts["last"] | {"round": 1, "attack_success": early}
        facts["last"]["attack_success"] = 0.5
        (path / "summary.json").write_text(json.dumps(facts))
        entries.append(Entry(Run.load(path)))
    table = compare_detections(entries)
    assert table is not None
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["attack success"].startswith("75.0% [")
    assert row["clean run's success"].startswith("25.0% [")
    assert "best on validation" in table.title
    last = compare_detections(entries, "last")
    assert last is not None
    assert "50.0% [" in last.rows[0][last.columns.index("attack success")]
    compared = compare(entries)
    shown = [row[compared.columns.index("attack success")] for row in compared.rows]
    assert [each[:7] for each in shown] == ["25.0% [", "75.0% ["]


def test_an_attack_that_nobody_watched_has_its_row(tmp_path: Path) -> None:
    malicious = {"fraction": 0.2, "poison": [QUIET]}
    run_to_end(scenario(clients={"count": 5, "malicious": malicious}), tmp_path / "run")
    table = compare_detections([Entry(Run.load(tmp_path / "run"))])
    assert table is not None
    (row,) = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert row["detector"] == "none"
    assert "[" in row["attack success"]


def test_a_sweep_without_clean_runs_or_without_attacks(runs: list[Entry]) -> None:
    attacked, clean = compare_detections(runs[2:]), compare_detections(runs[:2])
    assert attacked is not None
    assert clean is not None
    assert "clean run's alarms" not in attacked.columns
    assert len(clean.rows) == 2
    assert compare_detections([]) is None


def test_a_sweep_without_attacks_has_a_row_for_each_setting(
    runs: list[Entry], tmp_path: Path
) -> None:
    """The false alarms of two thresholds, over two seeds each, are not summed."""
    strict = []
    for number, entry in enumerate(runs[:2]):
        path = tmp_path / str(number)
        shutil.copytree(entry.run.path, path)
        fields = yaml.safe_load((path / "scenario.yaml").read_text())
        fields["detectors"][0]["threshold"] = {"kind": "three_sigma", "sigmas": 1.0}
        (path / "scenario.yaml").write_text(yaml.safe_dump(fields))
        table = entry.run.detections.copy()
        table.loc[table["detector"] == "cosine_payload", "threshold"] = "1 sigma"
        table.to_csv(path / "detections.csv", index=False)
        flags = entry.run.clients.assign(cosine_payload_flagged=1)
        flags.to_csv(path / "clients.csv", index=False)
        strict.append(Entry(Run.load(path)))
    table = compare_detections([*runs[:2], *strict])
    assert table is not None
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    rows = [row for row in rows if row["detector"] == "cosine_payload"]
    assert [(row["threshold"], row["seeds"]) for row in rows] == [
        ("3 sigma", "2"),
        ("1 sigma", "2"),
    ]
    assert rows[1]["false alarms"].endswith("20 of 20")
    assert not rows[0]["false alarms"].endswith("20 of 20")
