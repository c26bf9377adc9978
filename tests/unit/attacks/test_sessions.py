"""Attacks on sessions: what the server has of them, and what is read of it."""

import sys

import pytest
import torch
from builders import experiment, run_to_end
from pace import quick
from parity.test_recovery import list_reached
from texts import text_scenario
from unit.test_learned_metrics import folder_of

from simsplit.attacking.finished import attack
from simsplit.attacking.session_judge import FLOORS, KNOWN_ROUND, write_after, write_sessions
from simsplit.attacks import ATTACKS
from simsplit.attacks.session_records import build_record
from simsplit.attacks.vmi import VmiConfig
from simsplit.errors import ProtocolError, ScenarioError, SimsplitError
from simsplit.evaluation.writing import Sampling, Writer
from simsplit.legs import Leg
from simsplit.metrics.learned import BertScore
from simsplit.results import Run, recovered_kinds
from simsplit.results.leak_table import WRITTEN
from simsplit.results.mean_leaks import average_by_attack, find_highest
from simsplit.results.recovered_files import load_sessions

GENERATES = {"kind": "generation", "prompt": "{sentence} is", "answer": " {topic}"}
SIZES = {"width": 32, "layers": 3, "public": True}
GAUSSIAN = {"inverter": "gaussian", "batch_size": 10}
QUICK = {"step_size": 0.01, "stop_after": 0}
SEED = 26
"""Of draws in which a text ends before the others, as the tests assert."""
DEFENCE = recovered_kinds.KINDS["sessions"].defence
KINDS = {
    "mc": {},
    "mc_trained": {"epochs": 2},
    "session_sip": GAUSSIAN,
    "dsi": GAUSSIAN,
    "vmi": {"steps": 120, **QUICK},
    "rmi": {"steps": 30, "step_size": 0.05},
    "pmi": {"patch": 8, "patch_steps": 80, "joint_steps": 10, **QUICK},
    "pidi": {"patch": 8, "patch_steps": 20, "joint_steps": 5, **GAUSSIAN, **QUICK},
    "session_matching": {"candidates": 16, "batch_size": 10},
    "known_pairs": {"sessions": 20},
}


def make_scenario(path, *attacks, **changes):
    """Build a scenario of zero rounds with a random model that everyone knows."""
    usual = {
        "data": {"auxiliary": 0.5, "source": {"task": GENERATES, "length": 40}},
        "model": {"kind": "causal_lm", "sizes": SIZES, "head": 1, "tail": 1},
        "clients": {"count": 1},
        "schedule": {"kind": "round_robin", "rounds": 0},
        "attacks": list(attacks) or [{"kind": "mc"}],
        "targets": {"split": "test", "count": 3, "tokens": 6},
    }
    changed = {
        n: {**usual.get(n, {}), **c} if isinstance(c, dict) else c for n, c in changes.items()
    }
    return text_scenario(path, **{**usual, **changed})


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A run's parts before anything, and its sessions."""
    path = tmp_path_factory.mktemp("live")
    made = experiment(
        make_scenario(path, evaluate={"sampling": {"temperature": 3.0}}), path / "run"
    )
    return made, write_sessions(made.scenario, made.parts, made.data, 0)


def test_the_record_is_what_the_head_and_the_trunk_made_of_each_text(live):
    made, message = live
    record = build_record(
        made.live.attacking._make_knowledge(made.scenario.attacks[0]), message.packets
    )
    client, server = made.parts.pool.clients[0].training.end, made.parts.server.end
    assert len({len(prompt) for prompt in message.prompts}) > 1, "or padding is not tested"
    assert record.prompts.tolist() == [len(prompt) for prompt in message.prompts]
    for row, (prompt, response) in enumerate(zip(message.prompts, message.responses, strict=True)):
        text = torch.cat([prompt, response])
        assert record.lengths[row] == len(text)
        assert record.response_places[row].nonzero()[:, 0].tolist() == [
            *range(len(prompt), len(text))
        ]
        with torch.no_grad():
            sent = client.head(text[None])
            features = server.trunk(sent)
        for seen, true in ((record.sent, sent), (record.features, features)):
            torch.testing.assert_close(seen[row, : len(text)], true[0], rtol=1e-5, atol=1e-6)


def test_texts_that_end_are_recorded_to_their_end(tmp_path):
    """Rows drop out of the packets as they end; a row's tokens stay its own."""
    made = experiment(make_scenario(tmp_path, targets={"count": 5, "tokens": 12}), tmp_path / "run")
    writer = made.parts.evaluator.generator.writer
    object.__setattr__(writer, "sampling", Sampling(temperature=50.0))
    object.__setattr__(writer, "end", 40)
    object.__setattr__(writer, "seed", SEED)
    sessions = write_sessions(made.scenario, made.parts, made.data, 0)
    record = build_record(
        made.live.attacking._make_knowledge(made.scenario.attacks[0]), sessions.packets
    )
    lengths = [len(p) + len(r) for p, r in zip(sessions.prompts, sessions.responses, strict=True)]
    assert record.lengths.tolist() == lengths
    assert len(set(map(len, sessions.responses))) > 1
    head = made.parts.pool.clients[0].training.end.head
    for row, (prompt, response) in enumerate(
        zip(sessions.prompts, sessions.responses, strict=True)
    ):
        with torch.no_grad():
            sent = head(torch.cat([prompt, response])[None])[0]
        torch.testing.assert_close(record.sent[row, : len(sent)], sent, rtol=1e-5, atol=1e-6)


def test_of_whole_texts_in_every_pass_the_last_is_the_record(tmp_path):
    """It has the same tokens as a session, and so the same numbers where nothing is drawn."""
    records, texts = [], []
    for sessions in (None, False):
        scenario = make_scenario(
            tmp_path, evaluate={"sessions": sessions}, targets={"count": 5, "tokens": 12}
        )
        made = experiment(scenario, tmp_path / str(sessions))
        writer = made.parts.evaluator.generator.writer
        object.__setattr__(writer, "sampling", Sampling(temperature=50.0))
        object.__setattr__(writer, "end", 40)
        object.__setattr__(writer, "seed", SEED)
        written_sessions = write_sessions(made.scenario, made.parts, made.data, 0)
        records.append(
            written_sessions.record(made.live.attacking._make_knowledge(made.scenario.attacks[0]))
        )
        texts.append([each.tolist() for each in written_sessions.responses])
    assert texts[0] == texts[1]
    assert len(set(map(len, texts[0]))) > 1
    for name in ("sent", "features", "lengths", "prompts"):
        one, other = (getattr(record, name) for record in records)
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", quick(["sparsify", "santext", "mid"], "santext"))
def test_defences_that_need_whole_texts_are_judged_too(kind, tmp_path):
    attacks = [{"kind": "mc"}, {"kind": "session_sip", **GAUSSIAN}]
    run = Run.load(
        run_to_end(make_scenario(tmp_path, *attacks, method=[kind]), tmp_path / "run").path
    )
    assert set(run.sessions["attack"]) >= {"mc", "session_sip"}


@pytest.mark.parametrize("method", quick(["none", "mid", "admi", "sparsify", "dualguard"], "mid"))
def test_in_half_precision_attacks_read_what_methods_make(method, tmp_path):
    """A method's own networks send bf16, which attackers' networks do not compute in."""
    few = {"steps": 2, "patch_steps": 2, "joint_steps": 2}
    attacks = [
        {"kind": kind, **fields, **{name: count for name, count in few.items() if name in fields}}
        for kind, fields in KINDS.items()
    ]
    methods = [] if method == "none" else [{"kind": method}]
    half = make_scenario(tmp_path, *attacks, method=methods, train={"precision": "bf16"})
    run = Run.load(run_to_end(half, tmp_path / "run").path)
    assert set(run.sessions["attack"]) >= KINDS.keys()


def test_packets_that_are_no_whole_sessions_are_refused(live):
    made, message = live
    known = made.live.attacking._make_knowledge(made.scenario.attacks[0])
    for packets in ([], message.packets[2:], message.packets[:-1]):
        with pytest.raises(ProtocolError, match="whole sessions"):
            build_record(known, packets)


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """All attacks on one run of zero rounds."""
    path = tmp_path_factory.mktemp("judged")
    attacks = [{"kind": kind, **fields} for kind, fields in KINDS.items()]
    made = run_to_end(make_scenario(path, *attacks), path / "run")
    return Run.load(made.path)


def means(run):
    return run.sessions.groupby(["attack", "view"])[["ap", "token_accuracy"]].mean()


def test_every_attack_on_sessions_is_judged_here():
    assert KINDS.keys() == {k for k, each in ATTACKS.items() if each.recovers == "sessions"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vmi", "pmi", "pidi", "session_matching"])
def test_of_a_shallow_head_both_ends_are_read_exactly(kind, judged):
    made = means(judged)
    for side in ("prompt", "response"):
        assert made.loc[(kind, side), "token_accuracy"] == 1
        assert made.loc[(kind, side), "ap"] == pytest.approx(1)


@pytest.mark.parametrize("kind", ["mc", "dsi"])
def test_the_public_tail_reads_what_was_written_greedily(kind, judged):
    made = means(judged)
    assert made.loc[(kind, "response"), "token_accuracy"] == 1
    assert made.loc[("mc", "prompt"), "token_accuracy"] < 0.5


def test_known_sessions_read_both_ends_of_a_head_that_nobody_knows(judged):
    made = means(judged)
    for side in ("prompt", "response"):
        assert made.loc[("known_pairs", side), "token_accuracy"] > 0.9


def test_a_ceiling_is_not_the_strongest_attack(tmp_path):
    """And so not what defences are ranked by."""
    weak = {"kind": "vmi", "steps": 1}
    attacks = [weak, {"kind": "known_pairs", "name": "known_pairs_few", "sessions": 20}]
    run = Run.load(run_to_end(make_scenario(tmp_path, *attacks), tmp_path / "run").path)
    last = average_by_attack(run.leaks, "sessions")
    assert last.loc["known_pairs_few", "ap_both"] > last.loc["vmi", "ap_both"] + 0.3
    assert run.summary["sessions"]["attack"] == "vmi"
    assert find_highest(last, DEFENCE) == last.loc["vmi", "ap_both"]
    assert find_highest(last, DEFENCE, 0.5) == last.loc["vmi", "ap_both"]
    with pytest.raises(ScenarioError, match="known_pairs") as error:
        make_scenario(tmp_path, {"kind": "known_pairs", "name": "best"})
    assert error.value.field.startswith("attacks.0")


FAST = {"kind": "mc_trained", "epochs": 40, "lr": 0.003}
NOISED = {"kind": "noise", "sigma": 30.0, "unit": "batch_rms"}


STRANGER = {"model": {"kind": "causal_lm", "sizes": {"width": 32, "layers": 3, "public": False}}}
"""A model whose weights nobody outside knows."""


@pytest.mark.parametrize(
    ("kind", "hiding"), [("mc_trained", STRANGER), ("known_pairs", {"method": [NOISED]})]
)
def test_what_is_hidden_is_not_read(kind, hiding, tmp_path):
    made = make_scenario(tmp_path, {"kind": kind, **KINDS[kind]}, **hiding)
    table = average_by_attack(Run.load(run_to_end(made, tmp_path / "run").path).leaks, "sessions")
    assert table.loc[kind, "token_accuracy_prompt"] < 0.35
    assert table.loc[kind, "token_accuracy_response"] < 0.35
    assert table.loc[kind, "ap_both"] < table.loc[list(FLOORS), "ap_both"].max() + 0.15


def test_a_known_session_in_which_nothing_is_written_counts_too(tmp_path, monkeypatch):
    """A model may end a text at once; its tokens are none, and no numbers of another type."""
    original = Writer.write

    def end_at_once(writer, *given):
        first, *others = original(writer, *given)
        return [first[:0], *others] if others else [first]

    monkeypatch.setattr(Writer, "write", end_at_once)
    made = make_scenario(tmp_path, {"kind": "known_pairs", **KINDS["known_pairs"]})
    table = average_by_attack(Run.load(run_to_end(made, tmp_path / "run").path).leaks, "sessions")
    assert table.loc["known_pairs", "token_accuracy_prompt"] > 0.5


def test_known_sessions_have_noise_of_their_own(tmp_path):
    """The targets' draws would tell the targets' noise."""
    noisy = make_scenario(tmp_path, method=[{"kind": "noise", "sigma": 1.0}])
    made = experiment(noisy, tmp_path / "run")
    known = made.live.attacking._make_knowledge(made.scenario.attacks[0])
    samples = made.data.test.take(torch.arange(3))
    one, two = (
        build_record(known, write_after(noisy, made.parts, samples, number).packets)
        for number in (0, KNOWN_ROUND)
    )
    places = slice(int(one.prompts.min()))
    assert not torch.allclose(one.sent[:, places], two.sent[:, places])


def test_trained_copies_follow_ends_that_have_left_the_pretrained_ones(tmp_path):
    """The tail of every client is another one: the copies learn it through the tuned trunk."""
    made = experiment(make_scenario(tmp_path, FAST), tmp_path / "run")
    attack = made.live.attacking.attacks["mc_trained"]
    trunk = {name: w.clone() for name, w in attack.known.trunk.state_dict().items()}
    losses = []
    feed, opening = attack.opening.feed, attack.opening
    before = opening.compute_loss(feed.batch(0)).item()
    for _ in opening.learn(0):
        losses.append(opening.iteration)
    assert opening.compute_loss(feed.batch(0)).item() < before / 2
    assert losses == [*range(1, opening.steps + 1)]
    assert all(map(torch.equal, trunk.values(), attack.known.trunk.state_dict().values()))
    assert not any(w.grad is not None for w in attack.known.trunk.parameters())
    public = made.live.attacking._pretrained.segment("tail")
    assert opening.tail is not public
    assert not torch.equal(*(next(each.parameters()) for each in (opening.tail, public)))


def test_each_end_of_dsi_is_that_of_its_own_attack(judged):
    texts = load_sessions(judged.path).set_index(["attack", "session"])
    for session in range(3):
        assert (
            texts.loc[("dsi", session), "prompt"] == texts.loc[("session_sip", session), "prompt"]
        )
        assert texts.loc[("dsi", session), "response"] == texts.loc[("mc", session), "response"]


def test_floors_and_the_utility_stand_beside(judged):
    table = judged.sessions
    assert {*FLOORS, WRITTEN} <= set(table["attack"])
    both = table[table["view"] == "both"].set_index(["attack", "target"])["ap"]
    sides = table.set_index(["attack", "target", "view"])["ap"]
    for at in both.index:
        of_ends = (sides[(*at, "prompt")], sides[(*at, "response")])
        assert both[at] == pytest.approx(sum(of_ends) / 2)
    document = judged.summary["sessions"]
    assert document["ap_prompt"] == pytest.approx(1)
    assert document["floor"] < 0.3


def test_figures_by_networks_stand_beside_where_weights_are_named(tmp_path):
    folder = folder_of(tmp_path / "bert", 2)
    made = make_scenario(tmp_path, targets={"bert_score": str(folder)})
    table = Run.load(run_to_end(made, tmp_path / "run").path).sessions
    assert "bleurt" not in table
    scored = table.dropna(subset=["bert_score"])
    assert set(scored["view"]) == {"prompt", "response"}
    assert {"mc", WRITTEN, *FLOORS} == set(scored["attack"])
    texts = load_sessions(tmp_path / "run").query("attack == 'mc'").sort_values("session")
    own = scored.query("attack == 'mc' and view == 'response'").sort_values("target")
    score = BertScore(folder, "")
    wanted = score(list(texts["response"]), list(texts["private_response"]))
    assert own["bert_score"].tolist() == pytest.approx(wanted, abs=1e-5)


def test_the_weight_of_the_prompt_is_a_field(tmp_path):
    made = run_to_end(make_scenario(tmp_path, targets={"alpha": 0.25}), tmp_path / "run")
    table = Run.load(made.path).sessions.set_index(["attack", "target", "view"])["ap"]
    of_mc = table["mc"]
    expected = 0.25 * of_mc[0, "prompt"] + 0.75 * of_mc[0, "response"]
    assert of_mc[0, "both"] == pytest.approx(expected)


def test_so_many_together_read_the_same(tmp_path):
    fields = {"kind": "vmi", "steps": 12, "step_size": 0.01, "stop_after": 3}
    both = [fields, {**fields, "name": "apart", "together": 1}]
    made = Run.load(run_to_end(make_scenario(tmp_path, *both), tmp_path / "run").path)
    texts = load_sessions(made.path)
    sides = [texts[texts["attack"] == name][["prompt", "response"]] for name in ("vmi", "apart")]
    assert sides[0].values.tolist() == sides[1].values.tolist()


@pytest.mark.slow
def test_what_saves_time_changes_hardly_a_reading(tmp_path):
    """bf16, groups of sessions and scores of seen tokens: nine tokens in ten are read alike."""
    plain = {"kind": "pidi", "patch": 8, "patch_steps": 20, "joint_steps": 5, "lr": 0.02, **QUICK}
    fast = {"name": "fast", "words": "seen", "together": 2, "precision": "bf16"}
    made = Run.load(
        run_to_end(make_scenario(tmp_path, plain, {**plain, **fast}), tmp_path / "run").path
    )
    table = average_by_attack(made.leaks, "sessions")["token_accuracy_prompt"]
    assert table["pidi"] > 0.5
    assert table["fast"] == pytest.approx(table["pidi"], abs=0.1)


def test_after_training_the_attackers_have_the_weights_from_before(tmp_path):
    """And by no way the clients' own, or any text of theirs."""
    attacks = [{"kind": kind, **KINDS[kind]} for kind in ("mc", "vmi", "pidi")]
    schedule = {"kind": "round_robin", "rounds": 1}
    made = run_to_end(make_scenario(tmp_path, *attacks, schedule=schedule), tmp_path / "run")
    client, server = made.parts.pool.clients[0].training.end, made.parts.server.end
    attacking = made.live.attacking
    for title, owner in (("mc", "tail"), ("vmi", "head")):
        made_by = attacking.attacks[title]
        theirs = made_by.opening.tail if owner == "tail" else made_by.head
        before = made.scenario.model.segment(owner, (40,), 1, made.scenario.seed)
        assert all(map(torch.equal, theirs.state_dict().values(), before.state_dict().values()))
        now = getattr(client, owner).state_dict()
        assert not all(map(torch.equal, theirs.state_dict().values(), now.values()))
    reach = list_reached(list(attacking.attacks.values()))
    private = [t for learner in client.learners for t in learner.state().values()]
    private += [made.data.train.inputs, made.data.test.inputs]
    spoken = attacking.judges["sessions"].sessions
    private += [*spoken.prompts, *spoken.responses]
    assert not {tensor.untyped_storage().data_ptr() for tensor in private} & reach.keys()
    assert next(server.trunk.parameters()).untyped_storage().data_ptr() in reach


def test_attacks_share_one_copy_of_the_weights_from_before(tmp_path):
    """Of a model of billions of weights the server's memory has no room for one each."""
    opened = {"kind": "vmi", "name": "opened", "start": "dsi", **GAUSSIAN}
    made = experiment(
        make_scenario(tmp_path, {"kind": "vmi"}, {"kind": "pmi"}, opened), tmp_path / "run"
    )
    vmi, pmi, other = made.live.attacking.attacks.values()
    assert vmi.head is pmi.head is other.head is other.opening.sip.head
    assert vmi.embeddings_VD is pmi.embeddings_VD is other.opening.sip.embeddings_VE
    assert not any(weight.requires_grad for weight in vmi.head.parameters())
    assert not vmi.head.training


def test_a_run_that_is_over_can_be_attacked(judged):
    run = attack(judged.path, "mc", {"name": "afterwards", "targets.tokens": "4"})
    table = run.sessions
    assert set(table[table["attack"] == "afterwards"]["view"]) == {"prompt", "response", "both"}
    assert (run.path / "attacks" / "afterwards" / "leaks.csv").is_file()
    with pytest.raises(SimsplitError, match="already holds"):
        attack(judged.path, "mc", {"name": "afterwards", "targets.tokens": "4"})


def test_of_texts_without_a_prompt_the_first_half_is_one(tmp_path):
    source = {"task": {"kind": "language", "text": "sentence"}, "length": 32}
    scenario = make_scenario(tmp_path, data={"source": source, "auxiliary": 0.3})
    made = experiment(scenario, tmp_path / "run")
    sessions = write_sessions(made.scenario, made.parts, made.data, 0)
    info = made.data.test.texts
    for row, prompt in enumerate(sessions.prompts):
        length = int(info.lengths[row])
        assert len(prompt) == (length + 1) // 2  # the begin token stands before both halves
        rest = made.data.test.inputs[row, len(prompt) : length]
        assert sessions.references[row] == scenario.text_reader().decode(rest.tolist()).strip()


MIXED = [{"kind": "mixguard", "tokens": 2, "warm_up": 1, "inference": "mixed"}]


@pytest.mark.parametrize(
    ("changes", "field", "gist"),
    [
        ({"method": MIXED}, "attacks.0.kind", "mixguard.*mix"),
        ({"topology": "vanilla"}, "attacks.0.kind", "vanilla.*tail"),
        ({"targets": {"tokens": 1}}, "targets.tokens", "at least 2"),
        ({"targets": {"alpha": 1.5}}, "targets.alpha", "at most 1"),
        ({"attacks": [{"kind": "mc", "name": "written"}]}, "attacks.0", "written"),
    ],
)
def test_what_cannot_be_is_refused_by_field(changes, field, gist, tmp_path):
    with pytest.raises(ScenarioError, match=gist) as error:
        text_scenario(tmp_path, **{**make_scenario(tmp_path).model_dump(mode="json"), **changes})
    assert error.value.field.startswith(field)


def test_a_missing_package_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(SimsplitError, match=r"BLEU.*sacrebleu"):
        experiment(make_scenario(tmp_path, schedule={"rounds": 1}), tmp_path / "run")


def test_an_inverter_needs_public_texts_where_one_opens(tmp_path):
    nothing = {"data": {"auxiliary": 0.0, "source": {"task": GENERATES, "length": 40}}}
    make_scenario(tmp_path, {"kind": "pmi"}, **nothing)
    for wanted, field in (({"kind": "pidi"}, "kind"), ({"kind": "vmi", "start": "sip"}, "start")):
        with pytest.raises(ScenarioError, match="public data") as error:
            make_scenario(tmp_path, wanted, **nothing)
        assert error.value.field == f"attacks.0.{field}"
    assert VmiConfig(start="mc").needs == VmiConfig().needs


def test_only_the_sessions_packets_are_handed_over(live):
    _, message = live
    assert {packet.leg for packet in message.packets} == {Leg.SMASHED, Leg.FEATURES}
    assert len({packet.session for packet in message.packets}) == 1
