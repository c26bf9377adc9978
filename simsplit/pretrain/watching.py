"""What a pretraining tells whoever watches it."""

from collections.abc import Callable
from dataclasses import dataclass

Say = Callable[[str], None]


@dataclass(frozen=True)
class Progress:
    """How far a pretraining has come."""

    step: int
    steps: int
    loss: float
    tokens: int
    """Tokens seen."""
    elapsed_s: float

    @property
    def rate(self) -> float:
        """Tokens per second since training began."""
        return self.tokens / max(self.elapsed_s, 1e-9)

    @property
    def left_s(self) -> float:
        """Seconds until the last step."""
        return self.elapsed_s * (self.steps - self.step) / self.step

    def __str__(self) -> str:
        return f"loss {self.loss:.3f}  {self.rate:,.0f} tokens/s  {self.left_s:,.0f} s left"


Watch = Callable[[Progress], None]


class Tenths:
    """A line for every tenth: for logs, pipes and caches."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.said = 0

    def __call__(self, progress: Progress) -> None:
        """Say it if it is the time."""
        tenth = 10 * progress.step // progress.steps
        if tenth > self.said:
            self.said = tenth
            width = len(str(progress.steps))
            self.say(f"step {progress.step:>{width}}/{progress.steps}  {progress}")
