"""P3EFT's Appendix C: what one server learns of labels from fewer messages than samples.

A client owns B samples of two classes; dl_b/dh_b = (p_b - y_b) d_b, where the direction d_b does
not depend on the label. It sends m messages that are random combinations of m vectors, whose span
holds the batch's gradient. A server that knows the head knows both gradients that each sample can
have, and so asks of each of the 2^B batches of labels whether its gradient lies in the span.
"""

import itertools

import pytest
import torch
from torch import Tensor

from simsplit.seeds import rng_for

B, D = 6, 8


def head(rng):
    """Compute the directions and probabilities that the server knows, as it knows the head."""
    directions_BD = torch.randn(B, D, generator=rng, dtype=torch.float64)
    return directions_BD, torch.rand(B, generator=rng, dtype=torch.float64)


def gradient(directions_BD: Tensor, p_B: Tensor, labels) -> Tensor:
    """Compute the batch's gradient as one vector of B x D values."""
    away_B = p_B - torch.tensor(labels, dtype=p_B.dtype)
    return (away_B[:, None] * directions_BD).flatten()


def alone(directions_BD: Tensor, sample: int) -> Tensor:
    """Compute a basis of what one sample's gradient can be, whatever its label."""
    kept = torch.zeros(B, 1, dtype=torch.float64)
    kept[sample] = 1
    return (kept * directions_BD).flatten()


def messages(vectors: list[Tensor], rng) -> Tensor:
    """Make as many random combinations as there are vectors."""
    whole = torch.stack(vectors)
    return torch.randn(len(whole), len(whole), generator=rng, dtype=whole.dtype) @ whole


def possible(sent_MN: Tensor, directions_BD: Tensor, p_B: Tensor) -> list[tuple[int, ...]]:
    """Return all labels that the server cannot rule out."""
    basis, _ = torch.linalg.qr(sent_MN.T)
    results = []
    for labels in itertools.product((0, 1), repeat=B):
        grad = gradient(directions_BD, p_B, labels)
        if (grad - basis @ (basis.T @ grad)).norm() < 1e-9 * grad.norm():
            results.append(labels)
    return results


def protect(m: int, seed: int):
    """Return the true labels and the possible ones, where the client spends its m messages well."""
    rng = rng_for(seed, "appendix c")
    directions_BD, p_B = head(rng)
    labels = tuple(torch.randint(2, (B,), generator=rng).tolist())
    hidden = [alone(directions_BD, sample) for sample in range(m - 1)]
    sent = messages([gradient(directions_BD, p_B, labels), *hidden], rng)
    return labels, possible(sent, directions_BD, p_B)


@pytest.mark.parametrize("m", [1, 2, 4, B - 1])
@pytest.mark.parametrize("seed", [0, 1])
def test_fewer_messages_than_samples_leave_the_other_labels_known(m, seed):
    """All batches that are left agree on B - m + 1 labels, and on no other."""
    labels, left = protect(m, seed)
    assert len(left) == 2 ** (m - 1)
    assert {each[m - 1 :] for each in left} == {labels[m - 1 :]}


@pytest.mark.parametrize("seed", [0, 1])
def test_as_many_messages_as_samples_leave_all_labels_open(seed):
    """One sample's direction a message: any label of any sample remains possible."""
    rng = rng_for(seed, "appendix c")
    directions_BD, p_B = head(rng)
    sent = messages([alone(directions_BD, sample) for sample in range(B)], rng)
    assert len(possible(sent, directions_BD, p_B)) == 2**B


def test_where_all_probabilities_are_a_half_labels_are_known_up_to_a_flip():
    """p - y is then plus or minus a half: the flipped batch has the gradient turned round."""
    rng = rng_for(0, "appendix c")
    directions_BD, _ = head(rng)
    p_B = torch.full((B,), 0.5, dtype=torch.float64)
    labels = (0, 1, 1, 0, 1, 0)
    for m in (1, 3):
        hidden = [alone(directions_BD, sample) for sample in range(m - 1)]
        sent = messages([gradient(directions_BD, p_B, labels), *hidden], rng)
        known = {each[m - 1 :] for each in possible(sent, directions_BD, p_B)}
        assert known == {labels[m - 1 :], tuple(1 - y for y in labels[m - 1 :])}


def test_noise_in_place_of_other_samples_hides_nothing_from_one_server():
    """What private_backprop sends, all to one server: the span holds the gradient, and no other."""
    rng = rng_for(0, "appendix c")
    directions_BD, p_B = head(rng)
    labels = (1, 0, 0, 1, 1, 0)
    noise = [1000 * torch.randn(B * D, generator=rng, dtype=torch.float64) for _ in range(2)]
    sent = messages([gradient(directions_BD, p_B, labels), *noise], rng)
    assert possible(sent, directions_BD, p_B) == [labels]


def test_one_of_two_servers_cannot_rule_out_a_thing():
    """For any gradient there is a second message with which the one that it sees spans it."""
    rng = rng_for(0, "appendix c")
    directions_BD, p_B = head(rng)
    seen = messages(
        [
            gradient(directions_BD, p_B, (1,) * B),
            torch.randn(B * D, generator=rng, dtype=torch.float64),
        ],
        rng,
    )[0]
    for labels in itertools.product((0, 1), repeat=B):
        grad = gradient(directions_BD, p_B, labels)
        other = grad - 0.3 * seen
        span = torch.linalg.qr(torch.stack([seen, other]).T).Q
        assert (grad - span @ (span.T @ grad)).norm() < 1e-9 * grad.norm()
