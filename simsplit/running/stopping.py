"""Early stopping counts the evaluations since a figure last improved."""

from simsplit.progress import Observer, RoundEnded
from simsplit.running.live import LiveRun
from simsplit.scenario.fields import StopConfig


class Stopping(Observer):
    """The observer that ends a run before its last round."""

    def __init__(self, config: StopConfig | None, live: LiveRun) -> None:
        self.config, self.live = config, live

    @property
    def is_over(self) -> bool:
        """Whether the run has no further round."""
        progress = self.live.progress
        if progress.round >= self.live.program.rounds:
            return True
        return self.config is not None and progress.waited >= self.config.patience

    def round(self, ended: RoundEnded) -> None:
        """Compare the round's figure with the best, except in a warm-up."""
        config, progress = self.config, self.live.progress
        if config is None or not ended.main or config.metric not in ended.figures:
            return
        value = ended.figures[config.metric] * (-1 if config.smaller_is_better else 1)
        if progress.best is None or value > progress.best + config.min_delta:
            progress.best, progress.waited = value, 0
        else:
            progress.waited += 1
