"""A session writes what transformers' own `generate` writes on the whole model, pass by pass."""

import inspect
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from texts import text_scenario

from simsplit.assembly import Assembler
from simsplit.assembly.exchanges import build_writer
from simsplit.errors import ProtocolError, RunFailedError, ScenarioError, SimsplitError
from simsplit.evaluation.writing import (
    InSession,
    Sampling,
    WholeTexts,
    choose_tokens,
    draw_tokens,
    warp_scores,
)
from simsplit.legs import Leg
from simsplit.models.transformer import Cut, copy_segment
from simsplit.models.whole import Sizes, build_config
from simsplit.parties.calls import LoadShared, SharedState
from simsplit.parties.sessions import Session
from simsplit.seeds import isolate, rng_for

transformers = pytest.importorskip("transformers")
WIDTH, WORDS, POSITIONS = 16, 300, 40
SIZES = {"width": WIDTH, "layers": 4, "context": POSITIONS, "vocabulary": WORDS}
PROMPTS = [[5, 6, 7, 8, 9], [10, 11], [12, 13, 14, 15, 16, 17, 18, 19]]
FAMILIES = pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
SAMPLING = Sampling(temperature=1.3, top_p=0.8)


@lru_cache
def whole(family):
    config = build_config(Sizes(family=family, **SIZES))
    with isolate(0, "whole", family):
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        for weight in model.parameters():  # or all texts are one token, again and again
            torch.nn.init.normal_(weight, std=0.3)
    model.generation_config.pad_token_id = 0
    return model


class Cutting:
    """A writer through a cut, with a whole model's weights; `seen` is what has crossed."""

    def __init__(self, path, family="llama", *, head=1, tail=1, **changes):
        model = {"kind": "causal_lm", "sizes": {"family": family, **SIZES}}
        task = {"kind": "generation", "prompt": "{sentence} is", "answer": " {topic}"}
        changes = {"model": {**model, "head": head, "tail": tail}, **changes}
        source = {"task": task, "length": 32}
        given = text_scenario(path, data={"source": source, "auxiliary": 0.3}, **changes)
        assembler = Assembler(given, given.prepare_data(), torch.device("cpu"))
        self.parts, self.seen = assembler.assemble(), []
        self.writer = build_writer(given, self.parts.exchange)
        client, server = self.parts.pool.clients[0].training.end, self.parts.server.end
        owned = {"head": client.head, "trunk": server.trunk, "tail": client.tail or server.tail}
        for owner, segment in owned.items():
            theirs = whole(family)
            copy = copy_segment(theirs, owner, Cut(head, tail), theirs.get_output_embeddings())
            segment.load_state_dict(copy.state_dict())
        self.parts.wire.taps.append(self)

    def observe(self, packet):
        self.seen.append(packet)

    def write(self, prompts, tokens=6, **changes):
        writer = replace(self.writer, **changes)
        return writer.write(0, [torch.tensor(each) for each in prompts], tokens)

    @property
    def sizes(self):
        """Leg and bytes of all that has crossed."""
        return [(packet.leg, packet.nbytes) for packet in self.seen]


def generate(family, prompts, tokens=6, **options):
    """Return what transformers writes, up to the end token."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(each)) + each for each in prompts])
    mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in prompts])
    options = {"do_sample": False, "max_new_tokens": tokens} | options
    model = whole(family)
    with torch.no_grad():
        rows = model.generate(ids, attention_mask=mask, **options)[:, longest:].tolist()
    return [row[: row.index(2)] if 2 in row else row for row in rows]


class Drawn(transformers.LogitsProcessor):
    """Leaves the token that a text's own draws choose among the library's warped scores."""

    def __init__(self, draws):
        self.draws, self.number = draws, 0

    def __call__(self, ids, scores):
        tokens = draw_tokens(scores, self.draws[:, self.number])
        self.number += 1
        return torch.full_like(scores, -torch.inf).scatter(1, tokens[:, None], 0.0)


def warpers(sampling):
    from transformers import TemperatureLogitsWarper, TopPLogitsWarper

    return [TemperatureLogitsWarper(sampling.temperature), TopPLogitsWarper(sampling.top_p)]


@FAMILIES
@pytest.mark.parametrize("cut", [{"head": 1, "tail": 1}, {"head": 0, "tail": 3}])
def test_tokens_are_those_of_transformers_whatever_the_prompts_lengths(family, cut, tmp_path):
    cutting = Cutting(tmp_path, family, **cut)
    texts = cutting.write(PROMPTS)
    assert texts == generate(family, PROMPTS)
    assert len({token for text in texts for token in text}) > 2


@FAMILIES
def test_sampled_tokens_are_those_of_transformers_from_the_same_draws(family, tmp_path):
    cutting = Cutting(tmp_path, family)
    draws = replace(cutting.writer, sampling=SAMPLING)._draw(0, 3, 6, 0)
    texts = cutting.write(PROMPTS, sampling=SAMPLING)
    assert texts == generate(family, PROMPTS, logits_processor=[*warpers(SAMPLING), Drawn(draws)])
    assert texts != cutting.write(PROMPTS)
    assert texts == cutting.write(PROMPTS, sampling=SAMPLING)
    assert texts != cutting.write(PROMPTS, sampling=SAMPLING, seed=4)


def test_scores_are_warped_as_transformers_does():
    scores = 3 * torch.randn(5, 50, generator=rng_for(0, "scores"))
    for sampling in (SAMPLING, Sampling(top_p=1e-6), Sampling(temperature=0.1, top_p=0.9)):
        expected = scores
        for warper in warpers(sampling):
            expected = warper(None, expected)
        torch.testing.assert_close(warp_scores(scores, sampling), expected, rtol=0, atol=0)


def test_draws_follow_the_probabilities():
    scores = torch.tensor([0.5, 0.0, 0.3, 0.2]).log()
    draws = (torch.arange(1000) + 0.5) / 1000
    counts = draw_tokens(scores.expand(1000, -1), draws).bincount(minlength=4)
    assert counts.tolist() == [500, 0, 300, 200]


@FAMILIES
@pytest.mark.parametrize("head", [0, 2])
def test_scores_are_those_of_the_whole_model(family, head, tmp_path):
    cutting, model = Cutting(tmp_path, family, head=head), whole(family)
    texts = torch.randint(3, WORDS, (2, 9), generator=rng_for(0, "texts"))
    exchange = cutting.parts.exchange
    with exchange.open_session(0) as number, torch.no_grad():
        session = InSession(0, list(texts[:, :5]), 0, session=number)
        got = [exchange.predict(0, session.begin())]
        both = torch.tensor([True, True])
        got += [exchange.predict(0, session.go_on(texts[:, at], both)) for at in range(5, 9)]
        named = inspect.signature(model.forward).parameters
        kept = {"cache" if "cache" in named else "past_key_values": transformers.DynamicCache()}
        expected = [model(texts[:, :5], **kept).logits[:, -1]]
        for at in range(5, 9):
            expected.append(model(texts[:, at : at + 1], **kept).logits[:, -1])
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-7, atol=2e-7)


@pytest.mark.parametrize("sampling", [None, SAMPLING], ids=["greedy", "sampled"])
def test_texts_of_any_lengths_are_written_together_as_each_alone(sampling, tmp_path):
    """Greedily; draws are by a text's place, so sampled ones are the first's alone."""
    cutting = Cutting(tmp_path, "gpt2")
    together = cutting.write(PROMPTS, sampling=sampling)
    alone = [cutting.write([prompt], sampling=sampling)[0] for prompt in PROMPTS]
    assert together[0] == alone[0]
    assert (together == alone) is (sampling is None)


def test_bytes_of_a_pass_are_its_tokens_and_nothing_else(tmp_path):
    cutting = Cutting(tmp_path)
    cutting.write([[3, 4, 5], [6, 7, 8]], 3, end=-1)
    prompts, token = 2 * 3 * WIDTH * 4, 2 * 1 * WIDTH * 4
    legs = (Leg.SMASHED, Leg.FEATURES)
    assert cutting.sizes == [(leg, size) for size in (prompts, token, token) for leg in legs]
    assert [packet.position for packet in cutting.seen[::2]] == [0, 3, 4]
    assert len({packet.session for packet in cutting.seen}) == 1


def test_prompts_of_other_lengths_bring_their_mask_once(tmp_path):
    cutting = Cutting(tmp_path)
    cutting.write(PROMPTS, 2, end=-1)
    longest = 8
    up = [size for leg, size in cutting.sizes if leg is Leg.SMASHED]
    assert up == [3 * longest * (WIDTH * 4 + 1), 3 * WIDTH * 4]


def test_under_a_vanilla_cut_the_scores_of_one_token_come_back(tmp_path):
    cutting = Cutting(tmp_path, topology="vanilla")
    assert cutting.write(PROMPTS) == generate("llama", PROMPTS)
    assert {size for leg, size in cutting.sizes if leg is Leg.FEATURES} == {3 * WORDS * 4}


def test_a_text_that_has_ended_no_longer_crosses_and_the_others_go_on(tmp_path):
    cutting = Cutting(tmp_path)
    full = cutting.write(PROMPTS, end=-1)
    end = full[1][2]  # the second text's third token
    assert end not in full[0] + full[2]
    cutting.seen.clear()
    assert cutting.write(PROMPTS, end=end) == [full[0], full[1][:2], full[2]]
    up = [size for leg, size in cutting.sizes if leg is Leg.SMASHED]
    row = WIDTH * 4
    assert up[1:] == [3 * row, 3 * row, 2 * row + 2 * 8, 2 * row, 2 * row]


def test_a_text_ends_at_the_models_last_position_and_others_do_not(tmp_path):
    cutting = Cutting(tmp_path, "gpt2")
    long, short = list(range(3, 3 + POSITIONS - 2)), [5, 6]
    texts = cutting.write([long, short], 8, end=-1)
    assert [len(text) for text in texts] == [3, 8]
    assert texts == [cutting.write([each], 8, end=-1)[0] for each in (long, short)]


@pytest.mark.parametrize(
    ("method", "crosses"),
    [
        ([{"kind": "cast", "to": "bf16"}], "tokens"),
        ([{"kind": "noise", "sigma": 0.1}], "tokens"),
        ([{"kind": "dp_forward", "epsilon": 50, "per": "token"}], "tokens"),
        ([{"kind": "snd", "denoise": False}], "tokens"),
        ([{"kind": "mixguard", "tokens": 0}], "tokens"),
        ([{"kind": "mid", "inference": "sample"}], "tokens"),
        ([{"kind": "sparsify"}], "texts"),
        ([{"kind": "mixguard", "inference": "mixed", "tokens": 0}], "texts"),
        ([{"kind": "snd", "heads": 2, "layers": 1}], "texts"),
        ([{"kind": "dp_forward"}], "texts"),
        ([{"kind": "cast"}, {"kind": "cover"}], "texts"),
    ],
    ids=lambda each: each if isinstance(each, str) else each[-1]["kind"],
)
def test_methods_that_cannot_treat_tokens_one_by_one_are_sent_whole_texts(
    method, crosses, tmp_path
):
    cutting = Cutting(tmp_path, method=method)
    cutting.write([[3, 4, 5], [6, 7, 8]], 3, end=-1)
    assert cutting.seen[-1].position == (4 if crosses == "tokens" else 0)
    if crosses == "texts":
        index = len(method) - 1
        why = rf"evaluate\.sessions: .*true.* method\.{index} \({method[-1]['kind']}\)"
        with pytest.raises(ScenarioError, match=why):
            Cutting(tmp_path / "asked", method=method, evaluate={"sessions": True})


def test_a_tokens_noise_is_drawn_once(tmp_path):
    """With whole texts the server could average it away."""
    cutting = Cutting(tmp_path, method=[{"kind": "noise"}])
    cutting.write([[3, 4, 5]], 3, end=-1)
    sent = [packet.tensors[0] for packet in cutting.seen if packet.leg is Leg.SMASHED]
    assert [tensor.shape[1] for tensor in sent] == [3, 1, 1]
    cutting.seen.clear()
    cutting.write([[3, 4, 5]], 3, end=-1, in_sessions=lambda _: False)
    sent = [packet.tensors[0] for packet in cutting.seen if packet.leg is Leg.SMASHED]
    assert not torch.equal(sent[0], sent[1][:, :3])


def test_whole_texts_say_what_sessions_say(tmp_path):
    cutting = Cutting(tmp_path)
    texts = cutting.write(PROMPTS)
    assert texts == cutting.write(PROMPTS, in_sessions=lambda _: False)
    cutting = Cutting(tmp_path / "asked", evaluate={"sessions": False})
    cutting.write(PROMPTS)
    assert {packet.position for packet in cutting.seen} == {0}


PUBLIC = {"kind": "causal_lm", "sizes": {"family": "llama", **SIZES, "public": True}}
PASSING = {
    "mid": {},
    "santext": {"epsilon": 0.0, "sensitive": 0.9},
    "custext": {"epsilon": 1.0, "group": 20},
    "rantext": {"epsilon": 1.0},
    "admi": {"heads": 2},
    "sparsify": {"sparsity": 0.7, "per": "token"},
}
"""Methods that do the same to a token in every pass."""


@pytest.mark.parametrize("kind", PASSING)
def test_what_draws_nothing_anew_gives_a_session_the_scores_of_whole_texts(kind, tmp_path):
    method = [{"kind": kind, **PASSING[kind]}]
    changes = {"model": {**PUBLIC, "head": 1, "tail": 1}} if kind == "admi" else {}
    cutting = Cutting(tmp_path, method=method, **changes)
    stack = cutting.parts.pool.clients[0].training.end.stack
    for parameter in stack.modules.parameters():  # or the adapter adds nothing, and all is alike
        torch.nn.init.normal_(parameter, std=0.3, generator=rng_for(0, "other weights"))
    tokens = torch.randint(3, WORDS, (3, 5), generator=rng_for(0, "tokens"))
    scores = []
    exchange, prompts = cutting.parts.exchange, [torch.tensor(each) for each in PROMPTS]
    for sort in (InSession, WholeTexts):
        with exchange.open_session(0) as number:
            own = {"session": number} if sort is InSession else {}
            passes = sort(0, prompts, 0, **own)
            got, left = [exchange.predict(0, passes.begin())], torch.ones(3, dtype=torch.bool)
            for place in range(4):
                if place == 2:  # one of the texts has ended
                    left = torch.tensor([True, False, True])
                    tokens = tokens[left]
                got.append(exchange.predict(0, passes.go_on(tokens[:, place], left)))
                left = left[left]
            scores.append(got)
        tokens = torch.randint(3, WORDS, (3, 5), generator=rng_for(0, "tokens"))
    for mine, theirs in zip(*scores, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("reading", ["without_trunk", ""])
def test_a_control_without_trunk_writes_too(reading, tmp_path):
    cutting = Cutting(tmp_path)
    with cutting.parts.exchange.use_reading(reading):
        texts = cutting.write(PROMPTS)
        assert texts == cutting.write(PROMPTS, in_sessions=lambda _: False)
    assert (texts == generate("llama", PROMPTS)) is (not reading)


@pytest.mark.parametrize(
    ("prompts", "why"),
    [
        ([], "no prompt"),
        ([[3], []], "prompt 1 is empty"),
        ([[3] * 41], r"prompt 0.*41.*40"),
    ],
)
def test_prompts_that_cannot_be_gone_on_with_are_refused(prompts, why, tmp_path):
    cutting = Cutting(tmp_path)
    with pytest.raises(SimsplitError, match=why):
        cutting.write(prompts)
    assert not cutting.seen


@pytest.mark.parametrize("sampling", [None, SAMPLING], ids=["greedy", "sampled"])
def test_scores_that_are_no_numbers_end_the_run(sampling):
    scores = torch.tensor([[0.0, 1.0], [0.0, torch.nan]])
    with pytest.raises(RunFailedError, match=r"no numbers.*diverged"):
        choose_tokens(scores, sampling, torch.zeros(2))


def test_a_failure_leaves_no_session_open(tmp_path):
    cutting = Cutting(tmp_path)
    before = cutting.write(PROMPTS)
    tail = cutting.parts.pool.clients[0].training.end.tail
    weight = tail.reader.weight.data.clone()
    tail.reader.weight.data.fill_(torch.nan)
    with pytest.raises(RunFailedError, match="no numbers"):
        cutting.write(PROMPTS)
    tail.reader.weight.data.copy_(weight)
    assert not cutting.parts.server.end.sessions._open
    assert cutting.write(PROMPTS) == before


@contextmanager
def begin_session(path):
    """Begin a session of two prompts of two tokens, which it has sent."""
    exchange = Cutting(path).parts.exchange
    with exchange.open_session(0) as number:
        prompts = [torch.tensor([3, 4]), torch.tensor([5, 6])]
        session = InSession(0, prompts, 0, session=number)
        exchange.predict(0, session.begin())
        yield exchange, session


def test_a_session_does_not_go_on_after_its_end(tmp_path):
    token, both = torch.tensor([3, 4]), torch.tensor([True, True])
    with begin_session(tmp_path) as (exchange, session):
        pass
    with pytest.raises(ProtocolError, match=r"session 1 of client 0 .*over"):
        exchange.predict(0, session.go_on(token, both))


def test_a_session_goes_on_where_it_is_and_with_the_texts_it_has(tmp_path):
    token, both = torch.tensor([3, 4]), torch.tensor([True, True])
    with begin_session(tmp_path) as (exchange, session):
        session.position = 7
        with pytest.raises(ProtocolError, match=r"token 2.*7"):
            exchange.predict(0, session.go_on(token, both))
        session.position = 2
        with pytest.raises(ProtocolError, match=r"2 texts.*1"):
            exchange.predict(0, session.go_on(token[:1], both))


def test_other_weights_have_no_use_for_a_sessions_caches(tmp_path):
    cutting = Cutting(tmp_path)
    exchange = cutting.parts.exchange
    with exchange.open_session(0) as number:
        session = InSession(0, [torch.tensor([3, 4])], 0, session=number)
        exchange.predict(0, session.begin())
        exchange.step(0)
        with pytest.raises(ProtocolError, match="is over"):
            exchange.predict(0, session.go_on(torch.tensor([3]), torch.tensor([True])))


def test_weights_that_were_handed_over_have_no_use_for_them_either(tmp_path):
    exchange = Cutting(tmp_path).parts.exchange
    with exchange.open_session(0) as number:
        session = InSession(0, [torch.tensor([3, 4])], 0, session=number)
        exchange.predict(0, session.begin())
        exchange.pool.ask(0, LoadShared(exchange.pool.ask(1, SharedState())))
        with pytest.raises(ProtocolError, match="is over"):
            exchange.predict(0, session.go_on(torch.tensor([3]), torch.tensor([True])))


def test_a_cache_of_another_model_is_refused():
    session = Session()
    session.extend(torch.zeros(2, 3, WIDTH), ())
    with pytest.raises(ProtocolError, match=r"\(16,\).*\(8,\)"):
        session.extend(torch.zeros(2, 1, 8), ())


def test_sessions_are_for_models_that_write(tmp_path):
    with pytest.raises(ScenarioError, match="sequence_classifier"):
        text_scenario(tmp_path, evaluate={"sessions": True})
