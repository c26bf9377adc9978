"""A reference, the same samples without the defence, is attacked too and stands beside."""

import json
from pathlib import Path

import numpy as np
import pytest

import simsplit
from simsplit.auditing.audit_tables import tabulate_audit


def transcribe(path: Path, smashed: np.ndarray, inputs: np.ndarray | None) -> None:
    simsplit.transcribe(path, smashed=smashed, inputs=inputs)


@pytest.fixture
def wire(tmp_path: Path) -> Path:
    """Rows that noise hides, and the same rows without it."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200, 6)).astype(np.float32)
    noise = 30 * rng.standard_normal((200, 6)).astype(np.float32)
    transcribe(tmp_path / "wire", rows + noise, rows)
    transcribe(tmp_path / "wire" / "reference", rows, None)
    return tmp_path / "wire"


def test_the_same_attack_without_the_defence_stands_beside(wire: Path, tmp_path: Path) -> None:
    made = simsplit.audit(wire, tmp_path / "audit", attacks=["ridge"])
    assert made.reference is not None
    (ridge,), (plain,) = made.findings, made.reference.findings
    assert not ridge.is_above_guess
    assert plain.share > 0.99
    assert plain.samples == ridge.samples
    assert made.share == 0.0, "what the defence hides is not in the figure that CI holds"
    assert made.verdict.endswith(f"Without the defence, v{plain.sentence[1:]}")
    assert "without the defence" in tabulate_audit(made).columns
    kept = json.loads((made.run.path / "audit.json").read_text())
    assert kept["reference"]["attacks"][0]["share"] == plain.share
    assert (made.run.path / "reference" / "summary.json").exists()


def test_without_a_reference_nothing_is_said_of_one(wire: Path, tmp_path: Path) -> None:
    import shutil

    shutil.rmtree(wire / "reference")
    made = simsplit.audit(wire, tmp_path / "audit", attacks=["ridge"])
    assert made.reference is None
    assert "defence" not in made.verdict
    assert "without the defence" not in tabulate_audit(made).columns
