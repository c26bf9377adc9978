"""UnSplit: its priors by hand, its steps against a plain loop, and what a clone is made of."""

import pytest
import torch
from contracts.leaks import build_setting, packet
from torch import nn
from torch.nn.functional import mse_loss

from simsplit.attacks.unsplit import Sender, UnsplitConfig, measure_square, measure_variation
from simsplit.legs import Leg
from simsplit.methods import METHODS


def test_the_priors_are_means_by_image_and_direction():
    pixels = torch.zeros(2, 1, 3, 4)
    pixels[0, 0, 1, 1] = 2.0
    # down: 2 of 8 differences are 2; across: 2 of 9
    assert measure_variation(pixels).item() == pytest.approx(8 / 8 + 8 / 9)
    assert measure_square(pixels).item() == pytest.approx(4 / 12)


@pytest.mark.parametrize("count", [1, 3])
def test_it_is_the_published_loop(count):
    """Image after image; the clone goes on, the moments do not."""
    here = build_setting()
    config = UnsplitConfig(outer=2, inner=3, tv=0.1, l2=1.0, lr=0.01)
    attack = config.build(here.known)
    sent = here.truth[:count]
    for _ in attack.work([packet(sent, Leg.SMASHED, 0)]):
        pass
    clone = here.known.surrogate("unsplit").head
    for index in range(count):
        x = torch.full((1, 1, 8, 8), 0.5, requires_grad=True)
        of_x = torch.optim.Adam([x], lr=0.01, amsgrad=True)
        of_clone = torch.optim.Adam(clone.parameters(), lr=0.01, amsgrad=True)
        for _ in range(2):
            for _ in range(3):
                of_x.zero_grad()
                across = (x[..., 1:] - x[..., :-1]).square().mean()
                down = (x[..., 1:, :] - x[..., :-1, :]).square().mean()
                loss = mse_loss(clone(x), sent[index : index + 1])
                (loss + 0.1 * (across + down) + x.square().mean()).backward()
                of_x.step()
            for _ in range(3):
                of_clone.zero_grad()
                mse_loss(clone(x.detach()), sent[index : index + 1]).backward()
                of_clone.step()
        torch.testing.assert_close(attack.recovered[index], x.detach()[0], atol=1e-6, rtol=1e-5)


def test_batched_images_have_a_clone_each():
    here = build_setting()
    config = UnsplitConfig(outer=2, inner=3, lr=0.01, clones="batched")
    together = config.build(here.known)
    for _ in together.work([packet(here.truth[:3], Leg.SMASHED, 0)]):
        pass
    for index in range(3):
        alone = UnsplitConfig(outer=2, inner=3, lr=0.01).build(here.known)
        for _ in alone.work([packet(here.truth[index : index + 1], Leg.SMASHED, 0)]):
            pass
        torch.testing.assert_close(together.recovered[index], alone.recovered[0])


@pytest.mark.parametrize("objective", ["upstream", "adaptive"])
def test_a_clone_has_learned_methods_where_it_matches_what_crossed(objective):
    here = build_setting((METHODS["learned1x1"](ratio=1),))
    attack = UnsplitConfig(objective=objective).build(here.known)
    names = {name.split(".")[0] for name, _ in attack.sender.named_parameters()}
    assert names == ({"head", "methods"} if objective == "adaptive" else {"head"})
    assert isinstance(attack.sender, Sender)
    assert isinstance(attack.sender.head, nn.PReLU)


@pytest.mark.slow
@pytest.mark.parametrize("scaled", [False, True])
def test_scaling_holds_the_match_against_the_prior_by_the_size_of_what_is_matched(scaled):
    """Against a prior of weight one, a match of weight w leaves w / (1 + w) of the image."""
    here = build_setting()
    sent = here.truth[:1]
    weight = 1 / sent.square().mean().item() if scaled else 1.0
    attack = UnsplitConfig(outer=6, inner=50, lr=0.02, tv=0.0, scaled=scaled).build(here.known)
    for _ in attack.work([packet(sent, Leg.SMASHED, 0)]):
        pass
    share = (attack.recovered * sent).sum() / sent.square().sum()
    assert share.item() == pytest.approx(weight / (1 + weight), abs=0.05)
