"""The two sides of the cut: phases that stay home, noise of one's own, clipping, misuse."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from by_hand import CPU, SGD, Cut, cut, list_changed, same, segments
from torch import Tensor, nn

from simsplit.errors import ProtocolError
from simsplit.legs import Leg
from simsplit.methods.method import Method, Share, Step
from simsplit.packets import Packet, Packets
from simsplit.parties.calls import Probe
from simsplit.parties.optimizers import SgdConfig
from simsplit.phases import Phase
from simsplit.seeds import isolate
from simsplit.topologies.u_shaped import U_SHAPED
from simsplit.topologies.vanilla import VANILLA

PLAIN = SgdConfig(lr=0.1)


class Denoise(Method):
    """A learned correction of the features, with a term of its own."""

    def __init__(self) -> None:
        with isolate(0, "denoise"):
            self.module: nn.Module = nn.Linear(8, 8)

    def decode(self, u: Tensor, step: Step) -> Tensor:
        step.memo["correction"] = self.module(u)
        return u + step.memo["correction"]

    def compute_tail_loss(self, step: Step) -> Tensor:
        return step.memo["correction"].square().mean()


def test_a_phase_at_home_sends_no_gradient_and_trains_what_it_names() -> None:
    made = cut(methods=[Denoise()], optimizer=PLAIN)
    made.enter(Phase("warmup", rounds=1, learns=frozenset({"method"}), gradients=False))
    before = made.state()
    made.train()
    assert made.tap.legs == [Leg.SMASHED, Leg.FEATURES]
    with pytest.raises(ProtocolError):  # the server keeps no graph for a way back
        serve(made, Packet(0, Leg.FEATURES_GRAD, 1, 0, (torch.ones(8, 8),)))
    moved = list_changed(before, made.state())
    assert moved == {
        "client.own.0.method.smashed_0.weight",
        "client.own.0.method.smashed_0.bias",
        "client.taken.private",
    }
    reference, features = Denoise().module, made.tap.on(Leg.FEATURES)[0].tensors[0]
    correction = reference(features)
    labels = made.client.training.feeds["private"].batch(0).labels
    outputs = made.parts.tail(features + correction)
    loss = nn.functional.cross_entropy(outputs, labels) + correction.square().mean()
    (gradient,) = torch.autograd.grad(loss, [reference.weight])
    after = made.state()["client.own.0.method.smashed_0.weight"]
    assert torch.allclose(after, reference.weight - PLAIN.lr * gradient, atol=1e-7)
    report = made.client.training.report()
    assert report["method_loss"] == pytest.approx(correction.square().mean().item(), rel=1e-5)


def test_training_proper_after_such_a_phase_trains_everything() -> None:
    made = cut(methods=[Denoise()])
    made.enter(Phase("warmup", rounds=1, learns=frozenset({"method"}), gradients=False))
    made.train()
    made.enter(Phase("train", rounds=1))
    before = made.state()
    made.train()
    assert len(made.tap.legs) == 2 + 4
    assert list_changed(before, made.state()) >= before.keys()


def test_dropout_repeats_itself_and_resumes_whatever_the_global_stream_does() -> None:
    whole = cut(segments(dropout=0.5)).train(4)
    global_stream = torch.get_rng_state()
    again = cut(segments(dropout=0.5)).train(2)
    assert torch.equal(torch.get_rng_state(), global_stream)
    torch.rand(3)  # somebody else draws
    half = again.state()
    resumed = cut(segments(dropout=0.5))
    for name, load in (
        ("client.", resumed.client.keeping.load),
        ("server.", resumed.server.learner.load),
    ):
        load({n.removeprefix(name): t for n, t in half.items() if n.startswith(name)})
    assert same(again.train(2).state(), whole.state())
    assert same(resumed.train(2).state(), whole.state())
    assert list_changed(cut(segments()).train(4).state(), whole.state()), "nothing was dropped"


def test_the_servers_tail_drops_out_by_a_stream_of_its_own_too() -> None:
    one, other = cut(segments(dropout=0.5), topology=VANILLA), cut(segments(0.5), topology=VANILLA)
    one.train(3)
    torch.rand(3)  # somebody else draws
    before = torch.get_rng_state()
    assert same(one.state(), other.train(3).state())
    assert torch.equal(torch.get_rng_state(), before)
    kept = cut(segments(dropout=0.0), topology=VANILLA).train(3)
    assert list_changed(kept.state(), one.state()), "nothing was dropped"


def test_dropout_draws_anew_at_each_step_and_not_in_evaluation() -> None:
    made = cut(segments(dropout=0.5)).train(2)
    first, second = (packet.tensors[0] == 0 for packet in made.tap.on(Leg.SMASHED))
    assert 0.3 < first.float().mean() < 0.7
    assert not torch.equal(first, second)
    assert (made.client.examination.probe("test", 1, 0)[0].tensors[0] != 0).all()


@pytest.mark.parametrize("split_learner", [False, True])
def test_each_side_is_clipped_as_a_whole(split_learner: bool) -> None:
    norm, rate = 1e-2, SgdConfig(lr=1.0)
    made = cut(optimizer=rate, clip_norm=norm, split_learner=split_learner)
    before = made.state()
    made.train()
    after = made.state()
    for side in ("client.own", "server."):
        moved = [(before[n] - after[n]).flatten() for n in before if n.startswith(side)]
        assert torch.cat(moved).norm().item() == pytest.approx(norm, rel=1e-3)


def test_clipping_at_more_than_the_norm_changes_nothing() -> None:
    assert same(cut(clip_norm=1e6).train().state(), cut().train().state())


def serve(made: Cut, packet: Packet) -> Packet:
    """Return the server's answer, in the turn that takes such a packet."""
    (turn,) = (turn for turn in U_SHAPED.training.turns if packet.leg in turn.takes)
    return made.server.answer({0: (packet,)}, turn, "train")[0][0]


def send_smashed(made: Cut) -> Packet:
    return made.client.training.begin(1)[0]


def proceed(made: Cut, packet: Packet) -> Packets:
    return made.client.training.proceed((packet,))


def reply_to_nothing(made: Cut) -> None:
    proceed(made, Packet(0, Leg.FEATURES, 1, 0, (torch.zeros(8, 8),)))


def gradient_for_nothing(made: Cut) -> None:
    proceed(made, Packet(0, Leg.SMASHED_GRAD, 1, 0, (torch.zeros(8, 8),)))


def client_backward_twice(made: Cut) -> None:
    made.train()
    proceed(made, made.tap.on(Leg.SMASHED_GRAD)[0])


def server_backward_twice(made: Cut) -> None:
    (gradient,) = proceed(made, serve(made, send_smashed(made)))
    serve(made, gradient)
    serve(made, gradient)  # no walk has ended in between, which would have the server forget it


def one_reply_too_many(made: Cut) -> None:
    (gradient,) = proceed(made, serve(made, send_smashed(made)))
    reply = serve(made, gradient)
    proceed(made, replace(reply, tensors=reply.tensors * 2))


def labels_to_a_server_without_a_tail(made: Cut) -> None:
    made.server.end = VANILLA.server(
        made.parts.trunk,
        None,
        made.server.stack,
        made.server.learner,
        nn.functional.cross_entropy,
        seed=2,
        device=CPU,
    )
    packet = send_smashed(made)
    labels = replace(packet, leg=Leg.LABELS, tensors=(torch.zeros(8, dtype=torch.int64),))
    made.server.answer({0: (packet, labels)}, VANILLA.training.turns[1], "train")


def features_to_a_client_without_a_tail(made: Cut) -> None:
    made.client.training.end.tail = None
    proceed(made, serve(made, send_smashed(made)))


def answer_after_an_evaluation(made: Cut) -> None:
    made.exchange.predict(0, Probe("test", 1, 0))
    reply_to_nothing(made)


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (reply_to_nothing, "client 0.*to nothing"),
        (gradient_for_nothing, "client 0.*to nothing"),
        (client_backward_twice, "client 0.*to nothing"),
        (server_backward_twice, "client 0.*never asked"),
        (one_reply_too_many, "1 gradients sent, 2 replies"),
        (labels_to_a_server_without_a_tail, r"tail .*clients"),
        (features_to_a_client_without_a_tail, r"tail .*server"),
        (answer_after_an_evaluation, "client 0.*to nothing"),
    ],
)
def test_misuse_is_a_protocol_error(misuse: Callable[[Cut], None], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        misuse(cut())


def test_a_gradient_in_one_share_keeps_its_size() -> None:
    class Once(Method):
        def split_gradient(self, grad: Tensor, step: Step) -> list[Share]:
            return [Share(2 * grad, 0.5)]

    weighed, plain = cut(methods=[Once()], optimizer=PLAIN).train(), cut(optimizer=PLAIN).train()
    assert torch.allclose(weighed.parts.head[1].weight, plain.parts.head[1].weight, atol=1e-7)
    assert SGD.momentum
    assert weighed.client.training.end.device == CPU
