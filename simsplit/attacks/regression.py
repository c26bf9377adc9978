"""Ridge regression in closed form, from pairs that arrive in batches.

If there are more pairs than input values, only sums of products are kept (the normal equations).
Otherwise the pairs themselves are kept, and their Gram matrix is the smaller system. Both give the
same predictions. Inputs and outputs are centred, so the intercept is not penalised. Sums are in
double precision. Outputs can be any rows of numbers, such as pixels or one-hot tokens.

The penalty is `strength` times the mean of the inputs' non-zero eigenvalues. Every tenth pair (at
most `MOST_HELD`) is held out; the strength that predicts these best is used on all pairs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from simsplit.seeds import rng_for

Pairs = Iterable[tuple[Tensor, Tensor]]
"""Batches of rows: (inputs, outputs)."""
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Penalty strengths to choose from."""
MOST_HELD = 1000
"""Maximum number of held-out pairs."""
DIRECTIONS = 64
"""Number of random combinations of the outputs by which strengths are compared."""


@dataclass(frozen=True)
class Ridge:
    """A ridge regression that is fitted: weights, and the means that it centres by."""

    mean: Tensor
    """Mean of the inputs."""
    basis: Tensor | None
    """The pairs' centred inputs if the Gram matrix was used, else None."""
    weights: Tensor
    offset: Tensor
    """Mean of the outputs."""
    root: Tensor
    """The Cholesky factor of the solved system."""
    penalty: float
    pairs: int

    def predict(self, x_BD: Tensor) -> Tensor:
        """Predict the outputs of these rows."""
        return self._coordinates(x_BD) @ self.weights + self.offset

    def predict_left_out(self, x_BD: Tensor, y_BP: Tensor) -> Tensor:
        """Predict the outputs of fitted pairs as if each of them had been left out of the fit."""
        centred, seen = x_BD - self.mean, self._coordinates(x_BD)
        # `own` is a pair's leverage, the weight of its own output in its prediction; taking this
        # part out gives the left-out prediction without another fit.
        own = solve_triangular(self.root, seen.T, upper=False).square().sum(0)
        if self.basis is not None:
            own = (centred.square().sum(1) - own) / self.penalty
        own = (own + 1 / self.pairs).clamp(0, 0.999)[:, None]
        predicted: Tensor = (self.predict(x_BD) - own * y_BP) / (1 - own)
        return predicted

    def _coordinates(self, x_BD: Tensor) -> Tensor:
        """Return the centred rows, or their products with the fitted pairs' inputs."""
        centred = x_BD - self.mean
        return centred if self.basis is None else centred @ self.basis.T


def fit(pairs: Pairs, count: int, strengths: Sequence[float] = STRENGTHS) -> Ridge:
    """Fit the regression on `count` pairs, with the strength that predicts held-out pairs best."""
    # With fewer than ten pairs, the last one is held out.
    every, done = min(10, count), 0
    system: _Sums | _Rows | None = None
    held: list[tuple[Tensor, Tensor]] = []
    for x_BD, y_BP in pairs:
        if system is None:
            system = _Sums(x_BD, y_BP) if count > x_BD.shape[1] else _Rows()
        number = torch.arange(done, done + len(x_BD), device=x_BD.device)
        out = (number % every == every - 1) & (number < every * MOST_HELD)
        held.append((x_BD[out], y_BP[out]))
        system.add(x_BD[~out], y_BP[~out])
        done += len(x_BD)
    assert system is not None, "there are pairs"
    x_HD, y_HP = (torch.cat(each) for each in zip(*held, strict=True))
    strength = _choose_strength(system.equations(), x_HD, y_HP, strengths)
    # Once the strength is chosen, the held-out pairs are used too.
    system.add(x_HD, y_HP)
    return _solve(system.equations(), strength)


@dataclass(frozen=True)
class _Equations:
    """The system (matrix + penalty) weights = right, with centred inputs and outputs."""

    matrix: Tensor
    right: Tensor
    mean: Tensor
    offset: Tensor
    basis: Tensor | None
    pairs: int


class _Sums:
    """Sums of inputs, outputs and their products over pairs."""

    def __init__(self, x_BD: Tensor, y_BP: Tensor) -> None:
        inputs, outputs = x_BD.shape[1], y_BP.shape[1]
        zeros = x_BD.new_zeros
        self.x, self.y = (zeros(size, dtype=torch.float64) for size in (inputs, outputs))
        self.xx = zeros(inputs, inputs, dtype=torch.float64)
        self.xy = zeros(inputs, outputs, dtype=torch.float64)
        self.pairs = 0

    def add(self, x_BD: Tensor, y_BP: Tensor) -> None:
        """Add pairs to the sums."""
        x, y = x_BD.double(), y_BP.double()
        self.x += x.sum(0)
        self.y += y.sum(0)
        self.xx.addmm_(x.T, x)
        self.xy.addmm_(x.T, y)
        self.pairs += len(x)

    def equations(self) -> _Equations:
        """Return the centred normal equations."""
        mean, offset = self.x / self.pairs, self.y / self.pairs
        # Centred afterwards, as the means are known only once all pairs have arrived.
        matrix = self.xx.addr(self.x, mean, alpha=-1)
        right = self.xy.addr(self.x, offset, alpha=-1)
        return _Equations(matrix, right, mean, offset, None, self.pairs)


class _Rows:
    """The pairs themselves, for a system with one row per pair."""

    def __init__(self) -> None:
        self.rows: list[tuple[Tensor, Tensor]] = []

    def add(self, x_BD: Tensor, y_BP: Tensor) -> None:
        """Keep pairs of inputs and outputs for the fit."""
        self.rows.append((x_BD, y_BP))

    def equations(self) -> _Equations:
        """Return the system of the pairs' Gram matrix."""
        x, y = (torch.cat(each) for each in zip(*self.rows, strict=True))
        mean, offset = (each.double().mean(0) for each in (x, y))
        basis = (x - mean).to(x.dtype)
        matrix = basis.new_zeros(len(x), len(x), dtype=torch.float64)
        # In parts: all the pairs in double precision would take twice their memory.
        for part in basis.split(4096, dim=1):
            matrix.addmm_(part.double(), part.double().T)
        return _Equations(matrix, y.double() - offset, mean, offset, basis, len(x))


def _choose_strength(system: _Equations, x: Tensor, y: Tensor, strengths: Sequence[float]) -> float:
    """Return the strength that predicts the held-out pairs best.

    Predictions of a few random combinations of the outputs are compared, since solving for all
    outputs at every strength would be slow.
    """
    # Seed 0, not the run's: equal pairs lead to equal strengths in every run.
    rng = rng_for(0, "ridge")
    mixed = torch.randn(y.shape[1], DIRECTIONS, generator=rng).to(system.right)
    narrow = replace(system, right=system.right @ mixed, offset=system.offset @ mixed)
    expected = y.double() @ mixed
    errors = [
        float((_solve(narrow, each).predict(x) - expected).square().mean()) for each in strengths
    ]
    return strengths[min(range(len(errors)), key=errors.__getitem__)]


def _solve(system: _Equations, strength: float) -> Ridge:
    """Solve the system in double precision; the solution is kept in single precision."""
    matrix, basis = system.matrix, system.basis
    # Centred rows span one dimension less than there are pairs.
    rank = max(1, min(system.pairs - 1, len(system.mean)))
    penalty = max(strength * float(matrix.trace()) / rank, 1e-12)
    penalised = matrix.clone()
    penalised.diagonal().add_(penalty)
    root = torch.linalg.cholesky(penalised)
    return Ridge(
        mean=system.mean.float(),
        basis=basis,
        weights=torch.cholesky_solve(system.right, root).float(),
        offset=system.offset.float(),
        root=root.float(),
        penalty=penalty,
        pairs=system.pairs,
    )


def classify(known_ND: Tensor, values_N: Tensor, read_MD: Tensor) -> Tensor:
    """Return a score of each class for rows, by a regression on known rows' classes, one-hot."""
    wanted = torch.nn.functional.one_hot(values_N.long()).to(known_ND)
    order = torch.randperm(len(known_ND), generator=rng_for(0, "ridge", "order"))
    return fit([(known_ND[order], wanted[order])], len(order)).predict(read_MD)
