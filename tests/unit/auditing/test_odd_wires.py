"""Wires that are odd: a sentence each, or a verdict on what can be judged; never a traceback."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from gists import gist
from torch import Tensor

import simsplit
from simsplit.auditing.recordings import stack_labels
from simsplit.errors import SimsplitError
from simsplit.wires.facts import check_facts
from simsplit.wires.transcript_writer import TranscriptWriter

SENT = torch.rand(80, 6, generator=torch.Generator().manual_seed(0))
IMAGES = {"modality": "images", "image": {"channels": 1, "size": [1, 6]}}


def write(
    path: Path,
    packets: list[Tensor],
    truth: list[Tensor],
    steps: tuple[int, ...] = (0, 1),
    **facts: Any,
) -> Path:
    """Write a transcript whose packets and truth have 40 samples each."""
    writer = TranscriptWriter(path, check_facts({"modality": "table", **facts}))
    for number, (step, packet, inputs) in enumerate(zip(steps, packets, truth, strict=True)):
        ids = range(40 * number, 40 * number + 40)
        writer.add("smashed", [packet], step=step, ids=ids, phase="targets")
        writer.add_truth(ids, inputs, torch.arange(40) % 4)
    writer.close()
    return path


@pytest.mark.parametrize(
    ("truth", "said"),
    [
        ([SENT[:40], SENT[40:].index_fill(0, torch.tensor([3]), math.nan)], "truth ... finite"),
        ([SENT[:40, :0], SENT[40:, :0]], "truth ... one shape"),
        (
            [torch.cat([SENT[:40], SENT[:40]], 1), SENT[40:]],
            "pairs ... inputs of shape [6] ... [12]",
        ),
    ],
)
def test_a_truth_that_cannot_be_judged_is_named(
    tmp_path: Path, truth: list[Tensor], said: str
) -> None:
    """One number that is no number would else make every verdict 'nothing was read'."""
    wire = write(tmp_path / "wire", [SENT[:40], SENT[40:]], truth)
    with pytest.raises(SimsplitError, match=gist(said)):
        simsplit.audit(wire, tmp_path / "out", attacks=["ridge"], targets=50, knows={"pairs": 30})


@pytest.mark.parametrize(
    ("packets", "steps", "said"),
    [
        ([SENT[:40], SENT[40:]], (0, 0), "for each sample"),
        ([torch.tensor(1.0), SENT[40:]], (0, 1), "for each sample"),
        ([SENT[:40, 0], SENT[40:, 0]], (0, 1), "axis"),
        ([SENT[:40], SENT[40:, :3]], (0, 1), "one shape"),
    ],
)
def test_packets_that_fit_no_attack_are_named(
    tmp_path: Path, packets: list[Tensor], steps: tuple[int, ...], said: str
) -> None:
    wire = write(tmp_path / "wire", packets, [SENT[:40], SENT[40:]], steps)
    with pytest.raises(SimsplitError, match=gist(said)):
        simsplit.audit(wire, tmp_path / "out", attacks=["ridge"], targets=80, knows={"pairs": 0})


@pytest.mark.parametrize(
    ("pixels", "image", "said"),
    [
        (SENT.view(80, 1, 1, 6), {"mean": [0.1, 0.2, 0.3], "std": [1, 1, 1]}, "image: mean"),
        (SENT.view(80, 1, 1, 6), {"mean": [0.1]}, "image: mean"),
        (SENT, {}, "images must be"),
        (SENT[:, 0], {}, "images must be"),
    ],
)
def test_images_of_another_form_than_their_facts_are_named(
    tmp_path: Path, pixels: Tensor, image: dict[str, Any], said: str
) -> None:
    facts = {**IMAGES, "image": {**IMAGES["image"], **image}}
    wire = write(tmp_path / "wire", [SENT[:40], SENT[40:]], [*pixels.split(40)], **facts)
    with pytest.raises(SimsplitError, match=gist(said)):
        simsplit.audit(wire, tmp_path / "out", attacks=["ridge"])


@pytest.mark.parametrize("pixels", [torch.full((80, 1, 1, 6), 5.0), SENT.view(80, 1, 1, 6)])
def test_images_of_one_line_or_one_value_are_drawn(tmp_path: Path, pixels: Tensor) -> None:
    wire = write(tmp_path / "wire", [SENT[:40], SENT[40:]], [*pixels.split(40)], **IMAGES)
    made = simsplit.audit(wire, tmp_path / "out", attacks=["ridge"])
    assert (made.run.path / "figures/best-and-worst.png").is_file()


def test_known_inputs_are_those_of_one_shape(tmp_path: Path) -> None:
    packets = [*SENT[:40].split(40), SENT[40:], SENT[:40, :3]]
    truth = [SENT[:40], SENT[40:], SENT[:40] + 1]
    wire = write(tmp_path / "wire", packets, truth, (0, 1, 2))
    made = simsplit.audit(wire, tmp_path / "out", attacks=["ridge"], targets=40)
    assert made.facts["pairs"] == 40


@pytest.mark.parametrize("label", [-1.0, 0.5, 2.0**40])
def test_what_names_no_class_is_no_label(label: float) -> None:
    """Every class has a name, so one label could claim any memory."""
    assert stack_labels([torch.tensor(1.0), torch.tensor(label)]) is None


def test_values_whose_squared_errors_overflow_are_named(tmp_path: Path) -> None:
    """An infinite error beside an infinite guess would be 'nothing was read'."""
    truth = [SENT[:40] * 1e25, SENT[40:] * 1e25]
    wire = write(tmp_path / "wire", [SENT[:40], SENT[40:]], truth)
    with pytest.raises(SimsplitError, match=gist("truth ... 9.97e+24")):
        simsplit.audit(wire, tmp_path / "out", attacks=["ridge"])
    wire = write(tmp_path / "large", [SENT[:40], SENT[40:]], [SENT[:40] * 1e17, SENT[40:] * 1e17])
    assert " are read " in simsplit.audit(wire, tmp_path / "read", attacks=["ridge"]).verdict


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_truth_or_a_packet_that_float32_cannot_hold_is_named(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    huge = SENT.to(dtype) * 1e300
    wire = write(tmp_path / "truth", [SENT[:40], SENT[40:]], [huge[:40], huge[40:]])
    with pytest.raises(SimsplitError, match=gist("truth ... finite in float32")):
        simsplit.audit(wire, tmp_path / "one", attacks=["ridge"])
    wire = write(tmp_path / "packets", [huge[:40], huge[40:]], [SENT[:40], SENT[40:]])
    with pytest.raises(SimsplitError, match=gist("step ... finite in float32")):
        simsplit.audit(wire, tmp_path / "two", attacks=["ridge"])


def test_a_step_with_an_infinite_gradient_leaves_the_others_their_attacks(tmp_path: Path) -> None:
    """Mixed precision sends such gradients now and then, and labels are read by the others."""
    facts = check_facts({"modality": "table", "legs": ["smashed", "features", "features_grad"]})
    writer = TranscriptWriter(tmp_path / "wire", facts)
    for step in range(3):
        ids, labels = range(30 * step, 30 * step + 30), torch.arange(30) % 3
        grads = torch.eye(3)[labels] + 0.01 * SENT[:30, :3]
        grads[0, 0] += math.inf if step == 2 else 0
        for leg, sent in (("smashed", SENT[:30]), ("features", SENT[:30, :3])):
            writer.add(leg, [sent], step=step, ids=ids)
        writer.add("features_grad", [grads], step=step, ids=ids)
        writer.add_truth(ids, SENT[:30], labels)
    writer.close()
    options: dict[str, Any] = {"attacks": ["kmeans"], "targets": 60, "knows": {"pairs": 0}}
    made = simsplit.audit(tmp_path / "wire", tmp_path / "out", **options)
    assert made.share > 0.9
    assert made.facts["targets"] == 30
    assert "1 of 2 steps" in made.notes[0]


def test_a_network_that_is_only_used_is_audited(tmp_path: Path) -> None:
    writer = TranscriptWriter(tmp_path / "wire", check_facts({"modality": "table"}))
    for step, rows in enumerate(SENT.split(20)):
        ids = range(20 * step, 20 * step + 20)
        writer.add("smashed", [2 * rows], step=step, ids=ids, phase="evaluate")
        writer.add_truth(ids, rows)
    writer.close()
    made = simsplit.audit(tmp_path / "wire", tmp_path / "out", attacks=["ridge"])
    assert (made.facts["targets"], made.facts["pairs"]) == (40, 40)
    assert made.findings[0].is_above_guess


def test_a_phase_without_a_known_truth_is_named(tmp_path: Path) -> None:
    wire = write(tmp_path / "wire", [SENT[:40], SENT[40:]], [SENT[:40], SENT[40:]])
    table = wire / "packets.csv"
    table.write_text(table.read_text().replace("targets", "tragets"))
    with pytest.raises(SimsplitError, match=gist("phase 'evaluate' ... truth")):
        simsplit.audit(wire, tmp_path / "out", attacks=["ridge"])


@pytest.mark.parametrize("targets", [0, -3])
def test_a_number_of_targets_is_positive(tmp_path: Path, targets: int) -> None:
    wire = write(tmp_path / "wire", [SENT[:40], SENT[40:]], [SENT[:40], SENT[40:]])
    with pytest.raises(SimsplitError, match=gist(f"targets ... 1 ... {targets}")):
        simsplit.audit(wire, tmp_path / "out", targets=targets)


def test_an_attack_that_cannot_solve_leaves_the_others_their_turn(tmp_path: Path) -> None:
    facts = check_facts({"modality": "table", "legs": ["smashed", "features", "features_grad"]})
    writer = TranscriptWriter(tmp_path / "wire", facts)
    for leg in facts.legs:
        sent = SENT if leg == "smashed" else 3e38 * (SENT - 0.5)
        writer.add(leg, [sent], ids=range(80), phase="targets")
    writer.add_truth(range(80), SENT, torch.arange(80) % 2)
    writer.close()
    made = simsplit.audit(tmp_path / "wire", tmp_path / "out", attacks=["norm", "ridge"])
    assert [each.attack for each in made.findings] == ["ridge"]
    assert "norm" in made.wants[0]


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    wire = write(tmp_path / "Übung 日本", [SENT[:40], SENT[40:]], [SENT[:40], SENT[40:]])
    made = simsplit.audit(wire, tmp_path / "out", attacks=["ridge"])
    assert made.run.summary["name"] == "audit-bung"


def test_an_audit_offers_no_option_that_it_lacks(tmp_path: Path) -> None:
    wire = write(tmp_path / "wire", [SENT[:40], SENT[40:]], [SENT[:40], SENT[40:]])
    simsplit.audit(wire, tmp_path / "out", attacks=["ridge"])
    with pytest.raises(SimsplitError, match=gist("out ... --out")) as error:
        simsplit.audit(wire, tmp_path / "out", attacks=["ridge"])
    assert "--resume" not in str(error.value)


def test_an_attack_that_the_budget_ends_is_not_said_to_be_untried(tmp_path: Path) -> None:
    wire = write(tmp_path / "wire", [SENT[:40], SENT[40:]], [SENT[:40], SENT[40:]])
    made = simsplit.audit(wire, tmp_path / "out", attacks=["ridge"], budget=-1.0)
    assert made.findings == []
    assert "tried" not in made.verdict
    assert "budget" in made.wants[0]
