"""How fast a run goes and what remains of it, from what its observers are told."""

import time

from simsplit.progress import Plan, RoundTold


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def rate_of(steps: float, samples: float, seconds: float) -> str:
    """Steps and samples per second in words; nothing where there is nothing to divide."""
    if seconds <= 0 or not steps:
        return ""
    words = [f"{_short(steps / seconds)} steps/s"]
    if samples:
        words.append(f"{_short(samples / seconds)} samples/s")
    return ", ".join(words)


def _short(number: float) -> str:
    return f"{number:,.1f}" if number < 10 else f"{number:,.0f}"


class Pace:
    """A run's rate, and how long is left, from how long it took so far."""

    def __init__(self, plan: Plan) -> None:
        self.rounds, self.first = plan.rounds, plan.done
        self.done, self.part = plan.done, 0.0
        """Rounds, and what is done of the next one's steps."""
        self.started = self.round_started = time.monotonic()
        self.trained_s, self.steps, self.per_step = 0.0, 0, 0.0
        """Of this round: seconds with training, and steps; of the last one: samples per step."""
        self.beside = ""
        """What is done beside training, in words."""
        self._what, self._what_started = "", 0.0

    def step(self, done: int, total: int) -> None:
        """So many steps of a round are done."""
        self.part, self.steps = done / total, done
        self.trained_s = time.monotonic() - self.round_started

    def work(self, what: str, done: int, total: int) -> None:
        """So many pieces of an attack's work are done."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._what_started = what, now
        self.beside = what
        if total:
            left = (now - self._what_started) * (total - done) / max(done, 1)
            self.beside = f"{what}: {done:,} of {total:,}  {clock(left)} left"

    def round(self, told: RoundTold) -> None:
        """A round is done, and what was told within it counts no more."""
        steps, samples = told.row.steps, told.row.samples
        self.steps, self.per_step = steps, samples / steps if steps else 0.0
        self.done, self.part, self.beside, self._what = told.number, 0.0, "", ""
        self.round_started = time.monotonic()

    @property
    def rate(self) -> str:
        """Steps and samples per second of this round, or of the last one until this has any."""
        return rate_of(self.steps, self.steps * self.per_step, self.trained_s)

    @property
    def reached(self) -> float:
        """Rounds done, with the part of the current one."""
        return self.done + self.part

    @property
    def begun(self) -> bool:
        """Whether there is anything to tell the pace from."""
        return self.reached > self.first

    def left(self) -> float:
        """Seconds until the last round ends."""
        passed = time.monotonic() - self.started
        return passed * (self.rounds - self.reached) / max(self.reached - self.first, 1e-9)
