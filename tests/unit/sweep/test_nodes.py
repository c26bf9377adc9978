"""What a sweep on a cluster checks without one: its options, and the files that nodes send."""

from pathlib import Path

import pytest
from builders import scenario

from simsplit.errors import RunError, ScenarioError
from simsplit.scenario import Sweep, load_sweep
from simsplit.scenario.files import dump
from simsplit.sweep import run_sweep
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


def test_a_share_of_no_cluster_is_refused(tmp_path: Path, simsplit) -> None:
    make_sweep(tmp_path)
    code, _, err = simsplit("sweep", tmp_path / "seeds.yaml", "--gpus-per-cell", "0.5")
    assert code == 2
    assert err.startswith("error: --gpus-per-cell")


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/../../b", "c:\\x", "", "a\0b"])
def test_a_node_writes_nowhere_but_in_the_cells_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError):
        unpack({"scenario.yaml": b"", name: b"x"}, tmp_path / "cell")
    assert not [*tmp_path.rglob("*")]


def test_a_folder_is_unpacked_as_it_was(tmp_path: Path) -> None:
    files = {"scenario.yaml": b"x", "checkpoints/round-1/state.safetensors": b"\0\1"}
    unpack(files, tmp_path / "cell")
    assert pack(tmp_path / "cell") == files
