"""`simsplit.record` changes nothing that a loop computes, and keeps what crossed to the bit."""

import logging
import shutil
import subprocess
import sys
from contextlib import nullcontext
from logging.handlers import BufferingHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gists import gist, says
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from simsplit import record
from simsplit.errors import RunError
from simsplit.wires import transcript_writer
from simsplit.wires.facts import Content
from simsplit.wires.flower import transcribe_messages
from simsplit.wires.recording import WriteBehind
from simsplit.wires.transcribing import transcribe
from simsplit.wires.transcript import Transcript
from simsplit.wires.truth import Truth

STEPS = 5


class Split(nn.Module):
    """A network cut in three; the layer after the cut writes over its output."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(16, 8))
        self.trunk = nn.Linear(8, 8)
        self.tail = nn.Linear(8, 3)

    def forward(self, images: Tensor) -> Tensor:
        tail: Tensor = self.tail(self.trunk(self.encoder(images).relu_()))
        return tail


def train(wire: Path | None, *, compiled: bool = False, **options: object) -> list[Tensor]:
    """Train a few steps, and return the weights."""
    torch.manual_seed(0)  # noqa: TID251 - a stranger's loop
    net = Split()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    forward = net
    if compiled:
        torch.compiler.reset()
        forward = torch.compile(net, backend="eager")
        forward(torch.zeros(4, 1, 4, 4))  # compiled before the recorder comes
    if wire is not None:
        options = {"smashed": net.encoder, "features": net.trunk, "labels": True, **options}
    recording = nullcontext() if wire is None else record(wire, **options)  # type: ignore[arg-type]
    with recording as tape:
        for step in range(STEPS):
            images, labels = torch.randn(4, 1, 4, 4), torch.tensor([0, 1, 2, step % 3])
            if tape is not None:
                tape.samples(range(4 * step, 4 * step + 4), inputs=images, labels=labels)
            nn.functional.cross_entropy(forward(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [each.detach().clone() for each in net.parameters()]


# The compiler itself looks at the gradients of what it goes on from.
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_recorded_loop_is_the_loop_to_the_bit(tmp_path: Path, compiled: bool) -> None:
    plain, recorded = train(None), train(tmp_path / "wire", compiled=compiled)
    assert all(map(torch.equal, plain, recorded))
    wire = Transcript.open(tmp_path / "wire")
    legs = ("smashed", "labels", "features", "features_grad", "smashed_grad")
    assert wire.summarise().by_leg == dict.fromkeys(legs, STEPS)
    assert (wire.facts.modality, wire.facts.classes) == ("images", 3)
    assert [row.leg for row in wire.rows()][:5] == list(legs)


def test_legs_hold_what_was_said_when_the_recording_began(tmp_path: Path) -> None:
    said: dict[str, Content] = {"smashed": "embeddings"}
    net, images = Split(), torch.ones(4, 1, 4, 4)
    with record(tmp_path / "wire", smashed=net.encoder, content=said) as tape:
        said["smashed"] = "other"
        tape.samples(range(4), inputs=images)
        net(images)
    assert Transcript.open(tmp_path / "wire").facts.content == {"smashed": "embeddings"}


def test_legs_of_messages_hold_what_was_said_when_the_mod_was_made(tmp_path: Path) -> None:
    said: dict[str, Content] = {"smashed": "embeddings"}
    truth = torch.arange(4), torch.ones(4, 1, 4, 4), None
    mod = transcribe_messages(tmp_path, samples=lambda _: truth, content=said)
    said["smashed"] = "other"
    arrays = SimpleNamespace(array_records={"arrays": {"smashed": torch.ones(4, 8)}})
    answer = SimpleNamespace(content=arrays, has_content=lambda: True)
    asked = SimpleNamespace(has_content=lambda: False)
    mod(asked, SimpleNamespace(node_id=1, node_config={}), lambda *_: answer)
    wire = Transcript.open(tmp_path / "node-1")
    assert next(wire.rows()).ids == (0, 1, 2, 3)
    facts = wire.facts
    assert (facts.modality, facts.content) == ("images", {"smashed": "embeddings"})


def test_what_answers_the_last_batch_is_no_part_of_the_next(tmp_path: Path) -> None:
    """A round trip brings features of one batch, and takes gradients and the next batch away."""
    taken = iter([range(4), range(4, 8), range(8, 12)])
    truth = torch.ones(4, 1, 4, 4)
    mod = transcribe_messages(tmp_path, samples=lambda _: (next(taken), truth, None))  # type: ignore[arg-type,return-value]

    def message(*legs: str) -> SimpleNamespace:
        arrays = {"arrays": {leg: torch.ones(4, 8) for leg in legs}}
        content = SimpleNamespace(array_records=arrays)
        return SimpleNamespace(content=content, has_content=lambda: bool(legs))

    node = SimpleNamespace(node_id=1, node_config={})
    for come, leave in (
        ((), ("smashed", "labels")),
        (("features",), ("smashed", "labels", "features_grad")),
        (("features", "smashed_grad"), ("features_grad", "smashed", "labels")),
        (("features",), ("features_grad",)),
    ):
        mod(message(*come), node, lambda *_, leave=leave: message(*leave))
    rows = [*Transcript.open(tmp_path / "node-1").rows()]
    steps = {leg: [row.step for row in rows if row.leg == leg] for leg in {r.leg for r in rows}}
    assert steps == {
        "smashed": [0, 1, 2],
        "labels": [0, 1, 2],
        "features": [0, 1, 2],
        "features_grad": [0, 1, 2],
        "smashed_grad": [1],
    }
    of_step = {0: (0, 1, 2, 3), 1: (4, 5, 6, 7), 2: (8, 9, 10, 11)}
    assert all(row.ids in ((), of_step[row.step]) for row in rows)


def test_values_are_those_before_the_next_layer_wrote_over_them(tmp_path: Path) -> None:
    train(tmp_path / "wire")
    torch.manual_seed(0)  # noqa: TID251 - a stranger's loop
    net, images = Split(), torch.randn(4, 1, 4, 4)
    first = next(Transcript.open(tmp_path / "wire").crossings(legs=["smashed"]))
    sent = net.encoder(images)
    sent.retain_grad()
    nn.functional.cross_entropy(
        net.tail(net.trunk(sent.relu())), torch.tensor([0, 1, 2, 0])
    ).backward()
    assert torch.equal(first.packet.tensors[0], sent.detach())
    assert (sent < 0).any()
    (grad, *_) = Transcript.open(tmp_path / "wire").packets(legs=["smashed_grad"])
    assert sent.grad is not None
    assert torch.equal(grad.tensors[0], sent.grad)
    truth = Truth.open(tmp_path / "wire")
    assert truth is not None
    assert torch.equal(torch.stack(truth.find_inputs(first.ids)), images)


def test_mixed_precision_is_kept(tmp_path: Path) -> None:
    net = Split()
    with record(tmp_path / "wire", smashed=net.encoder), torch.autocast("cpu", torch.bfloat16):
        net(torch.zeros(2, 1, 4, 4)).sum().backward()
    packets = list(Transcript.open(tmp_path / "wire").packets())
    assert [(each.leg, each.tensors[0].dtype) for each in packets] == [
        ("smashed", torch.bfloat16),
        ("smashed_grad", torch.bfloat16),
    ]


def test_evaluation_and_recomputation_are_no_steps_of_training(tmp_path: Path) -> None:
    net = Split()
    images = torch.zeros(2, 1, 4, 4)
    with record(tmp_path / "wire", smashed=net.encoder) as tape:
        checkpoint(net, images, use_reentrant=False).sum().backward()
        net.eval()
        with torch.no_grad():
            net(images)
    assert tape.steps == 2
    rows = list(Transcript.open(tmp_path / "wire").rows())
    assert [(row.leg, row.phase) for row in rows if row.leg == "smashed"] == [
        ("smashed", "train"),
        ("smashed", "evaluate"),
    ]


def test_a_step_without_named_samples_has_none(tmp_path: Path) -> None:
    net, images = Split(), torch.zeros(2, 1, 4, 4)
    with record(tmp_path / "wire", smashed=net.encoder, modality="images", every=2) as tape:
        for ids in ([0, 1], [2, 3], None, [4, 5], [6, 7]):
            if ids is not None:
                tape.samples(ids)
            net(images)
    rows = list(Transcript.open(tmp_path / "wire").rows())
    assert [(row.step, row.ids) for row in rows] == [(0, (0, 1)), (2, ()), (4, (6, 7))]


def test_every_third_step_is_recorded(tmp_path: Path) -> None:
    train(tmp_path / "wire", every=3)
    assert {row.step for row in Transcript.open(tmp_path / "wire").rows()} == {0, 3}


def test_a_cap_leaves_the_loop_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its own handler: other libraries configure logging, and then nothing goes to stderr.
    logger, heard = logging.getLogger("simsplit"), BufferingHandler(100)
    monkeypatch.setattr(logger, "handlers", [heard])
    monkeypatch.setattr(logger, "disabled", False)
    assert all(map(torch.equal, train(None), train(tmp_path / "wire", most=900)))
    facts = Transcript.open(tmp_path / "wire").facts
    assert facts.status == "cut"
    assert "900 B" in facts.ended
    (warning,) = heard.buffer
    assert warning.levelno == logging.WARNING
    assert says(warning.getMessage(), f"{tmp_path / 'wire'} ... 900 B")


def test_a_full_disk_leaves_the_loop_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(
        transcript_writer.shutil, "disk_usage", lambda path: plain._replace(free=2**20)
    )
    assert all(map(torch.equal, train(None), train(tmp_path / "wire")))
    wire = Transcript.open(tmp_path / "wire")
    assert (wire.facts.status, wire.summarise().packets) == ("cut", 0)
    assert "1.0 MiB" in wire.facts.ended


def test_the_queue_is_bounded() -> None:
    """The loop waits for the disk instead of filling the memory."""
    import threading

    gate, behind, put = threading.Event(), WriteBehind(ahead=100), list[int]()

    def fill() -> None:
        for number in range(4):
            behind.put(gate.wait, 60)
            put.append(number)

    filling = threading.Thread(target=fill)
    filling.start()
    filling.join(0.2)
    assert len(put) == 1
    gate.set()
    filling.join()
    behind.close()
    assert put == [0, 1, 2, 3]


def test_what_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    net = Split()
    cases = {
        "DataParallel": lambda: record(tmp_path / "a", smashed=nn.DataParallel(net.encoder)),
        "smashed, features": lambda: record(tmp_path / "b"),
        "smashed ... str": lambda: record(tmp_path / "c", smashed="encoder"),  # type: ignore[arg-type]
        "most ... lots": lambda: record(tmp_path / "d", smashed=net, most="lots"),
        "every ... 0": lambda: record(tmp_path / "e", smashed=net, every=0),
        "content.smashed": lambda: record(
            tmp_path / "f",
            smashed=net,
            content={"smashed": "spells"},  # type: ignore[dict-item]
        ),
    }
    for parts, make in cases.items():
        with pytest.raises(RunError, match=gist(parts)), make():
            pass
    with record(tmp_path / "g", smashed=net.encoder) as tape:
        with pytest.raises(RunError, match=gist("3 ids ... 2 inputs")):
            tape.samples(range(3), inputs=torch.zeros(2, 1, 4, 4))
        tape.samples(range(3))
        with pytest.raises(RunError, match=gist("3 ... 4")):
            net(torch.zeros(4, 1, 4, 4))
    with record(tmp_path / "h", smashed=net.encoder):
        net.encoder._is_replica = True  # type: ignore[assignment] - as DataParallel marks copies
        with pytest.raises(RunError, match="DataParallel"):
            net(torch.zeros(4, 1, 4, 4))


def test_the_recorder_is_light() -> None:
    """A stranger's script that imports `record` alone loads nothing that it does not use."""
    code = (
        "import sys; from simsplit import record; "
        "print(*sorted({each.partition('.')[0] for each in sys.modules} & "
        "{'pandas', 'transformers', 'sklearn', 'scipy', 'torchvision', 'typer', 'matplotlib'}), "
        "*[each for each in sys.modules if each.startswith('simsplit.') and 'wires' not in each])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {
        f"simsplit.{name}" for name in ("errors", "legs", "config", "foreign", "packets", "sizes")
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ids": ["a", "b"]}, "ids ... whole"),
        ({"ids": 3}, "ids ... one for each"),
        ({"ids": torch.tensor(3)}, "ids ... one for each"),
        ({"ids": [0, 1], "inputs": torch.ones(2, 3).numpy()}, "inputs ... torch.as_tensor"),
        ({"ids": [0, 1], "labels": [4, 5]}, "labels ... torch.as_tensor"),
        ({"ids": [0, 1], "labels": torch.tensor(4)}, "2 ids ... labels"),
    ],
)
def test_samples_of_another_form_are_named_where_they_are_given(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    with (
        record(tmp_path / "wire", smashed=torch.nn.Linear(3, 3)) as tape,
        pytest.raises(RunError, match=gist(said)),
    ):
        tape.samples(**given)


@pytest.mark.parametrize("label", [10**9, -3])
def test_labels_that_are_no_classes_leave_a_transcript_that_is_read(
    tmp_path: Path, label: int
) -> None:
    net = torch.nn.Linear(3, 3)
    with record(tmp_path / "wire", smashed=net) as tape:
        tape.samples([0, 1], inputs=torch.ones(2, 3), labels=torch.tensor([label, label]))
        net(torch.ones(2, 3))
    assert Transcript.open(tmp_path / "wire").facts.classes is None
    made = transcribe(tmp_path / "two", smashed=torch.ones(2, 3), labels=torch.full((2,), label))
    assert made.facts.classes is None
