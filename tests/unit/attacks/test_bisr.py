"""BiSR's last stage against a plain loop, and the numbers of the published code."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from simsplit.attacks.bisr import Bisr, BisrConfig
from simsplit.attacks.sip import SipConfig
from simsplit.seeds import rng_for

WORDS, WIDTH = 12, 8


def draw(*shape):
    return torch.randn(*shape, generator=rng_for(0, "draws", *shape))


class Given:
    """What the last stage asks of an attack."""

    def __init__(self, steps):
        self.config = BisrConfig(smashed_steps=steps, smashed_lr=0.05, smashed_weight_decay=0.5)
        self.embeddings_VE = draw(WORDS, WIDTH)
        self.turn = draw(WIDTH, WIDTH)
        self.head = SimpleNamespace(forward_embedded=lambda x, mask: torch.tanh(x @ self.turn))
        self.known = SimpleNamespace(stack=SimpleNamespace(get_context=lambda tensors: ()))

    match = Bisr._match_smashed


@pytest.mark.parametrize("steps", [0, 1, 60])
def test_smashed_data_are_matched_as_by_adamw_with_decay_and_read_by_inner_product(steps):
    given = Given(steps)
    start = torch.randint(0, WORDS, (6, 9), generator=rng_for(1, "tokens"))
    aim = torch.tanh(draw(6, 9, WIDTH))
    moving = nn.Parameter(given.embeddings_VE[start].clone())
    optimizer = torch.optim.AdamW([moving], lr=0.05, eps=1e-6, weight_decay=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        made = torch.tanh(moving @ given.turn)
        cosine = (made * aim).sum(-1) / (made.norm(dim=-1) * aim.norm(dim=-1))
        (1 - cosine.mean(1)).sum().backward()
        optimizer.step()
    wanted = (moving.detach() @ given.embeddings_VE.T).argmax(-1)
    seen = SimpleNamespace(smashed=SimpleNamespace(tensors={}))
    assert torch.equal(given.match(start, aim, seen), wanted)


def test_defaults_are_those_of_the_published_code():
    bisr, sip = BisrConfig(), SipConfig()
    assert (bisr.smashed_steps, bisr.smashed_lr, bisr.smashed_weight_decay) == (600, 1e-3, 0.01)
    assert (bisr.gradient_steps, bisr.gradient_lr, bisr.temperature) == (18, 0.09, 1.2)
    assert (sip.dropout, sip.hidden, sip.epochs, sip.lr, sip.weight_decay) == (
        *(0.1, 256, 20, 1e-3),
        1e-5,
    )
