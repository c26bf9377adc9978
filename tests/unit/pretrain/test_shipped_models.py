"""The pretrained models that come with the package: what they are, and who uses them."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from simsplit.errors import ScenarioError
from simsplit.evidence.digests import digest_of
from simsplit.models.fresh import SegmentRequest
from simsplit.pretrain import cache, fetch_pretrained, read_facts, shipped_models
from simsplit.pretrain.cache import has_pretrained
from simsplit.pretrain.shipped_models import FOLDER, digest_shipped, find_shipped
from simsplit.pretrain.tiers import DRAWS, find_named
from simsplit.scenario import load_sweep, parse
from simsplit.scenario.shipped import find_folder

NAMES = [f"{tier}@{draw}" for tier, count in DRAWS.items() for draw in range(count)]
FILES = [
    "config.json", "model.safetensors", "pretraining.json", "tokenizer.json",
    "tokenizer_config.json",
]  # fmt: skip


def on(name, seed=0, **fields):
    model = {"kind": "causal_lm", "name": f"simsplit/{name}", "head": 1, "tail": 1}
    return parse({"seed": seed, "model": model, "data": {"source": "python_docs"}, **fields})


def read_forms(folder):
    weights = load_file(folder / "model.safetensors")
    return {name: (each.dtype, each.shape) for name, each in weights.items()}


@pytest.fixture
def nothing_kept(tmp_path, monkeypatch):
    """An empty cache, in which nothing is made."""

    def refuse(*given):
        raise AssertionError("a model is pretrained")

    monkeypatch.setenv("SIMSPLIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "pretrain", refuse)
    return tmp_path / "cache"


@pytest.fixture
def moved(tmp_path, monkeypatch):
    """A copy of the shipped models, which a test may change."""
    shutil.copytree(FOLDER, tmp_path / "models")
    monkeypatch.setattr(shipped_models, "FOLDER", tmp_path / "models")
    digest_shipped.cache_clear()
    yield tmp_path / "models"
    digest_shipped.cache_clear()


def test_each_is_what_its_tier_describes_and_there_are_no_others():
    for name in NAMES:
        facts = read_facts(find_shipped(name))
        assert facts["config"] == find_named(name).model_dump(mode="json"), name
        assert (facts["device"], facts["threads"]) == ("cpu", 1)
        assert facts["instructions"]
    assert sorted(f"{folder.name}".replace("-", "@") for folder in FOLDER.iterdir()) == NAMES


@pytest.mark.parametrize("name", ["ci", "demo", "demo@1", "demo@2"])
def test_nothing_is_pretrained_for_them(nothing_kept, name):
    assert fetch_pretrained(name) == find_shipped(name)
    assert has_pretrained(name)
    assert on(name).model.is_available_offline
    assert not nothing_kept.exists()


def test_other_draws_and_tiers_are_not_taken_for_them(nothing_kept):
    for name in ("demo@3", "ci@1", "gpu"):
        assert find_shipped(name) is None
        assert not has_pretrained(name)
        with pytest.raises(AssertionError, match="pretrained"):
            fetch_pretrained(name, lambda line: None)


def test_half_precision_is_widened_exactly():
    from transformers import AutoModelForCausalLM

    saved = load_file(find_shipped("ci") / "model.safetensors")
    assert {weight.dtype for weight in saved.values()} == {torch.float16}
    tokens = on("ci").model.make_segment(SegmentRequest("head", (64,), 2, 0)).tokens.weight
    assert tokens.dtype == torch.float32
    assert torch.equal(tokens, saved["model.embed_tokens.weight"].float())
    whole = AutoModelForCausalLM.from_pretrained(find_shipped("ci"))  # as its users load it
    assert {weight.dtype for weight in whole.parameters()} == {torch.float32}
    assert torch.equal(whole.lm_head.weight, saved["lm_head.weight"].float())


def test_draws_differ_in_weights_and_tokenizer():
    digests = {digest_shipped(name) for name in NAMES}
    assert None not in digests
    assert len(digests) == len(NAMES)
    assert digest_shipped("demo") == digest_shipped("demo@0") == digest_shipped("demo@00")
    texts = [(find_shipped(f"demo@{draw}") / "tokenizer.json").read_text() for draw in range(3)]
    assert len(set(texts)) == 3


@pytest.mark.parametrize(("seed", "draw"), [(0, 0), (1, 1), (2, 2), (3, 0), (7, 1)])
def test_the_seed_chooses_the_draw(seed, draw):
    given = on("demo@seed", seed)
    assert given.model.find_folder() == str(FOLDER / f"demo-{draw}")
    assert given.model.describe_own_weights()["name"] == f"simsplit/demo@{draw}"
    assert given.model.describe_own_weights()["digest"] == digest_shipped(f"demo@{draw}")
    assert given.model.widen().find_folder() == given.model.find_folder()
    assert given["model"]["name"] == "simsplit/demo@seed"  # one setting, whatever the seed


def test_another_seed_is_another_draw_and_leaves_the_first_scenario_alone():
    first = on("demo@seed", 1)
    second = first.model_copy(update={"seed": 2})
    third = first.model_copy(update={"model": first.model.model_copy(update={"head": 2})})
    assert [each.model.own_name for each in (first, second, third)] == [
        "demo@1",
        "demo@2",
        "demo@1",
    ]
    text = "exceptions have names"
    assert second.text_reader().encode([text]) != first.text_reader().encode([text])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("dmo", r"'dmo', did you mean 'demo'"),
        ("demo@two", r"'two'.*demo@1"),
        ("demo@-1", r"'-1'.*demo@1"),
        ("ci@seed", r"ci@seed.*demo@seed"),
        ("gpu@seed", r"gpu@seed.*demo@seed"),
    ],
)
def test_unknown_names_are_refused_with_what_is_allowed(name, reason):
    with pytest.raises(ScenarioError, match=rf"model\.name: .*{reason}"):
        on(name)


def test_a_model_that_is_made_anew_makes_rows_on_it_stale(moved):
    own, other, draws = on("demo"), on("ci"), on("demo@seed", 1)
    before = [digest_of(each) for each in (own, other, draws)]
    assert digest_of(on("demo@seed", 2)) == before[2]  # a row's digest has no seed
    digest_shipped.cache_clear()
    facts = moved / "demo-0" / "pretraining.json"
    facts.write_text(json.dumps({**json.loads(facts.read_text()), "seconds": 1}))
    assert [digest_of(each) for each in (own, other, draws)] == before
    digest_shipped.cache_clear()
    weights = moved / "demo-0" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    after = [digest_of(each) for each in (own, other, draws)]
    assert [old == new for old, new in zip(before, after, strict=True)] == [False, True, False]


@pytest.mark.parametrize(
    "file",
    ["pidi/small/demo", "pidi/small/figure5", "p3eft/small/embedded", "p3eft/small/gradients"],
)
def test_evidence_is_over_draws_and_seeds(file):
    sweep = load_sweep(find_folder() / "papers" / f"{file}.yaml")
    drawn = {(cell.scenario.seed, cell.scenario.model.own_name) for cell in sweep.cells}
    assert drawn == {(0, "demo@0"), (1, "demo@1"), (2, "demo@2")}
    assert {digest_of(cell.scenario) for cell in sweep.cells[:1]} == {
        digest_of(sweep.cells[0].scenario.model_copy(update={"seed": 5}))
    }


def test_no_evidence_is_of_one_draw_alone():
    files = [*find_folder().glob("papers/**/*.yaml"), *find_folder().glob("boards/*.yaml")]
    texts = {file.name: file.read_text() for file in files}
    assert [
        name for name, text in texts.items() if re.search(r"simsplit/demo(?!@seed)", text)
    ] == []


def test_the_command_makes_a_folder_of_the_same_form(simsplit, text):
    words = ("--tier", "ci", "--half", "--steps", 1, "--text", text, "--device", "cpu", "--quiet")
    code, _, err = simsplit("pretrain", "made", *words)
    assert (code, err) == (0, "")
    made, shipped = Path("made"), find_shipped("ci")
    assert sorted(file.name for file in made.iterdir()) == FILES
    assert sorted(file.name for file in shipped.iterdir()) == FILES
    assert read_forms(made) == read_forms(shipped)
    for name in ("config.json", "tokenizer_config.json"):
        assert json.loads((made / name).read_text()) == json.loads((shipped / name).read_text())
    assert read_facts(made).keys() == read_facts(shipped).keys()
