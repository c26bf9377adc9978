"""Runs in MLflow: on a server, or in a database of the run's or the sweep's own."""

import logging
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from filelock import FileLock

from simsplit.observers.tracking import Note, Tracker, TrackerConfig, fields_of, title_of
from simsplit.progress import Plan, Status

if TYPE_CHECKING:
    from mlflow import MlflowClient

_STATES = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # a server that is down costs seconds, once, and not minutes
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
"""Of MLflow, where the user has not set them."""
_AT_ONCE = 100
"""Parameters that MLflow takes in one call."""
_LONGEST = 500
"""Characters of a parameter that every server takes."""


class MLflowConfig(TrackerConfig):
    """A run in MLflow, in a local database unless told otherwise."""

    kind: Literal["mlflow"] = "mlflow"
    uri: str | None = None
    """A server's or database's address; null: mlflow/runs.db of the run directory or the sweep."""
    experiment: str | None = None
    """What MLflow groups runs under; null: the scenario's name, or the sweep's folder."""
    run_name: str | None = None
    """What the run is called there; null: as the run directory is called."""

    def build(self, path: Path) -> "MLflow":
        return MLflow(path, self)


class MLflow(Tracker):
    """Keeps one MLflow run, which a resumed run goes on with."""

    def __init__(self, path: Path, config: MLflowConfig) -> None:
        super().__init__(path)
        self.config = config
        self.note = Note(path / "mlflow.json")

    @contextmanager
    def hush(self) -> Iterator[None]:
        """Open a context without the messages of MLflow and its database."""
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield

    def open(self, plan: Plan) -> int:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        home = (self.sweep or self.path.absolute()) / "mlflow"
        if self.config.uri is not None:
            return self._open(plan, self.config.uri, None)
        home.mkdir(exist_ok=True)
        with FileLock(home / "runs.lock"):  # cells begin together, and one of them makes the tables
            return self._open(plan, f"sqlite:///{home / 'runs.db'}", (home / "artifacts").as_uri())

    def _open(self, plan: Plan, uri: str, pictures: str | None) -> int:
        """The last round there; `pictures` is where those go, if not to the server."""
        from mlflow import MlflowClient

        self.client = MlflowClient(uri)
        before = self.note.read()
        if before.get("uri") == uri:
            self.run = str(before["run"])
            self.client.update_run(self.run, status="RUNNING")
        else:
            self.run = self._made(plan, pictures)
            self.note.write(uri=uri, run=self.run)
        known = self.client.get_run(self.run).data
        self._describe(known.params)
        last = self.client.get_metric_history(self.run, "steps")
        return max((metric.step for metric in last), default=0)

    def _made(self, plan: Plan, pictures: str | None) -> str:
        """A new run's number."""
        name = self.config.experiment or (self.sweep.name if self.sweep else plan.name)
        experiment = _experiment(self.client, name, pictures)
        run_name = self.config.run_name or title_of(self.path)
        return str(self.client.create_run(experiment, run_name=run_name).info.run_id)

    def _describe(self, known: Mapping[str, str]) -> None:
        """The scenario's fields; one that has changed since goes beside what it was."""
        from mlflow.entities import Param

        told = {name: str(value)[:_LONGEST] for name, value in fields_of(self.path).items()}
        new = [Param(name, value) for name, value in told.items() if name not in known]
        for start in range(0, len(new), _AT_ONCE):
            self.client.log_batch(self.run, params=new[start : start + _AT_ONCE])
        for name in told.keys() & known.keys():
            if told[name] != known[name]:
                self.client.set_tag(self.run, f"resumed.{name}", told[name])

    def keep(
        self, number: int, figures: Mapping[str, float], spread: Mapping[str, Sequence[float]]
    ) -> None:
        from mlflow.entities import Metric

        told = {**figures, **_quartiles(spread)}
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, number) for name, value in told.items()]
        self.client.log_batch(self.run, metrics=metrics)

    def show(self, picture: Path) -> None:
        self.client.log_artifact(self.run, str(picture))

    def close(self, status: Status) -> None:
        self.client.set_terminated(self.run, _STATES[status])


def _experiment(client: "MlflowClient", name: str, pictures: str | None) -> str:
    """An experiment's number; another cell of the sweep may have just made it."""
    from mlflow.exceptions import MlflowException

    if (found := client.get_experiment_by_name(name)) is None:
        try:
            return str(client.create_experiment(name, artifact_location=pictures))
        except MlflowException:
            if (found := client.get_experiment_by_name(name)) is None:
                raise
    return str(found.experiment_id)


def _quartiles(spread: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """MLflow has no histograms: the least, the middle and the most over clients."""
    ends: dict[str, Callable[[Sequence[float]], float]]
    ends = {"min": min, "median": statistics.median, "max": max}
    return {
        f"clients/{name}/{end}": float(of(values))
        for name, values in spread.items()
        for end, of in ends.items()
    }
