"""Event files for TensorBoard: figures, histograms over clients, hyper-parameters, pictures."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from simsplit.observers.tracking import Tracker, TrackerConfig, fields_of, title_of
from simsplit.progress import Plan, Status


class TensorBoardConfig(TrackerConfig):
    """Event files for TensorBoard, in the run directory unless told otherwise."""

    kind: Literal["tensorboard"] = "tensorboard"
    folder: Path | None = None
    """Holds a folder for each run; null: the run's own `tensorboard`."""
    run_name: str | None = None
    """The run's folder in `folder`; null: as the run directory is called."""

    def build(self, path: Path) -> "TensorBoard":
        if self.folder is None:
            return TensorBoard(path, path / "tensorboard")
        return TensorBoard(path, self.folder / (self.run_name or title_of(path)))


class TensorBoard(Tracker):
    """Writes event files; after a resume another one, of the rounds that the others lack."""

    def __init__(self, path: Path, folder: Path) -> None:
        super().__init__(path)
        self.folder = folder

    def open(self, plan: Plan) -> int:
        del plan
        from torch.utils.tensorboard import SummaryWriter

        before = sorted(self.folder.glob("events.out.tfevents.*"))
        known = max(map(_last_step, before), default=0)
        _hush_writers()
        self.writer = SummaryWriter(str(self.folder))
        if not before:
            self._describe()
        return known

    def _describe(self) -> None:
        """The scenario's fields, for the table that compares runs."""
        from torch.utils.tensorboard.summary import hparams

        for summary in hparams(fields_of(self.path), {}):
            self.writer._get_file_writer().add_summary(summary)
        self.writer.flush()

    def keep(
        self, number: int, figures: Mapping[str, float], spread: Mapping[str, Sequence[float]]
    ) -> None:
        import numpy as np

        for name, value in figures.items():
            # as a tensor: a plain scalar is of single precision, in which bytes are not whole
            self.writer.add_scalar(
                name, np.float64(value), number, new_style=True, double_precision=True
            )
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
        del status
        self.writer.close()


def _hush_writers() -> None:
    """Let TensorBoard's writing threads die quietly: the next write raises what ended them."""
    before = threading.excepthook
    if getattr(before, "without_writers", False):
        return

    def hook(told: threading.ExceptHookArgs) -> None:
        if type(told.thread).__name__ != "_AsyncWriterThread":
            before(told)

    hook.without_writers = True  # type: ignore[attr-defined]
    threading.excepthook = hook


def _last_step(file: Path) -> int:
    """The last round in an event file, which may end in a torn one."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return max((event.step for event in EventFileLoader(str(file)).Load()), default=0)
