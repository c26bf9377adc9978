"""Embeddings that a client sends to an API are read by the public table; the truth is not given."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

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
