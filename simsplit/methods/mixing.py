"""MixGuard's secrets: signs s, a mixing matrix M, a blinding matrix B, and the weights that unmix.

s^T M = e_t^T (Eq. 14): the signed sum of the k mixed inputs keeps the target only. All entries of M
are positive, so every message mixes all inputs (Eq. 15 requires two). The client sends B M H and
unmixes the reply with the weights w = s^T B^-1. The paper leaves open how such matrices are drawn;
both samplers are ours. An affine trunk adds the same offset to every message, and w keeps the
offset exactly once only if w sums to 1. `affine` draws signs, and rows of M and B, that sum to 1,
so the client unmixes such a trunk exactly. In return its mixtures are nearer to the target, so
what the server sees is easier to invert.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Matrix = NDArray[np.float64]
Sampler = Literal["general", "affine"]

LEAST = 0.02
"""Smallest share of an input in a message that affine mixtures aim at."""
_TRIES = 1000
"""Random starts of the search for an affine mixture."""
_DRAWS = 100
"""Draws until the purity bound is given up."""


@dataclass(frozen=True)
class Secrets:
    """The secrets of one batch, which never leave the client."""

    target: int
    """Position of the private input among the k."""
    encode: Matrix
    """B M (M x K), which maps inputs to messages; M x K x B if each row has its own matrices."""
    decode: Matrix
    """w (M, or M x B), which maps the messages' outputs to the target's, approximately."""

    def mix(self, x_KBLD: Tensor) -> Tensor:
        """Mix the k inputs into m messages."""
        encode = torch.as_tensor(self.encode).to(x_KBLD)
        if encode.ndim == 3:
            return torch.einsum("mkb,kbld->mbld", encode, x_KBLD)
        sent_MBLD: Tensor = torch.tensordot(encode, x_KBLD, 1)
        return sent_MBLD

    def unmix(self, x_MBLD: Tensor) -> Tensor:
        """Return an approximation of the target's output from the messages' outputs."""
        decode = torch.as_tensor(self.decode).to(x_MBLD)
        if decode.ndim == 2:
            return torch.einsum("mb,mbld->bld", decode, x_MBLD)
        near_BLD: Tensor = torch.tensordot(decode, x_MBLD, 1)
        return near_BLD


def combine_rows(several: Sequence[Secrets]) -> Secrets:
    """Combine secrets of single rows into those of a batch."""
    # A batch has one target position, so the inputs of each row move until its target is there.
    target = several[0].target
    turned = [np.roll(each.encode, target - each.target, axis=1) for each in several]
    decode = np.stack([each.decode for each in several], -1)
    return Secrets(target, np.stack(turned, -1), decode)


def draw_secrets(
    messages: int,
    inputs: int,
    sampler: Sampler,
    rng: np.random.Generator,
    *,
    blind: bool = True,
    condition: float = 20.0,
    purest: float = 1.0,
    draws: int = 1,
) -> Secrets:
    """Draw fresh secrets. Without blinding, a signed sum of the messages reveals the target.

    The blinding matrix's condition number stays below `condition`, since its inverse amplifies the
    error of unmixing. The purity of every message stays below `purest`; if no draw of a hundred
    achieves that, the one with the lowest purity is returned. Of `draws` draws that achieve it, the
    one whose weights have the least sum of sizes is taken, since that sum bounds how much unmixing
    amplifies the trunk's errors.
    """
    affine = sampler == "affine"

    def draw_once() -> Secrets:
        target = int(rng.integers(inputs))
        signs_M = _draw_signs(messages, rng, affine=affine)
        draw_mixture = _draw_affine_mixture if affine else _draw_mixture
        mixing_MK = draw_mixture(signs_M, inputs, target, rng)
        blinding_MM = _draw_matrix(messages, rng, affine=affine) if blind else np.eye(messages)
        while blind and not np.linalg.cond(blinding_MM) < condition:
            blinding_MM = _draw_matrix(messages, rng, affine=affine)
        decode_M: Matrix = np.linalg.solve(blinding_MM.T, signs_M).astype(np.float64)
        return Secrets(target, blinding_MM @ mixing_MK, decode_M)

    drawn: list[Secrets] = []
    sound: list[Secrets] = []
    while len(drawn) < draws or (not sound and len(drawn) < _DRAWS):
        each = draw_once()
        drawn.append(each)
        if measure_purity(each.encode) < purest or purest >= 1:
            sound.append(each)
    if sound:
        return min(sound, key=measure_amplification)
    # The last draw comes first, so that it wins among equals.
    return min(reversed(drawn), key=lambda each: measure_purity(each.encode))


def measure_amplification(secrets: Secrets) -> float:
    """Return the sum of the unmixing weights' sizes."""
    return float(np.abs(secrets.decode).sum())


def measure_purity(encode_MK: Matrix) -> float:
    """Return the largest share of a single text in a message: 1 if a message is one text only."""
    shares = np.abs(encode_MK) / np.linalg.norm(encode_MK, axis=1, keepdims=True)
    return float(shares.max())


def _draw_signs(messages: int, rng: np.random.Generator, *, affine: bool) -> Matrix:
    """Draw signs that are not all equal; if affine, with one more plus than minus."""
    if affine:
        signs = np.ones(messages)
        signs[: messages // 2] = -1
        return rng.permutation(signs)
    while True:
        signs = rng.choice((-1.0, 1.0), messages)
        if abs(signs.sum()) < messages:
            return signs


def _draw_mixture(signs_M: Matrix, inputs: int, target: int, rng: np.random.Generator) -> Matrix:
    """Draw uniform values, and scale the rows of one sign so that s^T M = e_t^T."""
    mixing_MK = rng.uniform(0.1, 1.0, (len(signs_M), inputs))
    plus = signs_M > 0
    wanted_K = np.zeros(inputs)
    wanted_K[target] = 1.0
    of_plus_K, of_minus_K = mixing_MK[plus].sum(0), mixing_MK[~plus].sum(0)
    others = np.arange(inputs) != target
    mixing_MK[np.ix_(~plus, others)] *= (of_plus_K / of_minus_K)[others]
    mixing_MK[plus, target] *= (1 + of_minus_K[target]) / of_plus_K[target]
    return mixing_MK


def _draw_affine_mixture(
    signs_M: Matrix, inputs: int, target: int, rng: np.random.Generator
) -> Matrix:
    """Draw a positive mixture with s^T M = e_t^T whose rows sum to 1.

    A random start is projected alternately onto the equations and onto positive values.
    """
    messages = len(signs_M)
    rows = np.kron(np.eye(messages), np.ones(inputs))
    columns = np.kron(signs_M, np.eye(inputs))
    wanted = np.concatenate([np.ones(messages), np.eye(inputs)[target]])
    constraints = np.vstack([rows, columns])
    back = np.linalg.pinv(constraints)
    for _ in range(_TRIES):
        flat = rng.dirichlet(np.ones(inputs), messages).ravel()
        for _ in range(200):
            flat = flat + back @ (wanted - constraints @ flat)
            if flat.min() > LEAST / 2:
                return flat.reshape(messages, inputs)
            flat = np.maximum(flat, LEAST)
    raise AssertionError("no positive mixture, though there is one for any odd number of messages")


def can_blind(messages: int, sampler: Sampler, condition: float) -> bool:
    """Return whether one of 200 random matrices has a condition number below `condition`.

    Otherwise drawing until one has it could take forever.
    """
    rng = np.random.default_rng(0)
    drawn = (_draw_matrix(messages, rng, affine=sampler == "affine") for _ in range(200))
    return any(np.linalg.cond(matrix) < condition for matrix in drawn)


def _draw_matrix(messages: int, rng: np.random.Generator, *, affine: bool) -> Matrix:
    drawn = rng.standard_normal((messages, messages))
    return drawn + (1 - drawn.sum(1, keepdims=True)) / messages if affine else drawn
