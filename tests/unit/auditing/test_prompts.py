"""Embeddings that a client sends to an API are read by the public table; the truth is not given."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gists import gist

import simsplit
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.vocabulary_matching import VocabularyMatchingConfig
from simsplit.models.language import CausalLM
from simsplit.wires.truth import Truth

MODEL = "simsplit/ci"
TEXTS = ["My PIN is 4711 and", "Anna has diabetes,", "Do not tell anyone"]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embeddings of private prompts, sent in half precision."""
    model = CausalLM(name=MODEL, head=0, tail=1)
    encoded = model.make_reader().encode(TEXTS)
    length = min(map(len, encoded))
    ids = torch.tensor([each[:length] for each in encoded])
    with torch.no_grad():
        sent = model.segment("head", (length,), 2, 0)(ids).half()
    wire = tmp_path_factory.mktemp("prompts") / "wire"
    content = {"smashed": "embeddings"}
    simsplit.transcribe(
        wire, smashed=sent, inputs=ids, modality="texts", content=content, batch_size=2
    )
    return wire


def test_every_token_is_read_by_the_public_table_alone(prompts: Path, tmp_path: Path) -> None:
    made = simsplit.audit(prompts, tmp_path / "audit", knows={"model": MODEL})
    (read,) = made.findings
    assert (read.attack, read.metric, read.value) == ("vocabulary_matching", "token_accuracy", 1.0)
    assert made.share == 1.0
    assert any("--public" in line and "sip" in line for line in made.wants)


def test_texts_without_a_model_say_what_is_needed(prompts: Path, tmp_path: Path) -> None:
    with pytest.raises(simsplit.SimsplitError, match="--knows model="):
        simsplit.audit(prompts, tmp_path / "audit")
    assert not (tmp_path / "audit").exists()


def test_an_attack_cannot_reach_the_truth(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All objects that lead on from what an attack knows hold no tensor of the private tokens."""
    truth = Truth.open(prompts)
    assert truth is not None
    private = torch.stack(truth.find_inputs([0, 1, 2]))
    reached: list[bool] = []
    build = VocabularyMatchingConfig.build

    def look(self: VocabularyMatchingConfig, known: Knowledge) -> Any:
        reached.append(any(holds(each, private) for each in walk(known)))
        return build(self, known)

    monkeypatch.setattr(VocabularyMatchingConfig, "build", look)
    simsplit.audit(prompts, tmp_path / "audit", knows={"model": MODEL})
    assert reached
    assert not any(reached)
    planted = {"known": [private.clone()]}
    assert any(holds(each, private) for each in walk(planted)), "or nothing is ever found"


def holds(thing: object, private: torch.Tensor) -> bool:
    same = isinstance(thing, torch.Tensor) and thing.dtype == torch.int64
    return same and thing.shape == private.shape and torch.equal(thing, private)


def walk(thing: object) -> Iterator[object]:
    """Yield all objects that are reached from one, without modules and classes."""
    seen, left = {id(thing)}, [thing]
    while left:
        here = left.pop()
        yield here
        for each in gc.get_referents(here):
            plain = not isinstance(each, type | type(gc)) and not hasattr(each, "__globals__")
            if plain and id(each) not in seen:
                seen.add(id(each))
                left.append(each)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda sent, ids: (sent, ids.index_fill(1, torch.tensor([0]), -100)), "truth ... -100"),
        (lambda sent, ids: (sent, ids + 0.5), "truth ... whole"),
        (lambda sent, ids: (sent, ids[:, :, None]), "truth ... [4, 1]"),
        (lambda sent, ids: (sent, ids[:, 0]), "truth ... []"),
        (lambda sent, ids: (sent[:, :0], ids[:, :0]), "truth ... [0]"),
        (lambda sent, ids: (sent.mean(1), ids), "texts ... tokens ... width ... 64"),
    ],
)
def test_texts_of_another_form_are_named(tmp_path: Path, change: Any, said: str) -> None:
    """Labels of -100 stand for padding in many programs, and are no tokens."""
    sent, ids = change(torch.zeros(2, 4, 64), torch.full((2, 4), 40))
    simsplit.transcribe(tmp_path / "wire", smashed=sent, inputs=ids, modality="texts")
    with pytest.raises(simsplit.SimsplitError, match=gist(said)):
        simsplit.audit(tmp_path / "wire", tmp_path / "audit", knows={"model": MODEL})


def test_texts_of_special_tokens_alone_are_judged(tmp_path: Path) -> None:
    sent, ids = torch.zeros(2, 4, 64), torch.zeros(2, 4, dtype=torch.int64)
    simsplit.transcribe(tmp_path / "wire", smashed=sent, inputs=ids, modality="texts")
    knows = {"model": MODEL}
    made = simsplit.audit(
        tmp_path / "wire", tmp_path / "out", knows=knows, attacks=["vocabulary_matching"]
    )
    assert len(made.findings) == 1


def test_a_model_that_does_not_exist_is_named(prompts: Path, tmp_path: Path) -> None:
    with pytest.raises(simsplit.SimsplitError, match=gist("--knows ... simsplit/cii ... 'ci'")):
        simsplit.audit(prompts, tmp_path / "audit", knows={"model": "simsplit/cii"})
