import os
from pathlib import Path

import pytest


@pytest.fixture
def real_data():
    """A folder of real data sets in parquet; see the skip's message for how to provide one."""
    beside = Path(__file__).resolve().parents[4] / "shared" / "data"
    folder = Path(os.environ.get("SIMSPLIT_DATA", beside))

    def find(name):
        if not (folder / name / "train.parquet").is_file():
            pytest.skip(f"no {name}/train.parquet in {folder}; set SIMSPLIT_DATA to a folder of it")
        return folder / name

    return find
