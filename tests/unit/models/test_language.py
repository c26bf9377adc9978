"""Language models in a scenario: where weights come from, what learns, and what is refused."""

from pathlib import Path

import pytest
import torch
import transformers
from gists import says
from typer.testing import CliRunner

from simsplit.__main__ import app
from simsplit.errors import ScenarioError
from simsplit.models.language import CausalLM, SequenceClassifier
from simsplit.models.whole import Sizes, build_config
from simsplit.seeds import isolate

SMALL = Sizes(width=16, layers=4)


def causal(**fields):
    return CausalLM(sizes=SMALL, head=1, tail=1, **fields)


def same(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


@pytest.fixture
def folder(tmp_path):
    """A model of the library's, saved as one saves them."""
    with isolate(0, "saved"):
        model = transformers.AutoModelForCausalLM.from_config(build_config(SMALL))
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model", model


@pytest.mark.slow
def test_segments_of_a_folder_are_the_saved_models(folder):
    path, model = folder
    config = CausalLM(name=str(path), head=1, tail=2)
    assert config.compute_shapes((32,)) == ((32, 16), (32, 16))
    made = config.build((32,), 1, seed=0)
    ids = torch.arange(20).view(2, 10)
    with torch.no_grad():
        out = made.tail(made.trunk(made.head(ids)))
        assert torch.equal(out, model.eval()(ids).logits)
    other = config.build((32,), 1, seed=7)
    assert same(made.head, other.head), "pretrained weights know of no seed"


def test_random_segments_have_draws_of_their_own():
    one, other = causal().build((32,), 1, 0), causal().build((32,), 1, 0, ("client", 3))
    assert same(one.trunk, other.trunk)
    assert not same(one.head, other.head)
    assert not same(one.tail, other.tail)
    assert same(one.head, causal().segment("head", (32,), 1, 0))


def test_a_classifiers_last_layer_is_new_and_a_writers_is_the_models(folder):
    path, model = folder
    writer = CausalLM(name=str(path), head=1, tail=1).segment("tail", (32,), 5, 0)
    assert torch.equal(writer.reader.weight, model.lm_head.weight)
    classifier = SequenceClassifier(name=str(path), head=1, tail=1)
    one, two = (classifier.segment("tail", (32,), 5, seed) for seed in (0, 1))
    assert one.reader.weight.shape == (5, 16)
    assert not torch.equal(one.reader.weight, two.reader.weight)
    assert same(one.blocks, two.blocks)


def test_only_the_segments_that_are_named_learn():
    config = causal(learns=["tail"])
    made = config.build((32,), 1, 0)
    learning = [
        any(w.requires_grad for w in p.parameters()) for p in (made.head, made.trunk, made.tail)
    ]
    assert learning == [False, False, True]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_adapters_start_as_nothing_and_learn_alone(family):
    sizes = Sizes(family=family, width=16, layers=4)
    plain = CausalLM(sizes=sizes, head=1, tail=1).build((32,), 1, 0)
    lora = {"rank": 2}
    made = CausalLM(sizes=sizes, head=1, tail=1, lora=lora).build((32,), 1, 0)
    ids = torch.arange(20).view(2, 10)
    out = made.tail(made.trunk(made.head(ids)))
    with torch.no_grad():
        assert torch.equal(out, plain.tail(plain.trunk(plain.head(ids))))
    out.square().mean().backward()
    for segment in (made.head, made.trunk, made.tail):
        learning = {name for name, weight in segment.named_parameters() if weight.requires_grad}
        assert learning
        assert all("lora_" in name for name in learning)
        assert any(weight.grad is not None for weight in segment.parameters())


def test_adapters_of_a_classifier_leave_its_last_layer_to_learn():
    config = SequenceClassifier(sizes=SMALL, head=1, tail=1, lora={"targets": ["q_proj"]})
    tail = config.segment("tail", (32,), 3, 0)
    learning = [name for name, weight in tail.named_parameters() if weight.requires_grad]
    assert "reader.weight" in learning
    assert all("q_proj" in name for name in learning if name != "reader.weight")


@pytest.mark.parametrize(
    ("config", "shape", "gist"),
    [
        (causal(), (3, 32, 32), "model.kind: causal_lm ... images"),
        (
            causal(),
            (513,),
            "data.source.length: ... 512 ... 513",
        ),
        (
            CausalLM(sizes=SMALL, head=2, tail=2),
            (32,),
            "model.sizes.layers: ... head: 2, tail: 2 of 4",
        ),
        (CausalLM(name="/no/such/model"), (32,), "model.name: '/no/such/model'"),
        (
            causal(lora={"targets": ["q_prj"]}),
            (32,),
            "model.lora.targets: ... 'q_prj' ... 'q_proj' ... down_proj",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(config, shape, gist):
    with pytest.raises(ScenarioError) as caught:
        config.build(shape, 1, 0)
    assert says(str(caught.value), f"scenario.{gist}")


def test_bytes_are_read_back():
    reader = causal().make_reader()
    (tokens,) = reader.encode(["naïve ☃"])
    assert reader.decode([1, *tokens, 2, 0]) == "naïve ☃"
    assert max(tokens) < reader.size


def test_a_scenario_of_a_hub_model_is_read_without_a_network(monkeypatch):
    """Only a run fetches; a folder that does not exist is such a name, too."""

    def refuse_fetch(*args: object, **kwargs: object) -> None:
        raise AssertionError("asked the hub")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", refuse_fetch)
    folder = Path(__file__).parents[3] / "scenarios" / "papers" / "mixguard"
    for name, cells in (("sst2.yaml", 24), ("small/sst2.yaml", 18)):
        outcome = CliRunner().invoke(app, ["validate", str(folder / name)])
        assert f"{cells} cells" in outcome.output
    one = ["--set", "sweep=null", "--set", "method=[]", "--set", "attacks=[]"]
    outcome = CliRunner().invoke(app, ["validate", str(folder / "sst2.yaml"), *one])
    assert "fetched" in outcome.output
