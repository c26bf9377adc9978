"""Members, attributes and origins of texts, in one short run, and rows of texts on tensors."""

import pytest
import torch

from simsplit.attacks.canaries import CanariesConfig, CanaryAttack
from simsplit.attacks.member_attack import CandidateReading, flatten_message
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.results import Run
from simsplit.results.leak_table import ATTACK, keep_kinds
from simsplit.results.member_leaks import EVEN, LABEL, LARGEST
from simsplit.scenario import parse

READ = {
    "data": {
        "source": {"kind": "python_docs", "length": 16, "task": "python_docs"},
        "train_samples": 80,
        "test_samples": 40,
        "auxiliary": 0.4,
    },
    "model": {
        "kind": "sequence_classifier",
        "sizes": {"width": 16, "layers": 3, "heads": 2},
        "head": 1,
        "tail": 1,
    },
    "clients": {"count": 2},
    "schedule": {"kind": "round_robin", "rounds": 1, "local_steps": 2},
    "train": {"batch_size": 4},
    "evaluate": {"every": 0},
    "targets": {"count": 6},
    "attacks": [
        {"kind": "loss_threshold"},
        {"kind": "gradient_norm"},
        {"kind": "loss_threshold", "by": "client 1", "name": "next_client"},
        {"kind": "canaries", "count": 4},
        {"kind": "attribute_probe"},
        {"kind": "site_inference"},
    ],
    "threads": 1,
}


@pytest.fixture(scope="module")
def leaks(finished):
    return Run.load(finished(parse(READ))).leaks


def test_members_of_texts_are_read_from_each_seat(leaks):
    rows = keep_kinds(leaks, "members")
    own = rows[(rows["role"] == ATTACK) & (rows["metric"] == "auc")].set_index("attack")
    seats = {(name, row["view"]) for name, row in own.iterrows()}
    assert seats >= {
        ("loss_threshold", "weights"),
        ("next_client", "handover"),
        ("gradient_norm", "wire"),
        ("canaries", "messages"),
        ("canaries", "gradients"),
    }
    # As many texts of the client as of others, and both texts of each pair.
    assert own.loc["loss_threshold", "samples"] == 12
    assert (own.loc["canaries", "samples"] == 8).all()
    assert own["value"].between(0, 1).all()


def test_a_topic_of_texts_is_an_attribute_with_its_floors(leaks):
    rows = keep_kinds(leaks, "attributes").set_index("attack")
    assert {LARGEST, LABEL} < {*rows.index}
    assert (rows.loc["attribute_probe", "samples"] == 6).all()


def test_origins_of_texts_are_told_for_texts_and_messages(leaks):
    rows = keep_kinds(leaks, "origins").set_index(["attack", "view"])
    assert {view for _, view in rows.index} == {"samples", "messages"}
    assert rows.loc[(EVEN, "samples"), "value"] == 0.5


class Words:
    """What an attacker knows of texts of 5 tokens, each of 3 values, that cross as they are."""

    vocabulary = object()
    methods = ()

    def lift_smashed(self, packet: Packet) -> torch.Tensor:
        return packet.tensors[0]

    message = lift_smashed


def test_a_text_is_the_mean_of_its_places_and_its_gradient_their_sum():
    """The loss of a text reads few places: a mean would shrink with the padding."""
    known, values = Words(), torch.arange(30.0).view(2, 5, 3)
    sent = Packet(0, Leg.SMASHED, 1, 0, (values,))
    torch.testing.assert_close(flatten_message(known, sent), values.mean(1))
    attack = CanaryAttack(CanariesConfig(), known)
    attack.observe(sent)
    attack.observe(Packet(0, Leg.FEATURES_GRAD, 1, 0, (values / 2,)))
    kept = attack._sent[Leg.FEATURES_GRAD][0, 0]
    torch.testing.assert_close(kept, values.sum(1))


def test_a_label_of_a_text_is_guessed_by_the_gradient_beside_its_message():
    rng = torch.Generator().manual_seed(0)
    texts, grads = (torch.randn(n, 5, 3, generator=rng) for n in (20, 40))
    first = torch.arange(20) % 3 == 0
    chosen = torch.where(first[:, None, None], *grads.view(2, 20, 5, 3))
    attack = CanaryAttack(CanariesConfig(), Words())
    attack.observe(Packet(0, Leg.SMASHED, 5, 0, (texts,)))
    attack.observe(Packet(0, Leg.FEATURES_GRAD, 5, 0, (chosen / 20,)))
    answer = [
        Packet(0, Leg.SMASHED, 6, 0, (texts.repeat(2, 1, 1),)),
        Packet(0, Leg.FEATURES_GRAD, 6, 0, (grads / 40,)),
    ]
    attack.reading = CandidateReading(packets=[answer])
    (scores,) = attack._multiply_gradients()
    one, other = scores.view(2, -1)
    assert ((one > other) == first).all()
