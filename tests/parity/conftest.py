"""Commands in a folder of their own, whose processes end with the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Command


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    made = Command(tmp_path)
    yield made
    made.kill()
