"""Trackers: what they keep is what the tables have, once, and none of them stops a run."""

import glob
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from builders import StopAt, scenario
from gists import says

from simsplit import Run, ScenarioError, run
from simsplit.observers import OBSERVERS
from simsplit.observers.tensorboard import _hush_writers
from simsplit.observers.tracking import (
    collect_spreads,
    count_flagged,
    flatten_scenario,
    select_numbers,
)
from simsplit.progress import Observer, Observers
from simsplit.rows import ClientRow

FOUR = {"rounds": 4}


class Warned(Observer):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def warn(self, message: str) -> None:
        self.messages.append(message)


def events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

    everything = {"scalars": 0, "histograms": 0, "images": 0}
    return EventAccumulator(str(folder), tensor_size_guidance=everything).Reload()


def read_events(folder: Path, tag: str) -> list[tuple[int, Any]]:
    """Return steps and values of a tag in event files."""
    from tensorboard.util import tensor_util

    read = events(folder)
    return [(e.step, tensor_util.make_ndarray(e.tensor_proto)) for e in read.Tensors(tag)]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    tags = events(folder).PluginTagToContent("scalars")
    return {tag: [(step, value.item()) for step, value in read_events(folder, tag)] for tag in tags}


def of_table(made: Run) -> dict[str, list[tuple[int, float]]]:
    """Return what a tracker should have: every number of rounds.csv."""
    table = made.rounds
    names = [name for name in table if name not in ("round", "phase")]
    return {
        str(name): [(int(n), float(v)) for n, v in zip(table["round"], table[name], strict=True)]
        for name in names
    }


def stop_and_resume(path: Path, **observer: Any) -> Run:
    """Stop a run in its fourth round, its last checkpoint being of the second, and resume it."""
    given = scenario(observers=[observer], schedule=FOUR, checkpoint={"every": 2})
    with pytest.raises(KeyboardInterrupt):
        run(given, path, observers=[StopAt(3 * 2 * 3 + 1)])
    for file in path.glob("tensorboard/*"):
        with file.open("ab") as torn:
            torn.write(b"\x18\0\0")  # as a kill leaves it
    heard = Warned()
    made = run(given, path, resume=True, observers=[heard])
    assert heard.messages == []
    return made


def test_rows_become_numbers_and_spreads_over_clients() -> None:
    assert select_numbers({"round": 2, "phase": "train", "loss": 0.5, "steps": 3}) == {
        "loss": 0.5,
        "steps": 3.0,
    }
    losses = ({"loss": 1.0}, {"loss": float("nan")}, {})
    rows = [ClientRow.of({"round": 1, "client": c, **each}) for c, each in enumerate(losses)]
    assert collect_spreads(rows) == {"steps": [0, 0, 0], "samples": [0, 0, 0], "loss": [1.0]}


def test_verdicts_are_counts_and_who_was_flagged() -> None:
    scores = [(3.0, 1), (3.0, 1), (0.0, 0), (float("nan"), float("nan"))]
    rows = [
        ClientRow(1, client, malicious=int(client == 0), further={"krum": s, "krum_flagged": f})
        for client, (s, f) in enumerate(scores)
    ]
    assert count_flagged(rows) == {
        "flagged/krum": 2.0,
        "flagged/krum/malicious": 1.0,
        "flagged/krum/client_0": 1.0,
        "flagged/krum/client_1": 1.0,
    }
    assert count_flagged([ClientRow(1, 0, train_loss=1.0)]) == {}


def test_a_scenario_is_flat_hyper_parameters(tmp_path: Path) -> None:
    given = scenario(method=[{"kind": "noise", "sigma": 0.5}], train={"client": {"lr": 0.25}})
    (tmp_path / "scenario.yaml").write_text(given.yaml())
    facts = flatten_scenario(tmp_path)
    assert facts["method.0.sigma"] == 0.5
    assert facts["train.client.lr"] == 0.25
    assert facts["network"] == "null"
    assert facts["detectors"] == "[]"


@pytest.mark.slow
def test_event_files_have_what_the_table_has(tmp_path: Path) -> None:
    made = run(scenario(observers=["tensorboard"]), tmp_path / "run")
    folder = made.path / "tensorboard"
    assert scalars(folder) == of_table(made)
    losses = read_events(folder, "clients/train_loss")
    assert [step for step, _ in losses] == [1, 2]
    of_round = made.clients.query("round == 2")["train_loss"]
    drawn = losses[-1][1]  # left, right and count of each bar
    drawn = drawn[drawn[:, 2] > 0]
    assert drawn[:, 2].sum() == 3
    assert drawn[[0, -1], [0, 1]] == pytest.approx([of_round.min(), of_round.max()], rel=1e-6)
    assert "_hparams_/session_start_info" in events(folder).PluginTagToContent("hparams")


@pytest.mark.slow
def test_event_files_have_each_round_once_after_a_resume(tmp_path: Path) -> None:
    made = stop_and_resume(tmp_path / "run", kind="tensorboard")
    assert len(list((made.path / "tensorboard").iterdir())) == 2
    assert scalars(made.path / "tensorboard") == of_table(made)


@pytest.mark.slow
def test_pictures_of_attacks_are_in_the_event_files(tmp_path: Path) -> None:
    attack = {"kind": "ridge"}
    given = scenario(
        attacks=[attack],
        data={"auxiliary": 0.4},
        targets={"count": 2},
        output={"figures": True},
        observers=[{"kind": "tensorboard", "folder": str(tmp_path / "all"), "run_name": "one"}],
    )
    made = run(given, tmp_path / "run")
    ((step, picture),) = read_events(tmp_path / "all" / "one", "recovered")
    assert step == 2
    assert picture[2].startswith(b"\x89PNG")  # behind its width and height
    assert (made.path / "figures" / "recovered.png").exists()


@pytest.mark.slow
def test_a_database_has_each_round_once_after_a_resume(tmp_path: Path) -> None:
    made = stop_and_resume(tmp_path / "run", kind="mlflow")
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{made.path / 'mlflow' / 'runs.db'}")
    document = json.loads((made.path / "mlflow.json").read_text())
    kept = client.get_run(document["run"])
    assert kept.info.status == "FINISHED"
    assert kept.data.params["train.batch_size"] == "16"
    for name, values in of_table(made).items():
        history = client.get_metric_history(document["run"], name)
        assert [(metric.step, metric.value) for metric in history] == values
    medians = client.get_metric_history(document["run"], "clients/train_loss/median")
    assert [m.value for m in medians] == made.clients.groupby("round")[
        "train_loss"
    ].median().tolist()


def read_log(file: str) -> list[dict[str, Any]]:
    """Return the history of an offline file of W&B, whose own process ends it in its own time."""
    for _ in range(300):
        rows, ended = read_records(Path(file).read_bytes())
        if ended:
            return rows
        time.sleep(0.1)
    raise AssertionError(f"{file} has no record of its end")


def read_records(content: bytes) -> tuple[list[dict[str, Any]], bool]:
    """Return the history in LevelDB's log of protobuf records, and whether it has an end."""
    from wandb.proto import wandb_internal_pb2

    at, whole, rows, ended = 7, b"", [], False
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # full, or last of several
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            ended = ended or record.WhichOneof("record_type") == "exit"
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append(
                    {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
                )
    return rows, ended


@pytest.mark.slow
def test_offline_files_have_each_round_once_after_a_resume(tmp_path: Path) -> None:
    made = stop_and_resume(tmp_path / "run", kind="wandb")
    files = sorted(glob.glob(str(made.path / "wandb" / "offline-run-*" / "*.wandb")))
    assert len(files) == 2
    assert len({Path(file).name for file in files}) == 1  # one number, so one run
    rows = [row for file in files for row in read_log(file)]
    assert [row["_step"] for row in rows] == [1, 2, 3, 4]
    for name, values in of_table(made).items():
        assert [(row["_step"], row[name]) for row in rows] == values
    assert rows[0]["clients/train_loss/_type"] == "histogram"


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_refused_before_training(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, kind, None)  # as Python marks what cannot be imported
    with pytest.raises(ScenarioError, match=rf"observers.1.kind: .*'\.\[{kind}\]'"):
        run(scenario(observers=["jsonl", kind]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tensorboard", "mlflow"])
def test_a_broken_tracker_is_warned_of_once_and_the_run_goes_on(kind: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / kind).write_text("no folder")
    heard = Warned()
    made = run(scenario(observers=[kind]), tmp_path / "run", observers=[heard])
    assert made.summary["status"] == "finished"
    assert len(heard.messages) == 1
    assert "goes on" in heard.messages[0]


@pytest.mark.slow
def test_a_server_that_is_down_costs_a_warning_and_little_time(tmp_path: Path) -> None:
    heard, nobody = Warned(), {"kind": "mlflow", "uri": "http://127.0.0.1:9"}
    began = time.monotonic()
    made = run(scenario(observers=[nobody]), tmp_path / "run", observers=[heard])
    assert made.summary["status"] == "finished"
    (message,) = heard.messages
    assert message.startswith("MLflow failed (MlflowException: ")
    assert time.monotonic() - began < 30


def test_what_cannot_be_spared_still_ends_a_run() -> None:
    class Broken(Observer):
        def warn(self, message: str) -> None:
            raise ValueError(message)

    class Spared(Broken):
        dispensable = True

    heard = Warned()
    both = Observers([Spared(), heard])
    both.warn("first")
    both.warn("second")
    assert says(heard.messages[0], "Spared ... (ValueError: first)")
    assert heard.messages[1:] == ["first", "second"]
    with pytest.raises(ValueError, match="first"):
        Observers([Broken()]).warn("first")


def test_track_adds_each_observer_once(simsplit: Any, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(scenario(schedule={"rounds": 1}).yaml())
    words = ("--track", "jsonl", "--track", "jsonl", "-q")
    assert simsplit("run", "s.yaml", "--out", "run", *words) == (0, "", "")
    assert Path("run/rounds.jsonl").read_text().count("\n") == 1
    code, _, message = simsplit("run", "s.yaml", "--track", "tensorbord")
    assert code == 2
    assert says(message, "--track: ... 'tensorbord' ... 'tensorboard'")


@pytest.mark.slow
def test_a_sweep_tracks_its_cells_in_one_database(simsplit: Any, tmp_path: Path) -> None:
    text = scenario(schedule={"rounds": 1}).yaml() + "\nsweep: {seed: [0, 1]}\n"
    (tmp_path / "s.yaml").write_text(text)
    words = ("--jobs", 1, "-q", "--track", "tensorboard", "--track", "mlflow")
    assert simsplit("sweep", "s.yaml", "--out", "all", *words) == (0, "", "")
    result = sorted(Path("all").glob("*/tensorboard"))
    assert [folder.parent.name for folder in result] == ["seed=0", "seed=1"]
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{Path('all/mlflow/runs.db').absolute()}")
    experiment = client.get_experiment_by_name("all")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert sorted(str(each.info.run_name) for each in runs) == ["all/seed=0", "all/seed=1"]


def test_trackers_are_observers_that_a_scenario_names() -> None:
    given = scenario(observers=[{"kind": "mlflow", "experiment": "x"}, "wandb"])
    assert [observer.kind_name for observer in given.observers] == ["mlflow", "wandb"]
    assert given.observers[1].mode == "offline"  # type: ignore[attr-defined]
    assert {"tensorboard", "mlflow", "wandb"} <= OBSERVERS.keys()


def test_a_writing_thread_that_dies_is_silent_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda facts: heard.append(str(facts.exc_value)))
    _hush_writers()
    _hush_writers()

    class _AsyncWriterThread(threading.Thread):
        def run(self) -> None:
            raise OSError("full")

    class Other(_AsyncWriterThread):
        pass

    for kind in (_AsyncWriterThread, Other):
        thread = kind()
        thread.start()
        thread.join()
    assert heard == ["full"]
