"""The examples record what they send, and are audited."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from simsplit import audit
from simsplit.auditing.audit_verdicts import AuditFinding
from simsplit.pretrain.shipped_models import find_shipped
from simsplit.results.leak_table import CEILING
from simsplit.wires.transcript import Transcript
from simsplit.wires.truth import Truth

EXAMPLES = Path(__file__).parents[3] / "examples" / "audits"


def load_example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import an example as its user would."""
    from importlib import import_module

    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return import_module(name)


def hold_to_page(read: AuditFinding, words: str) -> None:
    """Compare figures with those on a page; another processor's last digit is another."""
    printed = [float(each) for each in re.findall(r"\d\.?\d*(?:e-\d+)?", words)[:4]]
    assert [read.value, read.low, read.high, read.floor] == pytest.approx(printed, rel=0.03)


def test_the_plain_split_is_short_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (EXAMPLES / "plain_split.py").read_text()
    assert len(text.splitlines()) <= 65
    assert [line for line in text.splitlines() if "simsplit import" in line] == [
        "from simsplit import record"
    ]
    module = load_example("plain_split", monkeypatch)
    module.train(str(tmp_path / "wire"), samples=64)
    wire = Transcript.open(tmp_path / "wire")
    legs = ("smashed", "features", "features_grad", "smashed_grad")
    assert wire.summarise().by_leg == dict.fromkeys(legs, 2)
    assert (wire.facts.modality, wire.facts.classes) == ("images", 10)
    truth, (images, labels) = Truth.open(tmp_path / "wire"), module.load_images()
    assert truth is not None
    assert truth.ids.tolist() == list(range(64))
    assert torch.equal(torch.stack(truth.find_inputs([5, 9])), images[[5, 9]])
    assert torch.equal(torch.stack(truth.find_labels([5, 9])), labels[[5, 9]])


def test_the_plain_split_is_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_example("plain_split", monkeypatch)
    module.train(str(tmp_path / "wire"))
    made = audit(tmp_path / "wire", tmp_path / "audit", attacks=["kmeans", "ridge"])
    ridge, kmeans = made.findings
    assert (kmeans.kind, kmeans.value) == ("labels", 1.0), "a gradient names its class"
    assert (ridge.kind, ridge.role, ridge.is_above_guess) == ("images", CEILING, True)
    assert made.worst == kmeans
    page = (EXAMPLES.parents[1] / "docs/howto/audit.md").read_text()
    assert made.verdict in page
    (row,) = [each for each in page.splitlines() if each.startswith(" ridge (upper bound)")]
    printed = [
        float(each) for each in re.findall(r"\d[\d.]*(?:e-\d+)?", row.partition("mse")[2])[:4]
    ]
    # Another processor's last digit is another.
    assert [ridge.value, ridge.low, ridge.high, ridge.floor] == pytest.approx(printed, rel=0.03)


@pytest.fixture
def flower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ModuleType, Callable[..., Any]]:
    """The example's app, and a function that sends it a message as a server does."""
    from flwr.common import Array, ArrayRecord, Context, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):  # as a node's process sets them
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.chdir(tmp_path)
    module = load_example("flower_split", monkeypatch)
    context = Context(1, 7, {"partition-id": 3}, RecordDict(), {})

    def ask(kind: str, **arrays: np.ndarray) -> Any:
        record = ArrayRecord({name: Array(each) for name, each in arrays.items()})
        content = RecordDict({"arrays": record})
        answer = module.app(Message(content, dst_node_id=7, message_type=kind), context)
        return answer.content.array_records["arrays"]

    return module, ask


def test_the_flower_app_keeps_what_its_messages_carry(
    tmp_path: Path, flower: tuple[ModuleType, Callable[..., Any]]
) -> None:
    module, ask = flower
    grad = np.full((32, 4, 8, 8), 0.5, np.float32)
    sent = ask("query")["activations"].numpy()
    ask("train", smashed_grad=grad, weights=np.zeros(3, np.float32))
    second = ask("query")["activations"].numpy()
    assert not np.array_equal(sent, second)
    crossings = list(Transcript.open(tmp_path / "wires" / "node-7").crossings())
    packets = [each.packet for each in crossings]
    # A gradient belongs to the step of what it is the gradient of.
    assert [(each.client, each.step, each.leg) for each in packets] == [
        (3, 0, "smashed"),
        (3, 0, "smashed_grad"),
        (3, 1, "smashed"),
    ]
    assert [each.ids for each in crossings] == [(*range(32),), (), (*range(32, 64),)]
    for packet, array in zip(packets, (sent, grad, second), strict=True):
        assert np.array_equal(packet.tensors[0].numpy(), array)
    truth = Truth.open(tmp_path / "wires" / "node-7")
    assert truth is not None
    assert torch.equal(torch.stack(truth.find_inputs([5, 40])), module.CLIENTS[3].images[[5, 40]])


def test_the_flower_app_is_audited(
    tmp_path: Path, flower: tuple[ModuleType, Callable[..., Any]]
) -> None:
    module, ask = flower
    labels = torch.as_tensor(load_digits().target[3 * module.SAMPLES : 4 * module.SAMPLES])
    server = nn.Linear(4 * 64, 10)
    for each in server.parameters():
        nn.init.zeros_(each)
    optimizer = torch.optim.SGD(server.parameters(), 0.1)
    for step in range(16):
        sent = torch.tensor(ask("query")["activations"].numpy(), requires_grad=True)
        optimizer.zero_grad()
        known = labels.view(-1, module.BATCH_SIZE)[step % 8]
        F.cross_entropy(server(sent.flatten(1)), known).backward()
        optimizer.step()
        ask("train", smashed_grad=sent.grad.numpy())
    made = audit(tmp_path / "wires" / "node-7", tmp_path / "audit", attacks=["ridge"])
    (read,) = made.findings
    assert (read.kind, read.samples, made.facts["pairs"]) == ("images", 64, 192)
    assert read.share > 0.6, "four filters of a linear layer hide little"
    assert read.is_above_guess
    page = (EXAMPLES.parents[1] / "docs/howto/audit.md").read_text()
    (row,) = [each for each in page.splitlines() if each.startswith("With 192 known inputs")]
    hold_to_page(read, row.partition("error of")[2])


def test_embeddings_of_prompts_are_rows_of_the_table_and_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, folder = load_example("prompt_embeddings", monkeypatch), find_shipped("demo")
    assert folder is not None
    prompts = ["the cat sat on it", "a dog ran home today"]
    module.embed_prompts(folder, tmp_path / "wire", prompts)
    wire, truth = Transcript.open(tmp_path / "wire"), Truth.open(tmp_path / "wire")
    assert truth is not None
    assert (wire.facts.modality, wire.facts.content) == ("texts", {"smashed": "embeddings"})
    table = module.AutoModelForCausalLM.from_pretrained(folder).get_input_embeddings()
    (packet,) = wire.packets()
    assert torch.equal(packet.tensors[0], table(torch.stack(truth.find_inputs([0, 1]))).detach())
    made = audit(tmp_path / "wire", tmp_path / "audit", knows={"model": folder})
    (read,) = made.findings
    assert (read.attack, read.value) == ("vocabulary_matching", 1.0)
