"""What is allowed and hardly meant is warned of; what cannot be meant is refused."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from builders import scenario
from gists import says
from PIL import Image
from texts import CAUSAL, api_scenario, text_scenario

from simsplit import DataError, ScenarioError, machine, run
from simsplit.attacking.finished import attack
from simsplit.data import prepare
from simsplit.engine.pool import HostLost
from simsplit.errors import RunError, format_count, format_list
from simsplit.metrics import find_headline
from simsplit.progress import Observer
from simsplit.report.detections import write_clients
from simsplit.report.input_tables import shorten
from simsplit.report.timing import time_to_accuracy
from simsplit.results import Run, read_progress
from simsplit.rows import RoundRow
from simsplit.scenario.refusals import list_data_warnings, list_warnings
from simsplit.showing.run_output import describe_round


class Warned(Observer):
    def __init__(self):
        self.messages = []

    def warn(self, message):
        self.messages.append(message)


def collect_warnings(path, labels, tests):
    """Return the warnings of a run on a folder of images with these labels."""
    path.mkdir()
    rng, heard = np.random.default_rng(0), Warned()
    for split, numbers in (("train", labels), ("test", tests)):
        images = []
        for _ in numbers:
            file = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (28, 28), dtype=np.uint8)).save(file, "png")
            images.append({"bytes": file.getvalue()})
        table = pa.table({"image": images, "label": list(numbers)})
        pq.write_table(table, path / f"{split}.parquet")
    source = {"kind": "parquet", "path": str(path)}
    given = scenario(schedule={"rounds": 1}, data={"source": source})
    run(given, path / "run", observers=[heard])
    return heard.messages


def test_labels_with_gaps_are_warned_of_and_labels_without_are_not(tmp_path):
    assert collect_warnings(tmp_path / "a", [0, 1] * 15, [0, 1] * 5) == []
    (warning,) = collect_warnings(tmp_path / "b", [0, 7] * 15, [0, 7] * 5)
    assert says(warning, "class 1, 2, 3, 4, 5, 6, ... 8 classes")


def test_too_few_servers_for_a_gradients_messages_are_warned_of(tmp_path):
    def list_warned(servers, **method):
        method = [{"kind": "private_backprop", "messages": 3, **method}]
        return list_warnings(api_scenario(tmp_path, servers=servers, method=method))

    (warning,) = list_warned(1)
    assert says(warning, "scenario.servers: ... 1 ... 3 messages")
    assert warning.endswith(". Use servers: 6")
    assert "span" in warning
    (warning,) = list_warned(3)
    assert "two steps" in warning
    assert list_warned(3, noise="gaussian") == list_warned(6) == []
    assert list_warnings(api_scenario(tmp_path)) == []


def test_a_proximal_term_of_rounds_of_one_step_is_warned_of():
    def list_warned(steps):
        schedule = {"kind": "parallel", "rounds": 1, "local_steps": steps}
        aggregation = {"kind": "splitfed_v1", "proximal": 0.5}
        return list_warnings(scenario(schedule=schedule, aggregation=aggregation))

    (warning,) = list_warned(1)
    assert warning.startswith("scenario.aggregation.proximal: got 0.5, ")
    assert list_warned(2) == list_warned(None) == []


@pytest.mark.parametrize("supported", [True, False])
@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_half_precision_is_warned_of_where_the_processor_has_none(monkeypatch, device, supported):
    """A convolution took 31 times as long in bf16 on such a processor, a linear layer 5 times."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    monkeypatch.setattr(machine, "find_accelerator", lambda: None)
    attacks = [{"kind": "ridge"}, {"kind": "fsha", "precision": "bf16"}]

    def list_slow(**fields):
        given = scenario(device=device, data={"auxiliary": 0.5}, **fields)
        warned = [each.split(": ")[0] for each in list_warnings(given)]
        return [each for each in warned if each.endswith("precision")]

    half = {"train": {"precision": "bf16"}, "attacks": attacks}
    places = ["scenario.train.precision", "scenario.attacks.1.precision"]
    assert list_slow(**half) == ([] if supported else places)
    assert list_slow() == []
    monkeypatch.setattr(machine, "find_accelerator", lambda: "cuda")
    if device == "auto":
        assert list_slow(**half) == []


def test_statistics_of_parts_are_warned_of():
    def list_warned(accumulate, **model):
        given = scenario(model=model, train={"accumulate": accumulate})
        data = prepare(given.data, given.clients.count, given.seed)
        return [each for each in list_data_warnings(given, data) if "accumulate" in each]

    (warning,) = list_warned(2, kind="resnet18")
    assert says(warning, "scenario.train.accumulate: got 2 ... head ... instead of")
    assert list_warned(1, kind="resnet18") == []
    assert list_warned(2, kind="mlp", widths=[8, 8]) == []
    assert list_warned(2, kind="resnet18", learns=["tail"]) == []


def test_one_class_and_few_tests_are_warned_of(tmp_path):
    of_one_class, few_tests = collect_warnings(tmp_path / "images", [1] * 30, [1])
    assert says(of_one_class, "30 training samples ... one class")
    assert says(few_tests, "1 test sample")


@pytest.mark.parametrize("field", ["client.lr", "server.weight_decay", "client.momentum"])
def test_no_option_of_an_optimizer_is_infinite(field):
    side, name = field.split(".")
    with pytest.raises(ScenarioError, match=f"train.{field}:.*finite"):
        scenario(train={side: {"kind": "sgd", name: float("inf")}})


def test_shares_are_parts_of_one_or_proportions():
    for shares in ({"phone": 0.7, "laptop": 0.3}, {"phone": 7, "laptop": 2}):
        scenario(network={"device": shares})
    with pytest.raises(ScenarioError, match=r"network\.device: .*got 1\.4"):
        scenario(network={"device": {"phone": 0.7, "laptop": 0.7}})


@pytest.mark.parametrize(
    ("values", "gist"),
    [
        (pa.array([3] * 20), "'sentence'.*int64"),
        (pa.array([None] * 20, pa.string()), "'sentence' .*empty"),
    ],
)
def test_a_column_without_texts_is_refused(tmp_path, values, gist):
    given = text_scenario(tmp_path)
    table = pa.table({"sentence": values, "label": [0, 1] * 10})
    pq.write_table(table, tmp_path / "reviews" / "train.parquet")
    with pytest.raises(DataError, match=rf"^scenario.data.source.task: .*{gist}"):
        given.prepare_data()


def test_the_source_that_is_at_fault_is_blamed(tmp_path):
    public = {"kind": "text_parquet", "task": "cola", "length": 16}
    wrong = {**public, "task": {"kind": "language", "text": "sentense"}}
    given = text_scenario(tmp_path)
    path = {"path": str(tmp_path / "reviews")}
    message = "^scenario.data.public.task: .*'sentense'.*'sentence'"
    with pytest.raises(DataError, match=message):
        text_scenario(tmp_path, data={"public": {**wrong, **path}}).prepare_data()
    source = {"task": {"kind": "language", "text": "sentense"}}
    with pytest.raises(DataError, match=r"^scenario.data.source.task: .*no column 'sentense'"):
        text_scenario(tmp_path, data={"source": source}, model=CAUSAL).prepare_data()
    assert len(given.prepare_data().train) == 60


def test_an_attack_on_a_finished_run_says_how_to_hold_out_public_data(tmp_path):
    made = run(scenario(schedule={"rounds": 1}), tmp_path / "run")
    message = "simsplit run .*scenario.yaml --set data.auxiliary=0.2 --out NEW"
    with pytest.raises(RunError, match=message):
        attack(made.path, "whitebox")


def test_answers_come_before_tokens_wherever_one_figure_is_warned_of(tmp_path):
    """Of two classes a model may guess most tokens, and not one answer."""
    assert find_headline(["test_accuracy", "test_answers"]) == "test_answers"
    assert find_headline(["validation_accuracy"]) is None
    scores = {"test_accuracy": 0.759, "test_answers": 0.53}
    row = RoundRow(1, train_loss=0.1, further=scores, bytes_total=2)
    assert describe_round(row).startswith("test answers 53.0%  loss")
    given = text_scenario(tmp_path, model=CAUSAL, schedule={"rounds": 1}, threads=1)
    made = run(given, tmp_path / "run")
    table = time_to_accuracy(made)
    assert "test answers" in table.title
    assert table.columns[0] == "answers"
    best = made.rounds["test_answers"].max()
    assert table.rows[-1][0] == f"best: {best:.2%}"
    seen = read_progress(made.path)
    assert (seen.figure, seen.score) == ("test_answers", best)


def test_a_detector_that_judges_no_round_of_a_run_is_warned_of():
    late = {"detectors": [{"kind": "root_class"}]}
    (warning,) = list_warnings(scenario(**late, schedule={"rounds": 4}))
    assert says(warning, "scenario.detectors.0.since: ... 4 ... 4 rounds")
    assert not list_warnings(scenario(**late, schedule={"rounds": 5}))
    alone = {"detectors": [{"kind": "root_class", "window": 1}]}
    assert not list_warnings(scenario(**alone, schedule={"rounds": 4}))


def test_levels_for_rotated_values_without_a_rotation_are_warned_of():
    legs = {"legs": ["smashed", "features"]}
    levels = {"kind": "quantise", "bits": 1, "levels": "normal", **legs}
    projection = {"kind": "lightsplit", "ratio": 1}
    (warning,) = list_warnings(scenario(method=[projection, levels]))
    assert says(warning, "scenario.method.1.levels: ... normal")
    assert "features. List lightsplit" in warning
    assert not list_warnings(scenario(method=[{**projection, **legs}, levels]))
    assert not list_warnings(scenario(method=[{**levels, "levels": "even"}]))


@pytest.mark.parametrize(
    ("detector", "fewest"),
    [({"kind": "within_class", "reference": "root", "root": [1]}, 4), ({"kind": "root_class"}, 8)],
)
def test_a_trusted_client_without_some_class_is_warned_of(detector, fewest):
    usual = {"clients": {"count": 4}, "schedule": {"rounds": 8}, "detectors": [detector]}
    skewed = {"train_samples": 200, "partition": {"kind": "dirichlet", "alpha": 0.1}}
    given = scenario(**usual, data=skewed)
    data = prepare(given.data, 4, given.seed)
    trusted = given.detectors[0].trusted
    held = np.asarray(data.train.labels)[data.parts[trusted[0]]].tolist()
    few = [label for label in range(10) if held.count(label) < fewest]
    (warning,) = list_data_warnings(given, data)
    assert says(warning, f"scenario.detectors.0.root: ... {fewest} samples ... {format_list(few)},")
    even = scenario(**usual, data={**skewed, "even": {"clients": trusted, "samples": 100}})
    assert not list_data_warnings(even, prepare(even.data, 4, even.seed))


def test_topics_that_texts_are_dealt_by_are_not_taken_for_classes(tmp_path):
    skewed = {"source": {"topic": "topic"}, "partition": {"kind": "dirichlet", "alpha": 0.1}}
    detector = {"kind": "within_class", "reference": "root", "root": [0]}
    clients = {"count": 4}
    given = text_scenario(tmp_path, data=skewed, clients=clients, detectors=[detector])
    data = prepare(given.data, 4, given.seed, given.text_reader())
    held = np.bincount(np.asarray(data.train.groups)[data.parts[0]], minlength=5)
    assert held.min() < 4
    assert not list_data_warnings(given, data)


def test_loose_bytes_of_a_recovered_text_are_one_mark():
    assert shorten("a\ufffd\ufffd\ufffdb\n \ufffdc") == "a\ufffdb \ufffdc"


def test_words_for_numbers_and_lists():
    assert [format_count(n, "round") for n in (0, 1, 2000)] == [
        "0 rounds",
        "1 round",
        "2,000 rounds",
    ]
    assert format_list([1, 2, 3], most=2) == "1, 2 and 1 more"
    assert format_list("ab") == "a, b"


def test_long_lists_of_clients_say_how_many_more_there_are():
    unnamed = Run(Path("nowhere"))
    assert write_clients(unnamed, range(9)) == "0, 1, 2, 3, 4, 5 and 3 more"
    assert write_clients(unnamed, []) == "none"
    assert "(clients 0, 1, 2, 3, 4 and 7 more)" in str(HostLost(1, range(12), "killed"))


@pytest.mark.parametrize(
    ("method", "column"),
    [
        ({"kind": "custext", "group": 5}, "custext_changed"),
        ({"kind": "randomised_response"}, "labels_changed"),
    ],
)
def test_a_defence_that_changes_nothing_is_warned_of(method, column, tmp_path):
    """At a strength so low that it is off, though it is on."""
    message = {}
    for epsilon in (1e6, 0.1):
        changes = {"method": [{**method, "epsilon": epsilon}], "schedule": {"rounds": 1}}
        given = text_scenario(tmp_path, **changes)
        heard = Warnings()
        run(given, tmp_path / f"at {epsilon}", observers=[heard])
        message[epsilon] = heard.messages
    (warning,) = message[1e6]
    assert says(warning, f"scenario.method.0: {column} is 0 in round 1: ... epsilon")
    assert not message[0.1]


class Warnings(Observer):
    """An observer that keeps messages to the user."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def warn(self, message: str) -> None:
        self.messages.append(message)
