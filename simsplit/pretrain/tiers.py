"""This module defines the shape and training of pretrained models, and the named tiers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from simsplit.config import Config
from simsplit.errors import SimsplitError, suggest

_BOUNDS = {"ge": "at least", "gt": "above", "lt": "below"}

Family = Literal["llama", "qwen3", "gpt2"]


class PretrainConfig(Config):
    """A causal language model trained from random weights; embeddings and head are not tied."""

    family: Family = "llama"
    """Architecture of the model."""
    width: int = Field(default=128, ge=2)
    """Number of values per token between layers."""
    layers: int = Field(default=6, ge=1)
    """Number of blocks, each with attention and an MLP."""
    heads: int = Field(default=4, ge=1)
    """Number of attention heads of a layer."""
    vocabulary: int = Field(default=2048, ge=259)
    """Number of tokens: 256 bytes, three special tokens, and merges of frequent sequences."""
    context: int = Field(default=512, ge=2)
    """Largest number of tokens of a text that the model can read."""
    steps: int = Field(default=480, ge=1)
    """Number of optimizer steps."""
    batch_size: int = Field(default=16, ge=1)
    """Number of windows of text in a step."""
    length: int = Field(default=128, ge=2)
    """Number of tokens of a window."""
    lr: float = Field(default=5e-3, gt=0, lt=1)
    """Highest learning rate, reached after the warm-up."""
    seed: int = Field(default=0, ge=0)
    """Seed of the initial weights, the batches and the choice of validation text."""
    text: Path | None = None
    """A .txt, .md or .parquet file, or a folder of such files; null: Python's own documentation."""
    half: bool = False
    """Whether the weights are rounded to half precision, in which the files hold them."""

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width {self.width} must divide into {self.heads} heads of an even size"
            )
        if self.length > self.context:
            raise ValueError(f"length {self.length} must be at most the context, {self.context}")
        return self


TIERS: dict[str, PretrainConfig] = {
    "ci": PretrainConfig(
        width=64, layers=4, heads=4, vocabulary=1024, steps=240, batch_size=8, length=64, lr=6e-3
    ),
    "demo": PretrainConfig(),
    "gpu": PretrainConfig(
        width=512, layers=10, heads=8, vocabulary=8192, steps=3000, batch_size=64, length=512,
        lr=1e-3,
    ),
}  # fmt: skip
"""The named tiers. ci takes seconds on one core, demo minutes on two cores; gpu needs a GPU, and a
text of your own.

On the documentation of Python 3.11, ci reaches a validation loss of 5.08, demo 4.49.
"""


DRAWS: Mapping[str, int] = {"ci": 1, "demo": 3}
"""The tiers that ship, and how many models of each: draws 0, 1, ... are pretrained with seeds 0, 1,
... and differ in all that a seed decides."""
BY_SEED = "@seed"
"""The end of a name that stands for several models: the scenario's seed chooses the draw."""


def choose_draw(name: str, seed: int) -> str:
    """Return the name of one draw: `demo@seed` becomes `demo@1` for the seeds 1, 4, 7, ..."""
    if not name.endswith(BY_SEED):
        return name
    tier = name.removesuffix(BY_SEED)
    find_tier(tier)
    if (count := DRAWS.get(tier, 0)) < 2:
        several = ", ".join(f"{known}{BY_SEED}" for known, draws in DRAWS.items() if draws > 1)
        raise SimsplitError(f"{name}: {tier} has no draws to choose from; allowed: {several}")
    return f"{tier}@{seed % count}"


def find_named(name: str) -> PretrainConfig:
    """Return the config of a tier's model, by the tier's name or a draw's: `demo`, `demo@2`.

    They are saved in half precision. Raise SimsplitError for an unknown name.
    """
    tier, _, draw = name.partition("@")
    config = find_tier(tier)
    if draw and not (draw.isdecimal() and draw.isascii() and len(draw) < 10):
        raise SimsplitError(
            f"unknown draw '{draw}' of {tier}; allowed: a number, such as {tier}@1, or {BY_SEED}"
        )
    return config.model_copy(update={"seed": int(draw or 0), "half": True})


def find_tier(name: str) -> PretrainConfig:
    """Return the tier of this name; raise SimsplitError if there is none."""
    if name not in TIERS:
        hint = suggest(name, TIERS) or ","
        raise SimsplitError(f"unknown tier '{name}'{hint} allowed: {', '.join(TIERS)}")
    return TIERS[name]


def change_tier(name: str, changes: Mapping[str, object]) -> PretrainConfig:
    """Return a tier with some fields changed; raise SimsplitError if they are invalid."""
    try:
        return PretrainConfig.model_validate({**find_tier(name).model_dump(), **changes})
    except ValidationError as error:
        raise SimsplitError("\n".join(map(_explain, error.errors()))) from None


def _explain(problem: ErrorDetails) -> str:
    """Explain a problem with the command line's names of fields."""
    reason = problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:
        return reason
    option = str(problem["loc"][0]).replace("_", "-")
    for bound, words in _BOUNDS.items():
        if (limit := problem.get("ctx", {}).get(bound)) is not None:
            reason = f"must be {words} {limit:g}"
    return f"--{option}: {reason}, got {problem['input']}"
