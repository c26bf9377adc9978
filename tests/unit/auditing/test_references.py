"""A reference, the same samples without the defence, is attacked too and stands beside."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import simsplit
from simsplit.auditing.audit_options import AuditOptions
from simsplit.auditing.audit_tables import tabulate_audit
from simsplit.auditing.preparing_audits import PreparedAudit, prepare_audit
from simsplit.errors import RunError


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
    shutil.rmtree(wire / "reference")
    made = simsplit.audit(wire, tmp_path / "audit", attacks=["ridge"])
    assert made.reference is None
    assert "defence" not in made.verdict
    assert "without the defence" not in tabulate_audit(made).columns


def test_images_stay_images_where_the_reference_has_no_inputs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.random((120, 1, 12, 12)).astype(np.float32)
    noise = rng.standard_normal(images.shape).astype(np.float32)
    transcribe(tmp_path / "wire", images + 30 * noise, images)
    transcribe(tmp_path / "wire" / "reference", images, None)
    made = simsplit.audit(tmp_path / "wire", tmp_path / "audit", attacks=["ridge"])
    assert made.reference is not None
    assert {each.kind for each in (*made.findings, *made.reference.findings)} == {"images"}


def prepare(wire: Path, **options: object) -> tuple[PreparedAudit, PreparedAudit]:
    """Prepare the audits of a wire and of its reference."""
    given = {"knows": {}, "public": None, "targets": 20, "client": None, "seed": 0, "device": "cpu"}
    asked = AuditOptions(wire, **{**given, **options})  # type: ignore[arg-type]
    own = prepare_audit(asked)
    return own, prepare_audit(replace(asked, reference=True, samples=own.samples))


def test_the_same_samples_are_attacked_in_another_order_too(tmp_path: Path) -> None:
    """Training attacks the last samples; a network that is only used, the first."""
    rows = np.random.default_rng(0).standard_normal((200, 6)).astype(np.float32)
    order = np.random.default_rng(1).permutation(200)
    simsplit.transcribe(tmp_path / "w", smashed=rows + 1, inputs=rows, phase="train", batch_size=50)
    simsplit.transcribe(
        *(tmp_path / "w" / "reference",),
        smashed=rows[order],
        ids=order.tolist(),
        phase="evaluate",
        batch_size=30,
    )
    own, plain = prepare(tmp_path / "w")
    assert set(own.samples) == set(plain.samples)
    sent = torch.cat([packet.tensors[0] for (packet,) in plain.record.testimony.targets])
    assert torch.equal(sent, torch.from_numpy(rows[[*plain.samples]]))
    assert torch.equal(plain.ground.data.train.inputs, sent), "the truth of the same samples"


def test_other_samples_are_no_reference(wire: Path, tmp_path: Path) -> None:
    rows = np.zeros((200, 6), np.float32)
    shutil.rmtree(wire / "reference")
    simsplit.transcribe(wire / "reference", smashed=rows, ids=[*range(1000, 1200)])
    with pytest.raises(RunError, match="same ids"):
        simsplit.audit(wire, tmp_path / "audit", attacks=["ridge"])
    assert not (tmp_path / "audit").exists()


def test_known_inputs_of_another_wire_are_those_without_the_defence(tmp_path: Path) -> None:
    """What was sent for them with the defence teaches nothing of the reference."""
    rng = np.random.default_rng(0)
    turn, _ = np.linalg.qr(rng.standard_normal((6, 6)).astype(np.float32))
    for name in ("wire", "known"):
        rows = rng.standard_normal((200, 6)).astype(np.float32)
        transcribe(tmp_path / name, rows @ turn, rows)
        transcribe(tmp_path / name / "reference", rows, None)
    asked = {"attacks": ["ridge"], "knows": {"pairs": str(tmp_path / "known")}}
    made = simsplit.audit(tmp_path / "wire", tmp_path / "a", **asked)  # type: ignore[arg-type]
    assert made.reference is not None
    assert made.reference.findings[0].share > 0.99
    shutil.rmtree(tmp_path / "known" / "reference")
    made = simsplit.audit(tmp_path / "wire", tmp_path / "b", **asked)  # type: ignore[arg-type]
    assert made.reference is not None
    assert made.reference.findings[0].share > 0.99
    assert any("no reference" in note for note in made.reference.notes)
