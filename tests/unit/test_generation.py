"""A split model generates from prompts what the whole model would, token by token."""

import pytest
import torch
from builders import experiment, run_to_end
from pace import quick
from texts import text_scenario

from simsplit.evaluation.generation import Generator, split_prompts
from simsplit.results import Run

MODEL = {"kind": "causal_lm", "sizes": {"width": 16, "layers": 3}, "head": 1, "tail": 1}
GENERATES = {"kind": "generation", "prompt": "{sentence} is", "answer": " about a {topic}"}
GENERATION = ["loss", "exact_answers", "rouge_l", "meteor", "bleu"]


def make_scenario(path, **changes):
    source = {"task": GENERATES, "length": 48, **changes.pop("source", {})}
    return text_scenario(path, model=MODEL, data={"auxiliary": 0.3, "source": source}, **changes)


def by_hand(made, prompt, tokens, end):
    """Write one text, alone and unpadded, through the three segments."""
    client, text = made.parts.pool.clients[0].training.end, prompt.clone()
    for _ in range(tokens):
        with torch.no_grad():
            logits = client.tail(made.parts.server.end.trunk(client.head(text[None])))
        token = logits[0, -1].argmax()
        if token == end:
            break
        text = torch.cat([text, token[None]])
    return text[len(prompt) :]


@pytest.mark.slow
@pytest.mark.parametrize("padding", quick(["right", "left"], "left"))
def test_tokens_are_those_of_the_whole_model_whatever_the_prompts_lengths(padding, tmp_path):
    made = experiment(
        make_scenario(tmp_path, source={"padding": padding}, clients={"count": 1}), tmp_path / "run"
    )
    made.run(resume=False)
    evaluator = made.parts.evaluator
    generator = evaluator.generator
    assert isinstance(generator, Generator)
    chosen = evaluator.splits["test"].take(torch.arange(6))
    prompts, meant = split_prompts(generator.reader, chosen)
    assert len({len(prompt) for prompt in prompts}) > 1
    assert all(answer.startswith("about a ") for answer in meant)
    (client,) = evaluator.clients_to_score
    texts = generator.generate(client, prompts, 2)
    reader = generator.reader
    for prompt, text in zip(prompts, texts, strict=True):
        tokens = by_hand(made, prompt, generator.tokens, reader.end)
        assert text == reader.decode(tokens.tolist()).strip()


@pytest.mark.slow
def test_metrics_of_generated_texts_are_in_the_tables_and_see_a_model_learn(tmp_path):
    training = {"client": {"kind": "adam", "lr": 0.01}, "server": {"kind": "adam", "lr": 0.01}}
    scenario = make_scenario(
        tmp_path,
        schedule={"kind": "round_robin", "rounds": 25},
        clients={"count": 1},
        train=training,
        evaluate={"metrics": GENERATION, "max_new_tokens": 24, "every": 25},
    )
    rounds = Run.load(run_to_end(scenario, tmp_path / "run").path).rounds
    last = rounds.iloc[-1]
    assert last["test_rouge_l"] > 0.5
    assert last["test_bleu"] > 10
    assert last["test_exact_answers"] == 0.0  # there are no numbers


@pytest.mark.parametrize(
    "method",
    [
        pytest.param({"kind": "mixguard", "tokens": 4, "warm_up": 0}, marks=pytest.mark.slow),
        {"kind": "dp_forward", "sigma": 0.1},
        pytest.param({"kind": "snd", "heads": 2, "layers": 1}, marks=pytest.mark.slow),
    ],
    ids=lambda method: method["kind"],
)
def test_every_method_generates_through_the_cut(method, tmp_path):
    """A pass for each token that is generated, beside the batches that are scored."""
    packets = {}
    for metrics in (["loss"], ["loss", "rouge_l"]):
        scored = {"metrics": metrics, "max_new_tokens": 3, "generated_texts": 4, "every": 2}
        scenario = make_scenario(tmp_path, method=[method], evaluate=scored)
        made = Run.load(run_to_end(scenario, tmp_path / f"run{len(metrics)}").path)
        wire = made.wire[(made.wire["phase"] == "evaluate") & (made.wire["leg"] == "smashed")]
        packets[len(metrics)] = wire.groupby("round")["packets"].sum()
    assert (packets[2] - packets[1] == 3).all()
    assert made.rounds["test_rouge_l"].notna().any()
