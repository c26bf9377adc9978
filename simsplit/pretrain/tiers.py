"""What is pretrained: a small model's shape and its training, and the tiers that have a name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from simsplit.config import Config
from simsplit.errors import SimsplitError, near

_BOUNDS = {"ge": "at least", "gt": "above", "lt": "below"}

Family = Literal["llama", "qwen3", "gpt2"]


class PretrainConfig(Config):
    """A causal language model trained from nothing; its embeddings are not tied to its head."""

    family: Family = "llama"
    """Whose architecture it has."""
    width: int = Field(default=128, ge=2)
    """Values per token between layers."""
    layers: int = Field(default=6, ge=1)
    """Blocks of attention and MLP."""
    heads: int = Field(default=4, ge=1)
    """Attention heads of a layer."""
    vocabulary: int = Field(default=2048, ge=259)
    """Tokens: 256 bytes, three special ones, and merges of what is frequent."""
    context: int = Field(default=512, ge=2)
    """Positions that the model can tell apart."""
    steps: int = Field(default=480, ge=1)
    """Optimizer steps."""
    batch_size: int = Field(default=16, ge=1)
    """Windows of text in a step."""
    length: int = Field(default=128, ge=2)
    """Tokens of a window."""
    lr: float = Field(default=5e-3, gt=0, lt=1)
    """Learning rate at its highest, after the warm-up."""
    seed: int = Field(default=0, ge=0)
    """Of the first weights, of the batches, and of what is held out."""
    text: Path | None = None
    """A .txt, .md or .parquet file, or a folder of them; null: what Python documents of itself."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
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
"""By name: seconds on one core; minutes on two; a GPU's work, which wants a text of your own.

On what Python 3.11 documents of itself, ci ends at a validation loss of 5.08, demo at 4.49.
"""


def tier(name: str) -> PretrainConfig:
    """The tier of that name."""
    if name not in TIERS:
        hint = near(name, TIERS) or ","
        raise SimsplitError(f"unknown tier '{name}'{hint} allowed: {', '.join(TIERS)}")
    return TIERS[name]


def config_of(name: str, changes: Mapping[str, object]) -> PretrainConfig:
    """A tier with some of its fields changed; SimsplitError where they do not fit together."""
    try:
        return PretrainConfig.model_validate({**tier(name).model_dump(), **changes})
    except ValidationError as error:
        raise SimsplitError("\n".join(map(_reason, error.errors()))) from None


def _reason(problem: ErrorDetails) -> str:
    """What is wrong, in the command line's words."""
    reason = problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:
        return reason
    option = str(problem["loc"][0]).replace("_", "-")
    for bound, words in _BOUNDS.items():
        if (limit := problem.get("ctx", {}).get(bound)) is not None:
            reason = f"must be {words} {limit:g}"
    return f"--{option}: {reason}, got {problem['input']}"
