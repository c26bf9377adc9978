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
