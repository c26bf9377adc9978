"""What tables say of who was malicious and who was caught."""

from pathlib import Path

import pytest
from builders import finished, scenario

from simsplit.report.comparison import Entry
from simsplit.report.detections import detected, detections_of
from simsplit.results import Run

LOUD = {"kind": "tamper", "how": "sign", "strength": 1.0}
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
                detectors=[{"kind": "cosine_mad"}, {"kind": "krum", "name": "near"}],
            )
            finished(given, path / f"{fraction}-{seed}")
            entries.append(Entry(Run.load(path / f"{fraction}-{seed}")))
    return entries


@pytest.mark.slow
def test_a_run_says_who_was_caught(runs: list[Entry]) -> None:
    run = runs[2].run
    table = detected(run)
    assert [row[0] for row in table.rows] == ["cosine_payload", "near"]
    (bad,) = {int(c) for c in run.clients.loc[run.clients["malicious"] == 1, "client"]}
    assert {row[1] for row in table.rows} == {f"{bad}"}
    assert table.rows[0][2] == f"{bad}"
    assert dict(zip(table.columns, table.rows[0], strict=True))["AUROC"] == "1.00"


def test_a_clean_run_says_that_there_was_nobody(runs: list[Entry]) -> None:
    rows = [
        dict(zip(detected(runs[0].run).columns, r, strict=True)) for r in detected(runs[0].run).rows
    ]
    assert {row["malicious"] for row in rows} == {"none"}
    assert {row["AUROC"] for row in rows} == {""}


def test_a_sweep_holds_attacked_runs_against_their_clean_twins(runs: list[Entry]) -> None:
    table = detections_of(runs)
    assert table is not None
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["detector"] for row in rows] == ["cosine_payload", "near"], "a row for both seeds"
    bad = [
        str(int(e.run.clients.loc[e.run.clients["malicious"] == 1, "client"].iloc[0]))
        for e in runs[2:]
    ]
    assert rows[0]["malicious"] == " | ".join(bad)
    clean = [e.run.clients["cosine_payload_flagged"].mean() * 100 for e in runs[:2]]
    assert rows[0]["clean run's"] == f"{sum(clean) / 2:.1f}%"
    assert rows[0]["attack"].endswith("%")


def test_a_sweep_without_clean_runs_or_without_attacks(runs: list[Entry]) -> None:
    attacked, clean = detections_of(runs[2:]), detections_of(runs[:2])
    assert attacked is not None
    assert clean is not None
    assert "clean run's" not in attacked.columns
    assert len(clean.rows) == 2
    assert detections_of([]) is None
