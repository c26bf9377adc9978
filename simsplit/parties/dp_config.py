"""The fields by which clients learn with differential privacy (`train.dp`)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from simsplit.config import Config


class DpConfig(Config):
    """DP-SGD (Abadi et al., CCS 2016) of all that clients own and learn: head, tail, adapters.

    The gradient of each sample is shortened, they are summed, and the client adds noise. The trunk
    gets the batch's gradient as it is: noise at the cut is a method's.
    """

    clip: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """The largest norm of a sample's gradient, over all weights together."""
    multiplier: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Standard deviation of the noise, in units of `clip`; null: it is found from `epsilon`."""
    epsilon: float | None = Field(default=None, gt=0, le=500)
    """The budget of the whole run, noise at the cut included, for which each client finds its
    multiplier; null: `multiplier` sets the noise."""
    delta: float | None = Field(default=None, gt=0, lt=1)
    """The delta at which epsilon is meant and reported; null: 1 / the number of the client's
    samples, at most 0.01."""
    sampling: Literal["passes", "poisson"] = "passes"
    """How batches are chosen. `passes`: each sample once an epoch. `poisson`: each sample is in
    each batch with the same probability, drawn by the client's own seed; batches differ in size and
    may be empty. Only who does not see the batches has more privacy by it."""

    @model_validator(mode="after")
    def _check_that_one_field_sets_the_noise(self) -> Self:
        if (self.multiplier is None) == (self.epsilon is None):
            got = "neither" if self.multiplier is None else "both"
            mend = "" if self.multiplier is None else "; set one to null"
            raise ValueError(f"give one of multiplier and epsilon, got {got}{mend}")
        return self
