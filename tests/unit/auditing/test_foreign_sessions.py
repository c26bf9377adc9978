"""A foreign generation, recorded pass by pass, is attacked as sessions of a run are."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from unit.auditing.test_prompts import holds, walk

import simsplit
from simsplit.attacks.session_attack import SessionAttack
from simsplit.attacks.session_records import Record
from simsplit.auditing.recorded_sessions import choose_sessions
from simsplit.errors import RunError
from simsplit.legs import Leg
from simsplit.pretrain.shipped_models import find_shipped
from simsplit.report.leak_tables import tabulate_leaks
from simsplit.wires.transcript import Transcript
from simsplit.wires.truth import Truth

NEW = 5
"""Tokens that are written after each prompt; the last never crosses."""


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[int, torch.Tensor]:
    return {}


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory, texts: dict[int, torch.Tensor]) -> Path:
    """Twenty-six texts, written by `generate` of transformers; nothing else of ours."""
    path = tmp_path_factory.mktemp("sessions") / "wire"
    folder = find_shipped("ci")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    layers = model.model.layers
    rng = torch.Generator().manual_seed(0)
    with simsplit.record(
        path, smashed=layers[0], features=layers[-2], gradients=False, modality="texts"
    ) as tape:
        for number in range(26):
            length = 6 + number % 3
            prompt = torch.randint(3, model.config.vocab_size, (1, length), generator=rng)
            with tape.session(number) as text:
                written = model.generate(
                    prompt,
                    attention_mask=torch.ones_like(prompt),
                    max_new_tokens=NEW,
                    min_new_tokens=NEW,
                    do_sample=False,
                )
                text.tokens = written[0]
            texts[number] = written[0]
    return path


def test_each_token_crosses_once_and_the_last_never(
    wire: Path, texts: dict[int, torch.Tensor]
) -> None:
    opened, truth = Transcript.open(wire), Truth.open(wire)
    assert truth is not None
    told = choose_sessions(opened, truth, 0, 64, 100)
    assert (len(told.targets), len(told.known)) == (13, 13)
    first = told.targets[0]
    assert [(each.leg, each.position) for each in first.packets if each.leg is Leg.SMASHED] == [
        ("smashed", place) for place in (0, 6, 7, 8, 9)
    ]
    assert torch.equal(first.tokens, texts[0][:-1])
    assert first.prompt == 6
    assert first.join(Leg.FEATURES).shape[:2] == (1, 6 + NEW - 1)


def test_session_attacks_read_it(wire: Path, tmp_path: Path) -> None:
    knows = {"model": str(find_shipped("ci")), "head": 1, "tail": 1}
    attacks = [
        {"kind": "mc"},
        {"kind": "vmi", "steps": 120, "step_size": 0.01, "stop_after": 0},
        {"kind": "known_pairs"},
    ]
    made = simsplit.audit(wire, tmp_path / "audit", knows=knows, attacks=attacks, targets=4)
    by_name = {each.attack: each for each in made.findings}
    assert by_name.keys() == {"mc", "vmi", "known_pairs"}
    assert {each.kind for each in made.findings} == {"sessions"}
    assert by_name["known_pairs"].role == "ceiling"
    assert by_name["mc"].is_above_guess, "a model's own words are what its tail says"
    assert (made.facts["targets"], made.facts["pairs"]) == (4, 22)
    assert tabulate_leaks(made.run, "sessions").rows
    table = made.run.leaks
    assert {*table.loc[table["role"] == "floor", "attack"]} == {"random_tokens", "frequent_token"}


def test_whole_texts_are_attacked_too(wire: Path, tmp_path: Path) -> None:
    knows = {"model": str(find_shipped("ci")), "head": 1, "tail": 1}
    made = simsplit.audit(
        wire, tmp_path / "audit", knows=knows, attacks=["vocabulary_matching"], targets=4
    )
    (read,) = made.findings
    assert (read.kind, read.samples) == ("texts", 4)
    assert read.value > 0.9


def test_a_gap_is_named(wire: Path, tmp_path: Path) -> None:
    import shutil

    broken = tmp_path / "wire"
    shutil.copytree(wire, broken)
    lines = (broken / "packets.csv").read_text().splitlines(keepends=True)
    (broken / "packets.csv").write_text("".join([*lines[:3], *lines[5:]]))
    truth = Truth.open(broken)
    assert truth is not None
    with pytest.raises(RunError, match=r"session 0: .*expected 6"):
        choose_sessions(Transcript.open(broken), truth, 0, 64, 0)


def test_sessions_of_several_texts_are_refused(tmp_path: Path) -> None:
    net = torch.nn.Linear(3, 3)
    with (
        simsplit.record(tmp_path / "wire", smashed=net, modality="texts") as tape,
        tape.session(0),
        pytest.raises(RunError, match="one text"),
    ):
        net(torch.zeros(2, 4, 3))


def test_an_attack_on_sessions_cannot_reach_their_texts(
    wire: Path,
    texts: dict[int, torch.Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither what it knows nor what it hears leads to a text that it is to read."""
    private = texts[0][:-1]
    reached: list[bool] = []
    hear = SessionAttack.hear

    def look(self: SessionAttack, record: Record) -> None:
        hear(self, record)
        reached.append(any(holds(each, private) for each in walk(self)))

    monkeypatch.setattr(SessionAttack, "hear", look)
    knows = {"model": str(find_shipped("ci")), "head": 1, "tail": 1}
    simsplit.audit(wire, tmp_path / "audit", knows=knows, attacks=["mc"], targets=1)
    assert reached == [False]
    assert any(holds(each, private) for each in walk({"known": [private.clone()]}))
