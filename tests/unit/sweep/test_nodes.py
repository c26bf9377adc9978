"""What a sweep on a cluster checks without one: its options, and the files that nodes send."""

from pathlib import Path
from typing import Any

import pytest
from builders import scenario
from gists import gist, says

from simsplit import board
from simsplit.engine.cluster import UNLIMITED, count_room_of_node
from simsplit.errors import RunError, RunFailedError, ScenarioError
from simsplit.scenario import Sweep, load_sweep
from simsplit.scenario.files import dump
from simsplit.sweep import nodes, run_sweep
from simsplit.sweep.nodes import Cluster, pack, unpack


def make_sweep(folder: Path, **fields: object) -> Sweep:
    file = folder / "seeds.yaml"
    values = scenario(**fields).model_dump(mode="json", exclude_unset=True)
    file.write_text(dump({**values, "sweep": {"seed": [0, 1]}}), encoding="utf-8")
    return load_sweep(file)


def test_what_no_node_can_do_is_refused_before_a_cluster_is_joined(tmp_path: Path) -> None:
    for fields, cluster, field in (
        ({"engine": {"kind": "ray", "hosts": 2}}, Cluster("auto"), "engine.kind"),
        ({"device": "cpu"}, Cluster("auto", gpus=0.5), "device"),
    ):
        with pytest.raises(ScenarioError) as caught:
            run_sweep(make_sweep(tmp_path, **fields), tmp_path / "s", cluster=cluster)
        assert caught.value.problems[0].field == field
    assert not (tmp_path / "s").exists()


def test_no_cluster_there_is_said_by_the_option(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        run_sweep(make_sweep(tmp_path), tmp_path / "s", cluster=Cluster("127.0.0.1:9"))
    assert caught.value.problems[0].field == "--cluster"


COMMANDS = (("sweep", "seeds.yaml"), ("reproduce", "lightsplit/table9"), ("board", "bytes"))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_share_of_no_cluster_is_refused(
    words: tuple[str, ...], tmp_path: Path, simsplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_sweep(tmp_path)
    monkeypatch.chdir(tmp_path)
    for option, share in (("--gpus-per-cell", 0.5), ("--cpus-per-cell", 0)):
        code, _, err = simsplit(*words, option, share)
        assert code == 2
        assert err.startswith(f"error: {option}")
    code, _, err = simsplit(*words, "--cluster", "127.0.0.1:9", "--gpus-per-cell", "1.5")
    assert code == 2
    assert says(err, "error: --gpus-per-cell: ... 1.5")
    assert not [*tmp_path.glob("r*")]


def test_a_board_in_python_runs_on_a_cluster_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScenarioError) as caught:
        board("bytes", seeds=[99], measure=True, cluster=Cluster("127.0.0.1:9"))
    assert caught.value.problems[0].field == "--cluster"
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("resources", "needs", "room"),
    [
        ({"CPU": 4.0}, {"CPU": 1, "GPU": 0}, 4),
        ({"CPU": 4.0}, {"CPU": 3, "GPU": 0}, 1),
        ({"CPU": 0.3}, {"CPU": 0.1, "GPU": 0}, 3),  # as floats, twice
        ({"CPU": 8.0, "GPU": 2.0}, {"CPU": 1, "GPU": 0.5}, 4),
        ({"CPU": 8.0, "GPU": 2.0}, {"CPU": 1, "GPU": 0.6}, 2),  # each on one GPU
        ({"CPU": 8.0, "GPU": 2.0}, {"CPU": 3, "GPU": 0.25}, 2),
        ({"CPU": 8.0, "GPU": 3.0}, {"CPU": 1, "GPU": 2}, 1),
        ({"CPU": 8.0}, {"CPU": 1, "GPU": 0.25}, 0),
        ({}, {"CPU": 0, "GPU": 0}, UNLIMITED),
    ],
)
def test_the_room_of_a_node(
    resources: dict[str, float], needs: dict[str, float], room: int
) -> None:
    assert count_room_of_node(resources, needs) == room


class LostNodes:
    """A Ray whose nodes with GPUs were lost after a task was given out."""

    def wait(self, tasks: list[str], timeout: float) -> tuple[list[str], list[str]]:
        return [], tasks

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": False, "Resources": {}}]


def test_a_cell_is_not_waited_for_that_no_node_can_hold_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("simsplit.sweep.nodes", "simsplit.engine.cluster"):
        monkeypatch.setattr(f"{module}.import_module", lambda _: LostNodes())
    cells = make_sweep(tmp_path, device="auto").cells
    with pytest.raises(RunFailedError, match=gist("--gpus-per-cell ... 0.5 ... 0")):
        nodes._wait_for_one(["a task"], Cluster("auto", gpus=0.5), cells)


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/../../b", "c:\\x", "", "a\0b"])
def test_a_node_writes_nowhere_but_in_the_cells_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError):
        unpack({"scenario.yaml": b"", name: b"x"}, tmp_path / "cell")
    assert not [*tmp_path.rglob("*")]


def test_a_folder_is_unpacked_as_it_was(tmp_path: Path) -> None:
    files = {"scenario.yaml": b"x", "checkpoints/round-1/state.safetensors": b"\0\1"}
    unpack(files, tmp_path / "cell")
    assert pack(tmp_path / "cell") == files
