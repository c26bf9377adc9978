"""This module defines what a pretraining reports while it runs."""

from collections.abc import Callable
from dataclasses import dataclass

Say = Callable[[str], None]
"""A function that shows a line."""


@dataclass(frozen=True)
class PretrainProgress:
    """The progress of a pretraining."""

    step: int
    steps: int
    loss: float
    tokens: int
    """Number of tokens seen."""
    elapsed_s: float

    @property
    def rate(self) -> float:
        """Tokens per second since training began."""
        return self.tokens / max(self.elapsed_s, 1e-9)

    @property
    def left_s(self) -> float:
        """Estimated seconds until the last step."""
        return self.elapsed_s * (self.steps - self.step) / self.step

    def __str__(self) -> str:
        return f"loss {self.loss:.3f}  {self.rate:,.0f} tokens/s  {self.left_s:,.0f} s left"


Watch = Callable[[PretrainProgress], None]
"""A function that is called with the progress every few steps."""


class Tenths:
    """A watch that shows a line for every tenth of the steps, for logs and pipes."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.shown = 0

    def __call__(self, progress: PretrainProgress) -> None:
        """Show a line if another tenth is done."""
        tenth = 10 * progress.step // progress.steps
        if tenth > self.shown:
            self.shown = tenth
            width = len(str(progress.steps))
            self.say(f"step {progress.step:>{width}}/{progress.steps}  {progress}")
