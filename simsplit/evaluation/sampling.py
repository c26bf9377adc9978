"""The next token of a text is the likeliest one, or one that is drawn.

A draw is a number in [0, 1) for each text. The caller gives it, so that a text's draws do not
depend on the other texts or on the number of passes.
"""

import torch
from pydantic import Field
from torch import Tensor

from simsplit.config import Config
from simsplit.errors import RunFailedError


class Sampling(Config):
    """How the next token is drawn."""

    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Scores are divided by it: below 1 likely tokens become likelier."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Only the likeliest tokens that together have this probability are drawn from; 1: all."""


def choose_tokens(logits_BV: Tensor, sampling: Sampling | None, draws_B: Tensor) -> Tensor:
    """Return the next token of each text: by its draw, or the likeliest without `sampling`."""
    if not torch.isfinite(logits_BV).all():
        raise RunFailedError(
            "the model's scores for the next token are no numbers (NaN, or infinite), so none can "
            "be chosen; has training diverged? a lower train.client.lr and train.server.lr, or "
            "train.clip_norm, may help"
        )
    if sampling is None:
        return logits_BV.argmax(-1)
    return draw_tokens(warp_scores(logits_BV, sampling), draws_B)


def warp_scores(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Return the scores at the temperature, with minus infinity for tokens outside `top_p`."""
    scores_BV = logits_BV / sampling.temperature
    if sampling.top_p == 1.0:
        return scores_BV
    rising_BV, order_BV = scores_BV.sort(-1)
    below_BV = rising_BV.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
    below_BV[:, -1] = False  # the likeliest token always stays
    return scores_BV.masked_fill(below_BV.scatter(1, order_BV, below_BV), -torch.inf)


def draw_tokens(scores_BV: Tensor, draws_B: Tensor) -> Tensor:
    """Return the first token at which the cumulative probability exceeds a text's draw."""
    sums_BV = scores_BV.double().softmax(-1).cumsum(-1)
    aims_B1 = draws_B.to(sums_BV)[:, None] * sums_BV[:, -1:]
    return torch.searchsorted(sums_BV, aims_B1, right=True)[:, 0]
