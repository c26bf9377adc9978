"""The features and the gradient of each text, as a server makes them out of the text's messages.

Where a text has several messages, the client unmixes their features with weights w, so the gradient
of message i is w_i times one common gradient (see `gradient_ratio`). A server has three ways to
read them:

- `unmixed`: it infers w from the gradients, and combines features and gradients as the client does.
  The weights' size and sign are unknown, so the features are scaled to the usual level of plain
  features, with the sign in which the weights' sum is positive.
- `messages`: each message is read as if it were a text, at features that are mixtures.
- `mean`: the common gradient is read at the mean of the messages' features.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from simsplit.attacks.inverters import level
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.text_attack import (
    SeenBatch,
    count_messages,
    has_shared_secrets,
    split_messages,
)
from simsplit.seeds import rng_for

Reading = Literal["unmixed", "messages", "mean"]


class GradientView(NamedTuple):
    """The rows that an attack on gradients reads: one per text, or one per message of each text."""

    features: Tensor
    gradient: Tensor
    messages: int = 1
    """Number of rows for each text."""


def view_gradients(known: Knowledge, seen: SeenBatch, how: Reading) -> GradientView:
    """Return the rows of a batch in one of the three ways; without messages all are the same."""
    assert seen.features is not None, "needed by the config"
    assert seen.gradient is not None, "needed by the config"
    features, gradient = known.message(seen.features), known.message(seen.gradient)
    messages = count_messages(known)
    if messages == 1 or how == "messages":
        return GradientView(features, gradient, messages)
    features_MBLD = split_messages(features, messages)
    gradient_MBLD = split_messages(gradient, messages)
    weights_MB = infer_weights(known, gradient_MBLD)
    common_BLD = combine(weights_MB, gradient_MBLD)
    if how == "mean":
        return GradientView(features_MBLD.mean(0), common_BLD)
    sign_B = torch.where(weights_MB.sum(0) < 0, -1.0, 1.0)
    unmixed_BLD = combine(sign_B * weights_MB, features_MBLD)
    return GradientView(_scale_to_usual(known, unmixed_BLD), sign_B[:, None, None] * common_BLD)


def infer_weights(known: Knowledge, gradient_MBLD: Tensor) -> Tensor:
    """Infer the messages' weights for each text, up to a factor: M x B."""
    if has_shared_secrets(known):
        # All texts have the same weights, so all their values decide: noise counts for less.
        shared_M1 = weights_from(gradient_MBLD.flatten(1)[None]).T
        return shared_M1.expand(-1, gradient_MBLD.shape[1])
    return weights_from(gradient_MBLD.transpose(0, 1).flatten(2)).T


def weights_from(grads_GMN: Tensor) -> Tensor:
    """Infer the messages' weights from each group's gradients, up to a factor: G x M."""
    grads = grads_GMN.double()
    # The product squares the singular values, so it is computed in double precision.
    weights_GM: Tensor = torch.linalg.eigh(grads @ grads.mT).eigenvectors[..., -1]
    return weights_GM.to(grads_GMN)


def combine(weights_MB: Tensor, x_MBLD: Tensor) -> Tensor:
    """Sum each text's messages with its weights."""
    return torch.einsum("mb,mbld->bld", weights_MB, x_MBLD)


def unmix(known: Knowledge, seen: SeenBatch, sent_MBLD: Tensor) -> Tensor:
    """Combine messages with the weights that the ratio of their gradients gives: B x L x D."""
    assert seen.gradient is not None, "needed by the config"
    gradient_MBLD = split_messages(known.message(seen.gradient), len(sent_MBLD))
    return combine(infer_weights(known, gradient_MBLD), sent_MBLD)


def _scale_to_usual(known: Knowledge, x_BLD: Tensor) -> Tensor:
    """Scale each text's features to the level that the pretrained model's features have."""
    levels, length = known.pretrained.usual_levels, x_BLD.shape[1]
    if length not in levels:
        levels[length] = _measure_usual_level(known, length)
    return x_BLD * (levels[length] / level(x_BLD.square().mean(-1).sqrt()))[:, None, None]


def _measure_usual_level(known: Knowledge, length: int) -> Tensor:
    """Measure the level of the pretrained model's features for texts of a length."""
    with torch.no_grad():
        head, trunk = known.pretrained.segment("head"), known.pretrained.segment("trunk")
        # Random tokens do: the level hardly depends on the text.
        rng = rng_for(0, "usual features")
        size, device = len(known.pretrained.embeddings), known.pretrained.embeddings.device
        tokens = torch.randint(size, (4, length), generator=rng)
        return level(trunk(head(tokens.to(device))).square().mean(-1).sqrt()).mean()
