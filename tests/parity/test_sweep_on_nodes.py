"""A sweep's cells run on the nodes of a Ray cluster, as they do here."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import scenario
from comparing import assert_equal

from simsplit.errors import RunError, ScenarioError, SimsplitError
from simsplit.progress import SweepObserver
from simsplit.scenario import Sweep, load_sweep
from simsplit.scenario.files import dump
from simsplit.sweep import run_sweep
from simsplit.sweep.nodes import Cluster, pack, unpack


def make_sweep(folder: Path, seeds: int = 2, **fields: object) -> Sweep:
    file = folder / "seeds.yaml"
    values = scenario(**fields).model_dump(mode="json", exclude_unset=True)
    file.write_text(dump({**values, "sweep": {"seed": [*range(seeds)]}}), encoding="utf-8")
    return load_sweep(file)


@pytest.fixture
def nodes(without_hosts: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Two nodes of one processor each, in processes of their own."""
    from ray.cluster_utils import Cluster as Nodes

    del without_hosts
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(os.sys.path))  # type: ignore[attr-defined]
    small = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    made = Nodes(initialize_head=True, head_node_args=small)
    yield made
    made.shutdown()


@pytest.mark.ray
@pytest.mark.slow
def test_cells_on_two_nodes_of_which_one_is_killed(tmp_path: Path, nodes) -> None:
    """Its cells are given out again, and everything comes home as from a sweep on this machine."""
    other = nodes.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    nodes.wait_for_nodes()

    class Kill(SweepObserver):
        ended = 0

        def end_cell(self, name: str, status: str, reason: str = "") -> None:
            self.ended += 1
            if self.ended == 1:
                nodes.remove_node(other, allow_graceful=False)

    sweep = make_sweep(tmp_path, 4, schedule={"rounds": 3})
    killed = run_sweep(sweep, tmp_path / "there", cluster=Cluster(nodes.address), watch=Kill())
    assert (len(killed.runs), killed.failed) == (4, {})
    run_sweep(sweep, tmp_path / "here", jobs=1)
    for name in killed.runs:
        assert_equal(tmp_path / "here" / name, tmp_path / "there" / name)
    # what was begun is gone on with: here, of a sweep that ended on the nodes
    longer = make_sweep(tmp_path, 4, schedule={"rounds": 4})
    assert len(run_sweep(longer, tmp_path / "there", resume=True, jobs=1).runs) == 4


@pytest.mark.ray
def test_more_than_a_cluster_has_is_refused_before_a_cell_begins(tmp_path: Path, nodes) -> None:
    for asked, option in (({"gpus": 0.25}, "--gpus-per-cell"), ({"cpus": 64}, "--cpus-per-cell")):
        sweep = make_sweep(tmp_path, device="auto")
        with pytest.raises(SimsplitError, match=option):
            run_sweep(sweep, tmp_path / option, cluster=Cluster(nodes.address, **asked))
        assert not [*(tmp_path / option).glob("seed=*")]


def test_what_no_node_can_do_is_refused_before_a_cluster_is_joined(tmp_path: Path) -> None:
    for fields, cluster, path in (
        ({"engine": {"kind": "ray", "hosts": 2}}, Cluster("auto"), "engine.kind"),
        ({"device": "cpu"}, Cluster("auto", gpus=0.5), "device"),
    ):
        with pytest.raises(ScenarioError) as caught:
            run_sweep(make_sweep(tmp_path, **fields), tmp_path / "s", cluster=cluster)
        assert caught.value.problems[0].field == path
    assert not (tmp_path / "s").exists()


def test_no_cluster_there_is_said_by_the_option(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        run_sweep(make_sweep(tmp_path), tmp_path / "s", cluster=Cluster("127.0.0.1:9"))
    assert caught.value.problems[0].field == "--cluster"


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/../../b", "c:\\x", "", "a\0b"])
def test_a_node_writes_nowhere_but_in_the_cells_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError):
        unpack({"scenario.yaml": b"", name: b"x"}, tmp_path / "cell")
    assert not [*tmp_path.rglob("*")]


def test_a_folder_is_unpacked_as_it_was(tmp_path: Path) -> None:
    files = {"scenario.yaml": b"x", "checkpoints/round-1/state.safetensors": b"\0\1"}
    unpack(files, tmp_path / "cell")
    assert pack(tmp_path / "cell") == files
