"""TensorBoard shows metrics, histograms over clients, hyper-parameters and pictures of runs."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from simsplit.foreign import refuse_link
from simsplit.observers.tracking import Tracker, TrackerConfig, flatten_scenario, make_title
from simsplit.progress import RunPlan, Status


class TensorBoardConfig(TrackerConfig):
    """Event files for TensorBoard, by default in the run directory."""

    kind: Literal["tensorboard"] = "tensorboard"
    folder: Path | None = None
    """The folder that holds each run's folder; null: `tensorboard` in the run directory."""
    run_name: str | None = None
    """The run's folder in `folder`; null: the name of the run directory."""

    def build(self, path: Path) -> "TensorBoard":
        if self.folder is None:
            return TensorBoard(path, path / "tensorboard")
        return TensorBoard(path, self.folder / (self.run_name or make_title(path)))


class TensorBoard(Tracker):
    """A writer of event files; a resumed run adds one for the rounds that the others lack."""

    def __init__(self, path: Path, folder: Path) -> None:
        super().__init__(path)
        self.folder = folder

    def open(self, plan: RunPlan) -> int:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        refuse_link(self.folder)
        before = sorted(self.folder.glob("events.out.tfevents.*"))
        known = max(map(_read_last_step, before), default=0)
        _hush_writers()
        self.writer = SummaryWriter(str(self.folder))
        if not before:  # for the table that compares runs
            for summary in hparams(flatten_scenario(self.path), {}):
                self.writer._get_file_writer().add_summary(summary)
            self.writer.flush()
        return known

    def keep(
        self, number: int, figures: Mapping[str, float], spread: Mapping[str, Sequence[float]]
    ) -> None:
        import numpy as np

        # a plain scalar has single precision, which cannot hold large counts of bytes
        precise = {"new_style": True, "double_precision": True}
        for name, value in figures.items():
            self.writer.add_scalar(name, np.float64(value), number, **precise)
        for name, values in spread.items():
            self.writer.add_histogram(f"clients/{name}", np.asarray(values), number)
        self.writer.flush()

    def show(self, picture: Path) -> None:
        import numpy as np
        from PIL import Image

        with Image.open(picture) as image:
            pixels = np.asarray(image.convert("RGB"))
        self.writer.add_image(picture.stem, pixels, self.known, dataformats="HWC")

    def close(self, status: Status) -> None:
        self.writer.close()


def _hush_writers() -> None:
    """Silence errors of TensorBoard's writing threads, since the next write raises them."""
    before = threading.excepthook
    if getattr(before, "without_writers", False):
        return

    def hook(args: threading.ExceptHookArgs) -> None:
        if type(args.thread).__name__ != "_AsyncWriterThread":
            before(args)

    hook.without_writers = True  # type: ignore[attr-defined]
    threading.excepthook = hook


def _read_last_step(file: Path) -> int:
    """Return the last round in an event file, which may end with an incomplete event."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return max((event.step for event in EventFileLoader(str(file)).Load()), default=0)
