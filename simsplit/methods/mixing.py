"""MixGuard's secrets: signs s, a mixing matrix M, a blinding matrix B, and what undoes them.

s^T M = e_t^T (Eq. 14): of what the k inputs become, the signed sum keeps the target alone. All of M
is positive, so every message mixes all inputs (Eq. 15 asks for two). What is sent is B M H, and the
weights w = s^T B^-1 bring it back. The paper leaves open how such matrices are drawn; both samplers
are ours. An affine trunk adds the same offset to every message, which w keeps once only if it sums
to 1; `affine` draws rows of M and B, and signs, that sum to 1, so such a trunk is undone exactly.
It does so at the price of mixtures nearer to the target: what the server sees is easier to invert.
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
"""Smallest share of an input in a message, in affine mixtures."""
_TRIES = 1000
_DRAWS = 100


@dataclass(frozen=True)
class Secrets:
    """The secrets of one batch; they never leave the client."""

    target: int
    """Position of the private input among the k."""
    encode: Matrix
    """B M, M x K: maps inputs to messages; M x K x B where each row has matrices of its own."""
    decode: Matrix
    """w, M (or M x B): maps the messages' outputs to the target's, approximately."""

    def mixed(self, x_KBLD: Tensor) -> Tensor:
        """The m mixtures, as messages to send."""
        encode = torch.as_tensor(self.encode).to(x_KBLD)
        if encode.ndim == 3:
            return torch.einsum("mkb,kbld->mbld", encode, x_KBLD)
        sent_MBLD: Tensor = torch.tensordot(encode, x_KBLD, 1)
        return sent_MBLD

    def unmixed(self, x_MBLD: Tensor) -> Tensor:
        """The target's output, approximately, from the messages' outputs."""
        decode = torch.as_tensor(self.decode).to(x_MBLD)
        if decode.ndim == 2:
            return torch.einsum("mb,mbld->bld", decode, x_MBLD)
        near_BLD: Tensor = torch.tensordot(decode, x_MBLD, 1)
        return near_BLD


def for_each(several: Sequence[Secrets]) -> Secrets:
    """Secrets of single rows as those of a batch, with all targets in the place of the first."""
    target = several[0].target
    turned = [np.roll(each.encode, target - each.target, axis=1) for each in several]
    decode = np.stack([each.decode for each in several], -1)
    return Secrets(target, np.stack(turned, -1), decode)


def draw(
    messages: int,
    inputs: int,
    sampler: Sampler,
    rng: np.random.Generator,
    *,
    blind: bool = True,
    condition: float = 20.0,
    purest: float = 1.0,
) -> Secrets:
    """Fresh secrets; without blinding a plain signed sum of the messages gives the target away.

    `condition` is what the blinding matrix's condition number stays below: its inverse amplifies
    whatever the trunk does not pass through. `purest` is what every message's purity stays below,
    or the least of so many draws.
    """
    drawn = [_draw(messages, inputs, sampler, rng, blind=blind, condition=condition)]
    while purity(drawn[-1].encode) >= purest and len(drawn) < _DRAWS:
        drawn.append(_draw(messages, inputs, sampler, rng, blind=blind, condition=condition))
    return min(reversed(drawn), key=lambda each: max(purest, purity(each.encode)))


def purity(encode_MK: Matrix) -> float:
    """How much of any message is of a single text: 1 if it is that text alone."""
    shares = np.abs(encode_MK) / np.linalg.norm(encode_MK, axis=1, keepdims=True)
    return float(shares.max())


def _draw(
    messages: int,
    inputs: int,
    sampler: Sampler,
    rng: np.random.Generator,
    *,
    blind: bool,
    condition: float,
) -> Secrets:
    target = int(rng.integers(inputs))
    affine = sampler == "affine"
    signs_M = _signs(messages, rng, affine=affine)
    mix = _affine_mixture if affine else _mixture
    mixing_MK = mix(signs_M, inputs, target, rng)
    blinding_MM = _blinding(messages, rng, condition, affine=affine) if blind else np.eye(messages)
    decode_M: Matrix = np.linalg.solve(blinding_MM.T, signs_M).astype(np.float64)
    return Secrets(target, blinding_MM @ mixing_MK, decode_M)


def _signs(messages: int, rng: np.random.Generator, *, affine: bool) -> Matrix:
    """Both signs; affine: one more plus than minus."""
    if affine:
        signs = np.ones(messages)
        signs[: messages // 2] = -1
        return rng.permutation(signs)
    while True:
        signs = rng.choice((-1.0, 1.0), messages)
        if abs(signs.sum()) < messages:
            return signs


def _mixture(signs_M: Matrix, inputs: int, target: int, rng: np.random.Generator) -> Matrix:
    """Uniform draws; the rows of one sign are scaled until each column adds up."""
    mixing_MK = rng.uniform(0.1, 1.0, (len(signs_M), inputs))
    plus = signs_M > 0
    wanted_K = np.zeros(inputs)
    wanted_K[target] = 1.0
    of_plus_K, of_minus_K = mixing_MK[plus].sum(0), mixing_MK[~plus].sum(0)
    others = np.arange(inputs) != target
    mixing_MK[np.ix_(~plus, others)] *= (of_plus_K / of_minus_K)[others]
    mixing_MK[plus, target] *= (1 + of_minus_K[target]) / of_plus_K[target]
    return mixing_MK


def _affine_mixture(signs_M: Matrix, inputs: int, target: int, rng: np.random.Generator) -> Matrix:
    """The same with rows that sum to 1: alternating projections onto these and positive values."""
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
    """Whether matrices below that condition number are drawn often enough."""
    rng = np.random.default_rng(0)
    affine = sampler == "affine"
    drawn = (_matrix(messages, rng, affine=affine) for _ in range(200))
    return any(np.linalg.cond(matrix) < condition for matrix in drawn)


def _blinding(messages: int, rng: np.random.Generator, condition: float, *, affine: bool) -> Matrix:
    while True:
        drawn = _matrix(messages, rng, affine=affine)
        if np.linalg.cond(drawn) < condition:
            return drawn


def _matrix(messages: int, rng: np.random.Generator, *, affine: bool) -> Matrix:
    drawn = rng.standard_normal((messages, messages))
    return drawn + (1 - drawn.sum(1, keepdims=True)) / messages if affine else drawn
