"""`simsplit chat` writes through the cut of a finished run, and tells what crossed."""

import csv
import io

import pytest
import torch
from builders import run_to_end
from gists import says
from texts import text_scenario

from simsplit import run as execute
from simsplit.objects_by_digest import _HELD
from simsplit.plugins import NO_PLUGINS
from simsplit.scenario import Scenario
from simsplit.terminal.chatting import Chat

TASK = {"kind": "generation", "prompt": "{sentence} is", "answer": " {topic}"}
MODEL = {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3, "public": True}}
MODEL |= {"head": 1, "tail": 1}


def require_author(path, **changes):
    data = {"source": {"task": TASK, "length": 32}, "auxiliary": 0.3} | changes.pop("data", {})
    given = {"data": data, "model": MODEL}
    one = {"schedule": {"kind": "round_robin", "rounds": 1}, "evaluate": {"metrics": ["loss"]}}
    return run_to_end(text_scenario(path, **given | one | changes), path / "run").path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return require_author(tmp_path_factory.mktemp("chat"))


def test_a_prompt_is_continued_and_what_crossed_is_tabulated(simsplit, run):
    words = ("--prompt", "a dull film is", "--tokens", 5, "--format", "csv")
    code, out, err = simsplit("chat", run, *words)
    assert (code, err) == (0, "")
    lines, read, *table = out.splitlines()
    assert "server reads" in read
    rows = list(csv.DictReader(io.StringIO("\n".join(table))))
    assert [row["leg"] for row in rows] == ["smashed", "features"]
    made = Chat(run, 0, NO_PLUGINS).write("a dull film is", 5)
    assert {row["packets"] for row in rows} == {str(made.tokens)}
    assert lines == made.text


def test_the_checkpoints_model_writes_and_the_pretrained_tail_reads(tmp_path):
    run = require_author(tmp_path, model={**MODEL, "learns": ["head", "trunk"]})
    chat = Chat(run, 1, NO_PLUGINS)
    made = chat.write("a grim song is", 6)
    assert made.read == made.text  # a tail that learned nothing is the one that it began as
    fresh = chat.scenario.model.segment("head", (32,), 1, chat.scenario.seed)
    now = chat.parts.pool.clients[1].training.end.head
    assert not torch.equal(fresh.tokens.weight, now.tokens.weight)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": [{"kind": "noise", "sigma": 0.1}]},
        {"method": [{"kind": "mid"}], "data": {"validation": 0.2}},
        {"clients": {"heads": "per_client"}, "attacks": [{"kind": "sip"}]},
    ],
    ids=["plain", "noise", "mid", "own heads"],
)
def test_it_writes_the_same_without_the_texts_of_the_run(tmp_path, monkeypatch, changes):
    path = require_author(tmp_path, **changes)
    monkeypatch.setattr(Scenario, "prepare_data", None)  # nobody may read them
    blank = Chat(path, 1, NO_PLUGINS).write("a grim song is", 6)
    monkeypatch.undo()
    monkeypatch.setattr("simsplit.terminal.chatting.make_blank_texts", lambda scenario: None)
    real = Chat(path, 1, NO_PLUGINS).write("a grim song is", 6)
    assert (blank.text, blank.read) == (real.text, real.read)
    assert [p.nbytes for p in blank.packets] == [p.nbytes for p in real.packets]
    for ours, theirs in zip(blank.packets, real.packets, strict=True):
        assert all(map(torch.equal, ours.tensors, theirs.tensors))


def test_texts_that_were_passed_need_not_be_passed_again(simsplit, tmp_path):
    texts = [f"a {word} film is {word}" for word in ("fine", "dull", "grim") * 8]
    values = text_scenario(tmp_path, model=MODEL).model_dump(mode="json")
    values["schedule"] = {"kind": "round_robin", "rounds": 1}
    values["evaluate"] = {"metrics": ["loss"]}
    execute(values, tmp_path / "run", data=texts, length=32)
    _HELD.clear()
    code, out, err = simsplit("chat", tmp_path / "run", "--prompt", "a dull film", "--tokens", 3)
    assert (code, err) == (0, "")
    assert "smashed" in out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--prompt", ""), "prompt ... empty"),
        (("--prompt", "a" * 600), "tokens; ... 512"),
        (("--prompt", "a", "--client", 7), "no client 7; allowed: 0 to 1"),
    ],
)
def test_what_cannot_be_continued_is_refused(words, why, simsplit, run):
    code, out, err = simsplit("chat", run, *words)
    assert (code, out) == (2, "")
    assert says(err, why)


@pytest.mark.slow
def test_prompts_are_asked_for_where_none_is_given(simsplit, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("a film is\na song is\n\n"))
    code, out, _ = simsplit("chat", require_author(tmp_path, method=[{"kind": "cover"}]))
    assert code == 0
    assert out.count("crossed") == 2
    assert "server reads" not in out  # one of three rows is the text's


def test_a_run_that_writes_nothing_is_refused(simsplit, tmp_path):
    classifier = {"kind": "sequence_classifier", "sizes": {"width": 16}, "head": 1, "tail": 1}
    data = {"source": {"task": "sst2", "length": 32}}
    run = require_author(tmp_path, model=classifier, data=data, evaluate={})
    code, _, err = simsplit("chat", run, "--prompt", "a")
    assert code == 2
    assert "sequence_classifier" in err
