"""What attackers of texts know and do not, and how their inverters learn."""

import pytest
import torch
from builders import experiment
from pace import quick
from texts import text_scenario
from torch.nn.functional import cross_entropy

from simsplit.attacks.first_readings import DsiConfig
from simsplit.attacks.inverters import NOTHING, UNREADABLE, RecurrentInverter
from simsplit.attacks.sip import SipConfig
from simsplit.parties.learner import Learner
from simsplit.parties.train_config import SgdConfig
from simsplit.seeds import rng_for

SIZES = {"width": 16, "layers": 3}
WORDS = {"kind": "causal_lm", "sizes": {**SIZES, "public": True}, "head": 1, "tail": 1}


def build_attack(path, config, method=(), **model):
    """Build a run's parts, and an attack on the untrained run."""
    given = text_scenario(
        path,
        data={"auxiliary": 0.5},
        model={**WORDS, **model},
        clients={"count": 1},
        attacks=[{"kind": "sip"}],
        method=list(method),
    )
    made = experiment(given, path / "run")
    known = made.live.attacking._make_knowledge(given.attacks[0])
    return made, config.build(known)


def test_a_random_head_is_the_attackers_only_if_it_is_public(tmp_path):
    for public in (True, False):
        made, sip = build_attack(tmp_path, SipConfig(), sizes={**SIZES, "public": public})
        own = made.scenario.model.segment("head", (32,), 2, made.scenario.seed)
        same = all(map(torch.equal, own.state_dict().values(), sip.head.state_dict().values()))
        assert same == public
        assert sip.head.tokens.weight.std().item() == pytest.approx(0.02, rel=0.2)


def test_clients_mix_with_texts_that_attackers_have_not(tmp_path):
    mixing = [{"kind": "mixguard", "tokens": 0}]
    data = build_attack(tmp_path, SipConfig(), mixing)[0].data
    plain = build_attack(tmp_path, SipConfig())[0].data
    assert data.support is not None
    assert len(data.auxiliary) + len(data.support) == len(plain.auxiliary)
    both = torch.cat([data.auxiliary.inputs, data.support.inputs])
    assert sorted(both.tolist()) == sorted(plain.auxiliary.inputs.tolist())
    assert abs(len(data.auxiliary) - len(data.support)) <= 1


def test_twenty_epochs_of_six_are_twenty_times_all_public_texts(tmp_path):
    _, sip = build_attack(tmp_path, SipConfig(batch_size=6))
    assert sip.steps == 20 * (30 // 6)
    assert SipConfig().weight_decay == 1e-5
    assert build_attack(tmp_path, SipConfig(inverter="gaussian", batch_size=6))[1].steps == 5
    assert build_attack(tmp_path, SipConfig(iterations=7))[1].steps == 7


def test_an_aware_inverter_learns_from_noisy_texts_and_another_from_clean_ones(tmp_path):
    noise = [{"kind": "dp_forward", "sigma": 2.0}]
    clean = build_attack(tmp_path, SipConfig(aware=False), noise)[1]
    aware = build_attack(tmp_path, SipConfig(), noise)[1]
    batch = clean.feed.batch(0)
    plain, noisy = clean.compute_hidden(batch, 0), aware.compute_hidden(batch, 0)
    assert torch.equal(plain, clean.head(batch.inputs))
    added = (noisy - plain).square().mean().sqrt() / plain.square().mean().sqrt()
    assert 1.5 < added < 2.5
    assert not torch.equal(aware.compute_hidden(batch, 1), noisy), "fresh noise in each step"


@pytest.mark.parametrize("inverter", quick(["recurrent", "gaussian"], "gaussian"))
def test_messages_are_read_alike_whatever_their_size_and_sign(inverter, tmp_path):
    _, sip = build_attack(
        tmp_path, SipConfig(inverter=inverter, iterations=60, lr=0.02), [{"kind": "naive_mix"}]
    )
    for number in range(sip.steps):
        sip.learn(number)
    batch = sip.feed.batch(99)
    plain = sip.head(batch.inputs).detach()[None]
    as_is, turned = sip.read(plain), sip.read(-30 * plain)
    assert (as_is.tokens == batch.inputs)[batch.inputs != 0].float().mean() > 0.8
    assert torch.equal(as_is.tokens, turned.tokens)
    torch.testing.assert_close(as_is.sureness, turned.sureness)


@pytest.mark.slow
def test_training_stops_when_held_out_texts_are_read_no_better_and_keeps_the_best(tmp_path):
    config = SipConfig(patience=2, epochs=40, batch_size=6, lr=0.05)
    _, sip = build_attack(tmp_path, config)
    reached = []
    for number in range(sip.steps):
        sip.learn(number)
        if (number + 1) % sip.feed.steps_per_epoch == 0:
            reached.append(float(sip.best.accuracy))
    assert reached[-1] == reached[-3] == max(reached)
    assert sip._accuracy() == pytest.approx(max(reached))
    before = {name: weight.clone() for name, weight in sip.inverter.state_dict().items()}
    sip.learn(0)
    assert all(torch.equal(before[name], w) for name, w in sip.inverter.state_dict().items())
    held, learned = set(sip.held.tolist()), set(sip.feed.part.tolist())
    assert not held & learned
    assert len(held) == 3


def test_padding_is_no_part_of_what_the_recurrent_inverter_learns():
    """Its step is that of scores at every place with padding's left out of the loss."""
    draws = rng_for(0, "texts")
    hidden = torch.randn(3, 7, 8, generator=draws)
    tokens = torch.randint(11, (3, 7), generator=draws)
    tokens[torch.arange(7) >= torch.tensor([2, 7, 4])[:, None]] = NOTHING
    nets = [RecurrentInverter(8, 11, SipConfig(hidden=6, dropout=0.0)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    learners = [Learner({"inverter": net}, SgdConfig(lr=1.0)) for net in nets]
    nets[0].learn(hidden, tokens, learners[0])
    scores = nets[1](hidden).flatten(0, 1)
    cross_entropy(scores, tokens.flatten(), ignore_index=NOTHING).backward()
    learners[1].step()
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_an_inverter_of_seen_tokens_learns_and_reads_as_one_of_a_vocabulary_of_them_alone():
    """Scores of seen tokens are those of a small vocabulary; all others are unreadable."""
    draws, seen = rng_for(0, "texts"), torch.tensor([2, 3, 7, 10])
    hidden = torch.randn(3, 7, 8, generator=draws)
    places = torch.randint(4, (3, 7), generator=draws)
    config = SipConfig(hidden=6, dropout=0.0)
    small, some = RecurrentInverter(8, 4, config), RecurrentInverter(8, 11, config, seen)
    some.load_state_dict(small.state_dict())
    for net, tokens in ((small, places), (some, seen[places])):
        net.learn(hidden, tokens, Learner({"inverter": net}, SgdConfig(lr=1.0)))
    for one, other in zip(small.parameters(), some.parameters(), strict=True):
        assert torch.equal(one, other)
    scores, of_small = some(hidden), small(hidden)
    assert torch.equal(scores[..., seen], of_small)
    others = [token for token in range(11) if token not in seen.tolist()]
    assert (scores[..., others] == UNREADABLE).all()
    features = some.features(hidden)
    wanted = torch.tensor([7, 5, 2])
    assert torch.allclose(some.scores(features, wanted), scores[..., wanted])
    assert torch.allclose(some.sure(features, scores), small.sure(features, of_small))


def test_the_tokens_of_public_texts_are_the_seen_ones(tmp_path):
    made, sip = build_attack(tmp_path, SipConfig(words="seen"))
    public = set(made.data.auxiliary.inputs.flatten().tolist())
    assert sip.inverter.words.out_features == len(public)
    assert set(sip.inverter.places.gt(NOTHING).nonzero()[:, 0].tolist()) == public


def test_a_session_attack_has_each_public_text_pass_the_head_once(tmp_path):
    sip = build_attack(tmp_path, DsiConfig(samples=9, batch_size=4))[1].opening.sip
    passes = []
    sip.head.register_forward_hook(lambda *_: passes.append(1))
    for number in range(5):
        batch = sip.feed.batch(number)
        kept = sip.compute_hidden(batch, number)
        assert len(passes) == 1
        torch.testing.assert_close(kept, sip.head.blocks(sip.head.tokens(batch.inputs)))
