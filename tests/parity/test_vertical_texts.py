"""Parties with fields of the same texts train as one network with a head for each field."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from builders import read_party_weights, run_to_end
from texts import TINY
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from simsplit.assembly.trained import load_trained
from simsplit.data.batches import draw_batches
from simsplit.data.samples import IGNORED, widen_labels
from simsplit.results import Run
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge
from simsplit.valuing.client_values import value_clients

LENGTH, WIDTH = 12, 8
GROUPS = {"desk": ["asked"], "press": ["told"]}
ADAM = {"kind": "adam", "lr": 0.01}
WORDS = ["ash", "birch", "elm", "oak", "yew"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of texts of two columns; the class is told by the first word of the first."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("texts")
    for split, count in (("train", 60), ("validation", 24)):
        label = rng.integers(0, 2, count)
        asked = [" ".join(["no", "yes"][each : each + 1] * rng.integers(1, 3)) for each in label]
        told = [" ".join(rng.choice(WORDS, rng.integers(1, 4))) for _ in label]
        frame = pd.DataFrame({"asked": asked, "told": told, "label": label})
        frame.to_parquet(path / f"{split}.parquet")
    return path


def given(folder: Path, partition: Any = None, **changes: Any) -> Scenario:
    task = {"kind": "classification", "prompt": "{asked} {told}", "names": ["no", "yes"]}
    values: dict[str, Any] = {
        **TINY,
        "topology": "vertical",
        "clients": {},
        "data": {
            "source": {"kind": "text_parquet", "path": str(folder), "length": LENGTH, "task": task},
            "partition": partition or {"kind": "columns", "groups": GROUPS},
        },
        "model": {
            "kind": "sequence_classifier",
            "sizes": {"family": "bert", "width": WIDTH, "layers": 3},
            "head": 1,
            "tail": 0,
        },
        "train": {"batch_size": 16, "client": ADAM, "server": ADAM},
    }
    return parse(merge(values, changes))


class Fields(nn.Module):
    """A network with a head for each field, written without simsplit's parties."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__()
        made = scenario.model.build((LENGTH,), 2, scenario.seed)
        self.heads = nn.ModuleList(
            [scenario.model.segment("head", (LENGTH,), 2, scenario.seed) for _ in range(2)]
        )
        self.trunk, self.tail = made.trunk, made.tail

    def forward(self, fields: list[Tensor], lengths: Tensor) -> Tensor:
        sent, masks = [], []
        for head, tokens, counts in zip(self.heads, fields, lengths.unbind(1), strict=True):
            longest = int(counts.max())
            masks.append(torch.arange(longest) < counts[:, None])
            sent.append(head(tokens[:, :longest].contiguous(), masks[-1]))
        mask = torch.cat(masks, 1)
        return self.tail(self.trunk(torch.cat(sent, 1), mask))


def train_plainly(scenario: Scenario) -> Fields:
    data, net = scenario.prepare_data(), Fields(scenario)
    assert data.train.texts is not None
    assert data.train.texts.fields is not None
    fields, lengths = data.train.inputs.split(LENGTH, 1), data.train.texts.fields
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for epoch in range(2):
        rows = torch.arange(len(data.train))
        for batch in draw_batches(rows, 16, scenario.seed, 0, epoch, drop_last=False):
            outputs = net([each[batch] for each in fields], lengths[batch])
            targets = torch.full(outputs.shape[:2], IGNORED)
            targets[:, 0] = data.train.texts.groups[batch]
            optimizer.zero_grad()
            cross_entropy(outputs.flatten(0, 1), targets.flatten()).backward()
            optimizer.step()
    return net


@pytest.mark.parametrize("labels", ["party", "server"])
def test_fields_equal_a_network_with_a_head_for_each(
    labels: str, folder: Path, tmp_path: Path
) -> None:
    scenario = given(folder, vertical={"labels": labels})
    weights, plain = (
        read_party_weights(run_to_end(scenario, tmp_path / "run")),
        train_plainly(scenario),
    )
    owner = "1" if labels == "party" else "server"
    expected = {
        f"{k}.head.{n}": t for k, h in enumerate(plain.heads) for n, t in h.state_dict().items()
    }
    expected |= {f"server.trunk.{n}": t for n, t in plain.trunk.state_dict().items()}
    expected |= {f"{owner}.tail.{n}": t for n, t in plain.tail.state_dict().items()}
    for name, tensor in weights.items():
        assert torch.equal(tensor, expected[name]), name


def test_a_party_has_its_own_field_alone(folder: Path) -> None:
    scenario = given(folder)
    data, reader = scenario.prepare_data(), scenario.text_reader()
    desk, press = data.of_party(0).train, data.of_party(1).train
    frame = pd.read_parquet(folder / "train.parquet")
    for own, column in ((desk, "asked"), (press, "told")):
        texts = [reader.decode(row) for row in own.inputs.tolist()]
        assert texts == [each[: LENGTH - 2] for each in frame[column]]
    assert (desk.labels == IGNORED).all()
    assert desk.groups.sum() == 0
    assert press.labels.amax(1).tolist() == frame["label"].tolist()
    assert desk.texts is not None
    assert torch.equal(desk.texts.lengths, (desk.inputs != reader.pad).sum(1))


def test_bytes_are_each_partys_tokens_and_masks(folder: Path, tmp_path: Path) -> None:
    """A token is of eight floats, and a byte of the mask; a batch has the length of its longest."""
    scenario = given(folder, schedule={"rounds": 1})
    run_to_end(scenario, tmp_path / "run")
    wire, data = Run.load(tmp_path / "run").wire, scenario.prepare_data()
    training = wire[wire["phase"] == "train"]
    counted = {(row.client, row.leg): row.bytes for row in training.itertuples()}
    assert data.train.texts is not None
    assert data.train.texts.fields is not None
    tokens = [0, 0]
    for batch in draw_batches(torch.arange(60), 16, scenario.seed, 0, 0, drop_last=False):
        longest = data.train.texts.fields[batch].amax(0)
        tokens = [old + len(batch) * int(new) for old, new in zip(tokens, longest, strict=True)]
    assert counted == {
        **{(party, "smashed"): tokens[party] * (4 * WIDTH + 1) for party in (0, 1)},
        **{(party, "smashed_grad"): tokens[party] * 4 * WIDTH for party in (0, 1)},
        **{(1, leg): sum(tokens) * 4 * WIDTH for leg in ("features", "features_grad")},
    }


@pytest.mark.parametrize(("labels", "topology"), [("party", "u_shaped"), ("server", "vanilla")])
def test_one_party_with_all_of_a_text_is_one_client(
    labels: str, topology: str, folder: Path, tmp_path: Path
) -> None:
    alone = {"kind": "columns", "groups": {"all": ["told"]}}
    one = {"data": {"source": {"task": {"prompt": "{told}"}}}}
    vertical = given(folder, alone, **one, vertical={"labels": labels})
    whole = {"topology": topology, "clients": {"count": 1, "heads": "per_client"}}
    usual = given(folder, "iid", **one, **whole)
    runs = [run_to_end(each, tmp_path / each.topology) for each in (vertical, usual)]
    first, second = map(read_party_weights, runs)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_network_of_fields_predicts_as_the_run_did(folder: Path, tmp_path: Path) -> None:
    run = run_to_end(given(folder), tmp_path / "run")
    test = run.data.test
    assert test.texts is not None
    assert test.texts.fields is not None
    mask = torch.arange(LENGTH) < test.texts.fields[:, :, None]
    with torch.no_grad():
        outputs = load_trained(tmp_path / "run")(test.inputs, mask.flatten(1))
    hits = (outputs[:, 0].argmax(-1) == torch.as_tensor(test.groups)).double().mean().item()
    assert hits == Run.load(tmp_path / "run").rounds["test_accuracy"].iloc[-1]


def test_a_field_that_says_nothing_of_the_class_helps_nobody(folder: Path, tmp_path: Path) -> None:
    """The class is told by the desk's text; without the press every prediction stays."""
    run_to_end(given(folder, schedule={"rounds": 12}, evaluate={"every": 0}), tmp_path / "run")
    table = value_clients(tmp_path / "run")
    values = dict(zip(table["client"], table["value"], strict=True))
    assert values[0] > 0.25
    assert abs(values[1]) < 0.1


def test_the_gradients_of_a_field_tell_its_party_the_class(folder: Path, tmp_path: Path) -> None:
    attack = {"kind": "direction_scoring", "by": "party desk"}
    changes = {"attacks": [attack], "targets": {"client": 0, "count": 20}}
    run_to_end(given(folder, **changes), tmp_path / "run")
    leaks = Run.load(tmp_path / "run").leaks
    read = leaks[(leaks["role"] == "attack") & (leaks["metric"] == "accuracy")]
    assert read["value"].max() > 0.95


def test_a_party_that_is_away_is_as_padding(folder: Path, tmp_path: Path) -> None:
    """Also where a method looks for the class among the outputs for all tokens."""
    away = {"cohort": {"availability": {"period": 2, "window": 1}}, "schedule": {"rounds": 3}}
    noisy = {"method": [{"kind": "grad_perturb"}]}
    run = run_to_end(given(folder, vertical={"absent": "zeros"}, **away, **noisy), tmp_path / "run")
    joining = run.parts.server.end.joining
    some = torch.tensor([[True, True, False]])
    (mask,) = joining.join_masks({1: some})
    assert mask.tolist() == [[False] * LENGTH + [True, True, False]]
    joining.muted |= {0, 1}
    (mask,) = joining.join_masks({0: some, 1: some})
    assert mask.tolist() == [[True] + [False] * 5]
    assert Run.load(run.path).rounds["test_loss"].notna().all()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"data": {"source": {"task": {"kind": "language"}}}}, "data.source.task"),
        ({"data": {"source": {"padding": "left"}}}, "data.source.padding"),
        ({"model": {"sizes": {"family": "llama"}}}, "model.kind"),
        ({"model": {"kind": "causal_lm"}}, "model.kind"),
        ({"model": {"tail": 1}}, "model.tail"),
        ({"vertical": {"join": "sum"}}, "vertical.join"),
        ({"vertical": {"absent": "last"}}, "vertical.absent"),
        ({"data": {"public": "python_docs"}}, "data.public"),
        ({"method": [{"kind": "p3eft"}]}, "method.0.kind"),
        (
            {"clients": {"malicious": {"ids": [0], "poison": [{"kind": "villain"}]}}},
            "clients.malicious",
        ),
        ({"data": {"partition": {"groups": {"desk": ["askd"]}}}}, "data.partition.groups.desk"),
        ({"data": {"partition": {"groups": {"press": ["asked"]}}}}, "data.partition.groups.press"),
    ],
)
def test_texts_that_no_trunk_could_read_are_refused(
    changes: dict[str, Any], field: str, folder: Path
) -> None:
    with pytest.raises(Exception, match=field):
        given(folder, **changes)


def test_labels_reach_over_more_outputs_and_are_never_cut() -> None:
    labels = torch.tensor([[1, IGNORED, IGNORED]])
    assert widen_labels(labels, torch.zeros(1, 5, 2)).tolist() == [[1] + [IGNORED] * 4]
    assert widen_labels(labels, torch.zeros(1, 2, 2)) is labels
