"""What prints a finished run starts at once: it imports neither torch nor what comes with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders import run_to_end, scenario

HEAVY = ("torch", "sklearn", "transformers", "datasets", "skimage", "scipy.stats", "ray", "flwr")
COMMANDS = (
    "show {run}",
    "show {run} --json",
    "compare {run} {run}",
    "compare {run} --format csv",
    "clients {run}",
    "rank {run}",
    "report {run}",
)
CODE = """
import sys
from simsplit.__main__ import app
for words in {words!r}:
    app(words, standalone_mode=False)
    loaded = [name for name in {heavy!r} if name in sys.modules]
    assert not loaded, f"{{words[0]}} imports {{', '.join(loaded)}}"
"""


PRINTING = (
    "list",
    "list methods",
    "schema",
    "cite",
    "cite scenarios/quickstart.yaml",
    "papers",
    "papers lightsplit/table4",
    "board",
    "board images --show",
)
PRINT = """
import sys
from simsplit.__main__ import main
for words in {words!r}:
    sys.argv = ["simsplit", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
print(*(name for name in {heavy!r} if name in sys.modules), file=sys.stderr)
"""
NOT_TO_VALIDATE = (
    "sklearn",
    "datasets",
    "flwr_datasets",
    "matplotlib",
    "pandas",
    "scipy",
    "IPython",
)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    given = scenario(schedule={"rounds": 1}, data={"auxiliary": 0.2}, attacks=[{"kind": "ridge"}])
    return run_to_end(given, tmp_path / "run").path


def test_what_reads_a_finished_run_imports_no_torch(finished):
    words = [each.format(run=finished).split() for each in COMMANDS]
    code = CODE.format(words=words, heavy=HEAVY)
    assert run(code).returncode == 0


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr[-500:]
    return done


def test_what_only_prints_imports_no_torch_where_nothing_has_changed(tmp_path):
    heavy = (*HEAVY, "pandas", "numpy")
    code = PRINT.format(words=[words.split() for words in PRINTING], heavy=heavy)
    first, again = (run(code, SIMSPLIT_CACHE=str(tmp_path)) for _ in range(2))
    assert "torch" in first.stderr
    assert again.stderr.splitlines()[-1] == ""
    assert again.stdout == first.stdout


def test_validate_imports_nothing_that_it_does_not_use():
    code = PRINT.format(words=[["validate", "scenarios/quickstart.yaml"]], heavy=NOT_TO_VALIDATE)
    assert run(code).stderr.splitlines() == [""]
