"""A package that a scenario needs and this machine lacks is named before work starts."""

import sys
from pathlib import Path
from typing import Any

import pytest
from texts import CAUSAL, LORA, api_scenario, text_scenario

from simsplit import plan
from simsplit.errors import ScenarioError
from simsplit.metrics import image_scores
from simsplit.models import text_model
from simsplit.scenario import load_sweep
from simsplit.scenario.findings import Occasion
from simsplit.scenario.refusals import refuse
from simsplit.sweep.running import run_sweep

SWEEP = """
data:
  source: {kind: python_docs, length: 16}
  train_samples: 8
  test_samples: 8
model: {kind: causal_lm, sizes: {family: llama, width: 16, layers: 3}, head: 1, tail: 1}
clients: {count: 1}
schedule: {kind: round_robin, rounds: 1}
sweep:
  model.lora: [null, {rank: 2}]
"""


def test_a_sweep_trains_nothing_if_a_later_cell_lacks_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "two.yaml").write_text(SWEEP)
    monkeypatch.setattr(text_model, "find_spec", lambda name: None)
    with pytest.raises(ScenarioError, match=r"model\.lora: .*peft: pip install '\.\[text\]'"):
        run_sweep(load_sweep(tmp_path / "two.yaml"), tmp_path / "out", jobs=1)
    assert not (tmp_path / "out").exists()


def test_whoever_builds_adapters_without_a_run_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = text_scenario(tmp_path, model={**CAUSAL, "lora": LORA})
    monkeypatch.setattr(text_model, "find_spec", lambda name: None)
    with pytest.raises(ScenarioError, match=r"model\.lora: .*peft"):
        plan(given, timing=False)


def test_an_api_whose_adapters_do_not_learn_needs_no_peft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_model, "find_spec", lambda name: None)
    refuse(Occasion.PACKAGES, api_scenario(tmp_path, model={"learns": ["tail"]}))
    with pytest.raises(ScenarioError, match="peft"):
        refuse(Occasion.PACKAGES, api_scenario(tmp_path))


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("targets.lpips", {"targets": {"lpips": "alexnet.pth"}}),
        ("evaluate.metrics", {"evaluate": {"metrics": ["loss", "code_bleu"]}, "model": CAUSAL}),
    ],
)
def test_figures_name_their_packages(
    field: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_scores, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "codebleu", None)
    given = text_scenario(tmp_path, **changes)
    with pytest.raises(ScenarioError, match=rf"{field}: .*pip install"):
        refuse(Occasion.PACKAGES, given)
