"""The pace of a run gives its rate and the time left, computed from what observers receive."""

import math
import time

from simsplit.progress import RoundEnded, RunPlan


def format_clock(seconds: float) -> str:
    """Return seconds as m:ss or h:mm:ss; "?" for a number that a damaged file may have."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_rate(steps: float, samples: float, seconds: float) -> str:
    """Return steps and samples per second in words; empty if no steps or no time have passed."""
    if seconds <= 0 or not steps:
        return ""
    words = [f"{_format_number(steps / seconds)} steps/s"]
    if samples:
        words.append(f"{_format_number(samples / seconds)} samples/s")
    return ", ".join(words)


def _format_number(number: float) -> str:
    return f"{number:,.1f}" if number < 10 else f"{number:,.0f}"


class Pace:
    """A run's rate, and the time left, estimated from the time so far."""

    def __init__(self, plan: RunPlan) -> None:
        self.rounds, self.first = plan.rounds, plan.done
        self.done, self.part = plan.done, 0.0
        """The rounds done, and the share of the next round's steps done."""
        self.started = self.round_started = time.monotonic()
        self.trained_s, self.steps, self.per_step = 0.0, 0, 0.0
        """Seconds of training and steps of this round; samples per step of the last round."""
        self.beside = ""
        """The work other than training that is going on, in words."""
        self._what, self._what_started = "", 0.0

    def step(self, done: int, total: int) -> None:
        """Note the steps of the round that are done."""
        self.part, self.steps = done / total, done
        self.trained_s = time.monotonic() - self.round_started

    def work(self, what: str, done: int, total: int) -> None:
        """Note the pieces of an attack's work that are done."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._what_started = what, now
        self.beside = what
        if total:
            left = (now - self._what_started) * (total - done) / max(done, 1)
            self.beside = f"{what}: {done:,} of {total:,}  {format_clock(left)} left"

    def round(self, ended: RoundEnded) -> None:
        """Note that a round is done, and forget the progress within it."""
        steps, samples = ended.row.steps, ended.row.samples
        self.steps, self.per_step = steps, samples / steps if steps else 0.0
        self.done, self.part, self.beside, self._what = ended.number, 0.0, "", ""
        self.round_started = time.monotonic()

    @property
    def rate(self) -> str:
        """Steps and samples per second of this round, or of the last one before the first step."""
        return format_rate(self.steps, self.steps * self.per_step, self.trained_s)

    @property
    def reached(self) -> float:
        """The rounds done, with the share of the current one."""
        return self.done + self.part

    @property
    def has_begun(self) -> bool:
        """Whether there is progress from which to estimate the pace."""
        return self.reached > self.first

    def estimate_left(self) -> float:
        """Estimate the seconds until the last round ends."""
        passed = time.monotonic() - self.started
        return passed * (self.rounds - self.reached) / max(self.reached - self.first, 1e-9)
