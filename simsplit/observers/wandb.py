"""Weights & Biases tracks runs in offline files, which `wandb sync` uploads, or on a server."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal
from uuid import uuid4

from simsplit.foreign import refuse_link
from simsplit.observers.tracking import (
    Tracker,
    TrackerConfig,
    flatten_scenario,
    make_title,
    read_note,
    write_note,
)
from simsplit.progress import RunPlan, Status


class WandbConfig(TrackerConfig):
    """A run in Weights & Biases, by default offline."""

    kind: Literal["wandb"] = "wandb"
    mode: Literal["offline", "online"] = "offline"
    """offline: files in the run directory, for `wandb sync`. online: sent to a server."""
    project: str = "simsplit"
    """The project to which the run belongs."""
    entity: str | None = None
    """The user or team that owns the project; null: the default of wandb's settings."""
    run_name: str | None = None
    """The run's name in W&B; null: the name of the run directory."""

    def build(self, path: Path) -> "Wandb":
        return Wandb(path, self)


class Wandb(Tracker):
    """A tracker of one W&B run; after a resume it has several files, under one number."""

    def __init__(self, path: Path, config: WandbConfig) -> None:
        super().__init__(path)
        self.config = config
        self.note = path / "wandb.json"

    def open(self, plan: RunPlan) -> int:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        refuse_link(self.path / "wandb")
        before = read_note(self.note)
        self.id = str(before.get("run") or uuid4().hex[:12])
        self.run = wandb.init(
            mode=self.config.mode,
            project=self.config.project,
            entity=self.config.entity,
            name=self.config.run_name or make_title(self.path),
            group=self.sweep.name if self.sweep else None,
            id=self.id,
            resume="allow",
            dir=str(self.path),
            config=dict(flatten_scenario(self.path)),
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                x_save_requirements=False,
                init_timeout=20,
            ),
            reinit="create_new",
        )
        return int(before.get("rounds", 0))

    def keep(
        self, number: int, figures: Mapping[str, float], spread: Mapping[str, Sequence[float]]
    ) -> None:
        import wandb

        histograms = {f"clients/{n}": wandb.Histogram(list(each)) for n, each in spread.items()}
        self.run.log({**figures, **histograms}, step=number)
        write_note(self.note, run=self.id, rounds=number)

    def show(self, picture: Path) -> None:
        import wandb

        self.run.log({picture.stem: wandb.Image(str(picture))}, step=self.known)

    def close(self, status: Status) -> None:
        self.run.finish(exit_code=0 if status == "finished" else 1)
