"""A transcript on tensors: small, with inputs that tell which sample they are."""

from pathlib import Path

import pytest
import torch
from numbered_images import NUM_SAMPLES, draw_images

from simsplit.wires.transcribing import transcribe


@pytest.fixture
def wire(tmp_path: Path) -> Path:
    """Return the folder of a transcript of images at an identity head, with labels that cross."""
    pixels = draw_images()
    transcribe(
        tmp_path / "wire",
        smashed=pixels,
        features=pixels.flatten(1),
        inputs=pixels,
        labels=torch.arange(NUM_SAMPLES) % 4,
        sends_labels=True,
        batch_size=8,
    )
    return tmp_path / "wire"
