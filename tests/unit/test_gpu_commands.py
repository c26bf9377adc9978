"""The commands of `make gpu`: their order, their time, and how they go on; no GPU is needed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gpu
import pytest
from gpu import COMMANDS, Command, list_left

from simsplit.boards.track import list_tracks, load_track


def make_command(name: str, code: str, *, goes_on: bool = False) -> Command:
    return Command(name, f"what of {name}?", (sys.executable, "-c", code), 1, goes_on)


WORKS = "import json; print(json.dumps({'times': 2}))"


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> tuple[Command, ...]:
    made = (
        make_command("first", "raise SystemExit('no')"),
        make_command("second", WORKS),
        make_command("board", "print('a table')", goes_on=True),
    )
    monkeypatch.setattr(gpu, "COMMANDS", made)
    monkeypatch.setattr(gpu, "has_gpu", lambda: True)
    return made


def test_the_most_telling_come_first_and_each_takes_less_than_ten_minutes() -> None:
    names = [each.name for each in COMMANDS]
    assert len(set(names)) == len(names)
    assert names[:3] == ["devices", "crowds", "resnet18-10"]
    assert names[-7:] == [f"board-{track}" for track in gpu_tracks()]
    assert all(each.minutes * 60 < gpu.LIMIT_S for each in COMMANDS)
    assert all((gpu.ROOT / each.words[1]).exists() for each in COMMANDS if not each.goes_on)


def gpu_tracks() -> list[str]:
    tracks = ["images", "labels", "texts", "generation", "backdoor", "bytes", "members"]
    full = [name for name in list_tracks() if "full" in load_track(name).tiers]
    assert sorted(full) == sorted(tracks)
    return tracks


def test_without_a_gpu_they_are_listed_in_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "has_gpu", lambda: False)
    assert gpu.main(["--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    places = [printed.index(f". {each.name} ") for each in COMMANDS]
    assert places == sorted(places)
    assert not (tmp_path / "out").exists()


def test_a_failure_ends_nothing_and_only_what_is_missing_runs_again(
    commands: tuple[Command, ...], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert gpu.main(["--out", str(out)]) == 1
    first, second, board = (json.loads((out / f"{c.name}.json").read_text()) for c in commands)
    assert (first["succeeded"], second["succeeded"], board["succeeded"]) == (False, True, True)
    assert second["figures"] == {"times": 2}
    assert [each.name for each in list_left(commands, out)] == ["first", "board"]
    page = gpu.write_page(out, commands)
    assert page.index("first") < page.index("second") < page.index("a table")
    assert "torch" in second["machine"]
    assert f"on {second['machine']}" in page


def test_one_is_run_again_by_its_name(commands: tuple[Command, ...], tmp_path: Path) -> None:
    for _ in range(2):
        assert gpu.main(["--out", str(tmp_path), "--only", "sec*"]) == 0
    assert {file.name for file in tmp_path.glob("*.json")} == {"second.json"}


def test_one_that_takes_too_long_is_ended(
    commands: tuple[Command, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "LIMIT_S", 0.2)
    slow = make_command("slow", "import time; time.sleep(60)")
    assert not gpu.run(slow, tmp_path)
    assert gpu.read(slow, tmp_path)["succeeded"] is False


def test_make_gpu_installs_nothing_and_takes_the_python_that_there_is():
    """A bare machine with a GPU has a torch of its own, and often no network."""
    words = ["make", "--dry-run", "gpu", "VENV=/nowhere", f"PYTHON={sys.executable}"]
    # a make above this one would have it name its folders
    own = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(words, cwd=gpu.ROOT, env=own, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"PYTHONPATH={gpu.ROOT}", sys.executable, "tools/gpu.py"]
