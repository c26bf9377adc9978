"""The ceiling and what stands under it: with a dense projection at the cut, in the small."""

import pytest
import torch
from contracts.leaks import Setting, build_setting, packet
from gists import says

from simsplit.attacks.ridge import RidgeConfig
from simsplit.attacks.whitebox import WhiteboxConfig
from simsplit.legs import Leg
from simsplit.methods import METHODS, Step

PAIRS = 640


@pytest.fixture(scope="module")
def here() -> Setting:
    """A head that passes images on, and a projection to an eighth of their values."""
    return build_setting((METHODS["lightsplit"](ratio=8),))


def recover(config, here):
    """Return an attack that learned from a projection's pairs and has read the truth."""
    stack = here.known.surrogate("a client").stack
    step = Step(-1, 0, 0, 0)

    def send(pixels):
        with torch.no_grad():
            return packet(stack.encode(pixels, step), Leg.SMASHED, 0)

    attack = config.build(here.known)
    public = [here.known.public(number).inputs for number in range(PAIRS // 16)]
    attack.study([(send(pixels), pixels) for pixels in public])
    for _ in attack.work([send(here.truth)]):
        pass
    return attack


def error(config, here):
    result = recover(config, here).recovered
    assert result.shape == here.truth.shape
    return float((result - here.truth).square().mean())


def test_a_linear_map_reads_more_than_the_mean_image(here):
    assert error(RidgeConfig(pairs=PAIRS), here) < 0.8 * here.mean_error()


@pytest.mark.parametrize(("iterations", "lr"), [(1, 1e-3), (20, 1e-3), (5, 10.0)])
def test_the_ceiling_is_never_under_the_linear_map(here, iterations, lr):
    """Not even where its decoder has hardly learned, or has learned nonsense."""
    config = WhiteboxConfig(pairs=PAIRS, iterations=iterations, lr=lr)
    assert error(config, here) <= 1.02 * error(RidgeConfig(pairs=PAIRS), here)


def test_what_the_decoder_adds_is_kept_where_unseen_pairs_are_nearer_for_it(here):
    """Judged by the pairs that it has not learned from, not by what it learned."""
    attack = recover(WhiteboxConfig(pairs=PAIRS, iterations=20), here)
    learned, unseen = attack._split(attack._pairs)
    assert (len(learned.pixels), len(unseen.pixels)) == (PAIRS * 9 // 10, PAIRS // 10)
    first = (unseen.first - unseen.pixels).square().mean()
    made = (attack._decode(unseen) - unseen.pixels).square().mean()
    assert attack._improves_map(unseen) == bool(made < first)
    seen_map = attack._map.predict(here.known.flatten_payload(_send(here, unseen.pixels)))
    own = (seen_map.view_as(unseen.pixels) - unseen.pixels).square().mean()
    assert own < first  # a map is nearer to its own pairs than to others


def _send(here, pixels):
    stack = here.known.surrogate("a client").stack
    with torch.no_grad():
        return packet(stack.encode(pixels, Step(-1, 0, 0, 0)), Leg.SMASHED, 0)


def test_a_decoder_of_the_lift_alone_is_no_ceiling(here):
    """What an audit showed: it is local, and the projection is not."""
    alone = WhiteboxConfig(pairs=PAIRS, iterations=60, start="lift")
    assert error(alone, here) > 1.2 * error(RidgeConfig(pairs=PAIRS), here)


def test_a_ceiling_that_is_the_linear_map_says_so(here):
    """Its figures equal ridge's then, after the time of all iterations."""
    idle = recover(WhiteboxConfig(pairs=PAIRS, iterations=5, lr=10.0), here)
    assert torch.equal(idle.recovered, recover(RidgeConfig(pairs=PAIRS), here).recovered)
    assert says(idle.note, "no better ... ridge")
    useful = recover(WhiteboxConfig(pairs=PAIRS, iterations=20), here)
    assert not torch.equal(useful.recovered, recover(RidgeConfig(pairs=PAIRS), here).recovered)
    assert useful.note == ""
