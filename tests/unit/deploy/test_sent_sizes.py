"""Sizes of what clients send: who is suspect, who is at fault, and since when."""

import math
from typing import Any

import pytest
import torch

from simsplit.deploy.sent_sizes import (
    COUNTED_RISE,
    MOST_RISE,
    MOST_TIMES,
    SUSPECT_TIMES,
    SentSizes,
    TooLarge,
)
from simsplit.errors import RunError
from simsplit.legs import Leg
from simsplit.packets import Packet


@pytest.fixture
def sizes() -> SentSizes:
    return SentSizes()


def send(sizes: SentSizes, **of_clients: float) -> None:
    """Let clients, named c0 and so on, send payloads of a size."""
    for name, size in of_clients.items():
        packet = Packet(int(name[1:]), Leg.SMASHED, 1, 0, (torch.full((4, 3), size),))
        sizes.note_sent(packet.client, (packet,))


def hand(sizes: SentSizes, client: int, times: float, round_number: int = 1) -> None:
    sizes.note_handed(client, round_number, "a hand-over", after=7.0 * times, before=7.0)


def find_guilty(sizes: SentSizes, round_number: int = 1) -> int:
    with pytest.raises(TooLarge) as raised:
        sizes.end_round(round_number)
    return raised.value.client


class TestPayloads:
    @pytest.mark.parametrize("bad", range(3))
    def test_far_larger_than_those_of_most(self, sizes, bad):
        send(sizes, **{f"c{n}": 1.01 * MOST_TIMES if n == bad else 1.0 for n in range(3)})
        assert sizes.find_suspect() == bad
        assert find_guilty(sizes) == bad

    @pytest.mark.parametrize("others", [(1.0, 1.0), (0.02, 40.0), (1e-9, 1.0)])
    def test_of_honest_clients_that_differ(self, sizes, others):
        send(sizes, c0=0.99 * MOST_TIMES, c1=others[0], c2=others[1])
        sizes.end_round(1)

    @pytest.mark.parametrize("small", [0.0, 1e-30, 1e-9])
    def test_that_are_tiny_make_nobody_else_large(self, sizes, small):
        send(sizes, c0=small, c1=1.0, c2=1.0)
        sizes.end_round(1)
        send(sizes, c0=small, c1=small, c2=1.0, c3=1.0)
        sizes.end_round(2)

    def test_of_two_are_not_compared(self, sizes):
        send(sizes, c0=1e9, c1=1.0)
        assert sizes.find_suspect() is None
        sizes.end_round(1)

    def test_largest_of_a_round_counts(self, sizes):
        send(sizes, c0=1e9, c1=1.0, c2=1.0)
        send(sizes, c0=1.0, c1=1.0, c2=1.0)
        assert find_guilty(sizes) == 0

    def test_that_shrink_as_most_clients_learn(self, sizes):
        """A client whose samples are hard has the gradients that all had at first."""
        send(sizes, c0=1.0, c1=1.0, c2=1.0)
        sizes.end_round(1)
        send(sizes, c0=2.0, c1=1e-6, c2=1e-6)
        sizes.end_round(2)

    def test_of_each_round_alone(self, sizes):
        send(sizes, c0=1e9, c1=1.0)
        sizes.end_round(1)
        send(sizes, c0=1.0, c1=1.0, c2=1.0)
        sizes.end_round(2)

    @pytest.mark.parametrize("few", range(3))
    def test_of_a_last_batch_of_one_sample(self, sizes, few):
        """The gradients of a batch's mean loss are smaller, the more samples the batch has."""
        for client in range(3):
            samples = 1 if client == few else 512
            gradient = torch.full((samples, 30), 1.0 / samples)
            sizes.note_sent(client, (Packet(client, Leg.FEATURES_GRAD, 1, 0, (gradient,)),))
        assert [times for _, _, times in sizes._compare()] == pytest.approx([1.0] * 3)

    def test_in_half_precision_and_without_floats(self, sizes):
        large = Packet(0, Leg.SMASHED, 1, 0, (torch.full((9, 9), 6e4, dtype=torch.float16),))
        whole = Packet(1, Leg.SMASHED, 1, 0, (torch.ones(3, dtype=torch.int64), torch.ones(0)))
        sizes.note_sent(0, (large,))
        sizes.note_sent(1, (whole,))
        assert sizes._of_round["smashed"] == {0: pytest.approx(6e4, rel=1e-3), 1: 0.0}


class TestWeights:
    def test_that_grow_as_honest_ones_do(self, sizes):
        for _ in range(100):
            hand(sizes, 0, COUNTED_RISE)
        assert sizes.find_suspect() is None

    @pytest.mark.parametrize("times", [1.1 * MOST_RISE, 1e9, math.inf, math.nan])
    def test_that_are_far_larger_at_once(self, sizes, times):
        with pytest.raises(TooLarge) as raised:
            hand(sizes, 2, times)
        assert raised.value.client == 2

    def test_that_grow_little_by_little(self, sizes):
        hand(sizes, 2, 5.0)
        assert sizes.find_suspect() == 2
        hand(sizes, 1, 1.5)
        hand(sizes, 2, 5.0)
        with pytest.raises(TooLarge) as raised:
            hand(sizes, 2, 5.0)
        assert raised.value.client == 2

    def test_who_made_them_larger_is_judged_before_who_trained_on_them(self, sizes):
        hand(sizes, 2, 20.0)
        with pytest.raises(TooLarge) as raised:
            hand(sizes, 0, 1e3)
        assert raised.value.client == 0
        assert sizes.find_suspect(other_than=0) == 2

    def test_but_not_who_made_them_a_little_larger(self, sizes):
        hand(sizes, 2, 5.0)
        with pytest.raises(TooLarge):
            hand(sizes, 0, 1e3)
        assert sizes.find_suspect(other_than=0) is None


class TestSinceWhen:
    def test_the_rounds_in_a_row_before(self, sizes):
        for number, size in enumerate((1.0, 2 * SUSPECT_TIMES, 1.0, 2 * SUSPECT_TIMES, 20.0), 1):
            send(sizes, c0=size, c1=1.0, c2=1.0)
            sizes.end_round(number)
        assert sizes.since.get(0) == 4
        assert sizes.since.get(1) is None

    def test_weights_that_grew_are_not_forgotten(self, sizes):
        hand(sizes, 0, 5.0, round_number=1)
        send(sizes, c0=1.0, c1=1.0, c2=1.0)
        sizes.end_round(2)
        assert sizes.since.get(0) == 1


class TestACheckpoint:
    def test_holds_what_is_known(self, sizes):
        hand(sizes, 2, 5.0)
        send(sizes, c0=20.0, c1=1.0, c2=1.0)
        sizes.end_round(1)
        again = SentSizes()
        again.load(sizes.state())
        assert again.since.get(0) == again.since.get(2) == 1
        assert again.find_suspect() == 2
        assert again._usual == {"smashed": pytest.approx(1.0)}

    def test_of_an_earlier_version_has_none(self, sizes):
        sizes.load({})
        assert sizes.find_suspect() is None

    @pytest.mark.parametrize(
        "content", [b"", b"[]", b"{}", b'{"rise": 1, "usual": {}, "since": {}}']
    )
    def test_that_is_damaged(self, sizes, content):
        state: Any = {"sizes": torch.tensor(list(content), dtype=torch.uint8)}
        with pytest.raises(RunError):
            sizes.load(state)
