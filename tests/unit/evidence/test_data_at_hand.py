"""A table that lacks data or a model says what is missing, and how one comes by it."""

import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from simsplit.__main__ import app
from simsplit.evidence.data_at_hand import explain_absence
from simsplit.evidence.papers import load_papers
from simsplit.scenario import Scenario


def test_a_model_that_a_command_makes_is_missing_with_that_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = {"source": {"kind": "python_docs"}}
    model = {"kind": "causal_lm", "name": "models/mine", "head": 1, "tail": 1}
    given = Scenario(data=texts, model=model)
    models = {"models/mine": "simsplit pretrain models/mine"}
    assert "simsplit pretrain models/mine" in str(explain_absence(given, models))
    Path("models/mine").mkdir(parents=True)
    assert explain_absence(given, models) is None


@pytest.mark.parametrize(
    "command", [each for claims in load_papers().values() for each in claims.models.values()]
)
def test_commands_that_make_models_are_commands(command: str) -> None:
    program, name, *words = shlex.split(command)
    if program == "hf":  # the hub's own program, which fetches what is published
        assert (name, words[1]) == ("download", "--local-dir")
        assert words[2].startswith("models/")
        return
    assert program == "simsplit"
    get_command(app).commands[name].make_context(name, words)  # raises for unknown options
