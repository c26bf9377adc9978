"""`simsplit pretrain` as its user meets it."""

import json

import pytest
from gists import says

from simsplit.pretrain import read_facts

SMALL = {
    "width": 16, "layers": 1, "heads": 2, "vocabulary": 300, "context": 64, "steps": 20,
    "batch-size": 4, "length": 16, "device": "cpu", "lr": 0.01,
}  # fmt: skip


@pytest.fixture
def words(text):
    options = [word for name, value in SMALL.items() for word in (f"--{name}", value)]
    return ("pretrain", "model", "--text", text, *options)


def test_progress_goes_to_stderr_and_what_came_of_it_to_stdout(simsplit, words):
    code, out, err = simsplit(*words)
    assert code == 0
    lines = err.splitlines()
    assert says(lines[0], "llama, 1 ... 16 ... 300: 20 steps ... 4 x 16")
    assert lines[1] == "folder: model"
    assert lines[2].startswith("step 10/20  loss ")
    assert lines[-1].startswith("step 20/20  loss ")
    assert " tokens/s  0 s left" in lines[-1]
    assert " weights, validation loss " in out
    assert "model: {kind: causal_lm, name: model}\n" in out


def test_what_is_there_is_kept_and_another_refused(simsplit, words):
    assert simsplit(*words, "--quiet") == (0, "", "")
    code, out, err = simsplit(*words)
    assert (code, err) == (0, "")
    assert "already" in out
    code, out, err = simsplit(*words, "--seed", "1")
    assert (code, out) == (2, "")
    assert err.startswith("error: model has a model")


def test_json_is_all_that_stdout_has(simsplit, words, tmp_path):
    code, out, err = simsplit(*words, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {**read_facts(tmp_path / "model"), "path": "model"}


def test_a_terminal_has_a_bar_that_goes_away(simsplit, words, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, _, err = simsplit(*words)
    assert code == 0
    assert "step 20/20" in err
    assert "\x1b[" in err


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("--steps", "0"), "--steps: ... 1 ... 0"),
        (("--width", "17"), "width 17 ... 2 heads"),
        (("--text", "none.txt"), "text: none.txt"),
        (("--device", "abacus"), "--device: ... 'abacus' ... cpu, cuda, cuda:N, or auto"),
        (("--device", "cuda:99"), "--device: ... 'cuda:99' ... torch"),
        (("--tier", "huge"), "'huge' ... 'ci', 'demo', 'gpu'"),
    ],
)
def test_mistakes_are_answered_with_what_is_allowed(simsplit, words, given, reason, tmp_path):
    code, out, err = simsplit(*words, *given)
    assert (code, out) == (2, "")
    assert says(err, reason)
    assert "Traceback" not in err
    assert not (tmp_path / "model").exists()


def test_an_interruption_keeps_nothing(simsplit, words, monkeypatch, tmp_path):
    from simsplit.pretrain import pretraining

    def interrupt(step, steps):
        raise KeyboardInterrupt

    monkeypatch.setattr(pretraining, "_compute_factor", interrupt)
    code, out, err = simsplit(*words)
    assert (code, out) == (130, "")
    assert says(err.splitlines()[-1], "interrupted ... nothing")
    assert list(tmp_path.iterdir()) == []
