"""Early stopping: counts the evaluations since a figure last improved."""

from simsplit.progress import Observer, RoundTold
from simsplit.running.live import LiveRun
from simsplit.scenario.fields import StopConfig


class Stopping(Observer):
    """Stops a run before its last round."""

    def __init__(self, config: StopConfig | None, live: LiveRun) -> None:
        self.config, self.live = config, live

    @property
    def enough(self) -> bool:
        """Whether there is to be no further round."""
        progress = self.live.progress
        if progress.round >= self.live.program.rounds:
            return True
        return self.config is not None and progress.waited >= self.config.patience

    def round(self, told: RoundTold) -> None:
        """Compare; a warm-up's figures say nothing of when to stop."""
        config, progress = self.config, self.live.progress
        if config is None or not told.main or config.metric not in told.figures:
            return
        value = told.figures[config.metric] * (-1 if config.smaller_is_better else 1)
        if progress.best is None or value > progress.best + config.min_delta:
            progress.best, progress.waited = value, 0
        else:
            progress.waited += 1
