"""MLflow tracks runs on a server, or in a local database of the run or the sweep."""

import logging
import os
import statistics
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from filelock import FileLock

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
from simsplit.results.directory import make_folder

if TYPE_CHECKING:
    from mlflow import MlflowClient

_STATES = {"finished": "FINISHED", "failed": "FAILED"}
"""MLflow's names of how a run ended; one that was interrupted or pruned is killed."""
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # when it is imported, it sets the levels that `hush` has set before
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    # a server that is down must not delay a run by minutes
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
"""Environment variables of MLflow, set unless the user has set them."""
_MOST_PARAMETERS = 100
"""Most parameters in one call, a limit of MLflow."""
_MOST_CHARACTERS = 500
"""Most characters of a parameter, a limit that every server allows."""


class MLflowConfig(TrackerConfig):
    """A run in MLflow, by default in a local database."""

    kind: Literal["mlflow"] = "mlflow"
    uri: str | None = None
    """The URI of a server or database; null: mlflow/runs.db in the run or sweep directory."""
    experiment: str | None = None
    """The name of MLflow's experiment; null: the sweep's folder, else the scenario's name."""
    run_name: str | None = None
    """The run's name in MLflow; null: the name of the run directory."""

    def build(self, path: Path) -> "MLflow":
        return MLflow(path, self)


class MLflow(Tracker):
    """A tracker of one MLflow run, which a resumed run continues."""

    def __init__(self, path: Path, config: MLflowConfig) -> None:
        super().__init__(path)
        self.config = config
        self.note = path / "mlflow.json"

    @contextmanager
    def hush(self) -> Iterator[None]:
        """Open a context without the messages of MLflow and its database."""
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield

    def open(self, plan: RunPlan) -> int:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        home = (self.sweep or self.path.absolute()) / "mlflow"
        if self.config.uri is not None:
            return self._open_run(plan, self.config.uri, None)
        make_folder(home)
        for name in ("runs.lock", "runs.db", "artifacts"):
            refuse_link(home / name)
        uri, pictures = f"sqlite:///{home / 'runs.db'}", (home / "artifacts").as_uri()
        # the cells of a sweep begin together, and only one may create the tables
        with FileLock(home / "runs.lock"):
            return self._open_run(plan, uri, pictures)

    def _open_run(self, plan: RunPlan, uri: str, pictures: str | None) -> int:
        """Open the run and return its last round; `pictures` is a local place for pictures."""
        from mlflow import MlflowClient

        self.client = MlflowClient(uri)
        before = read_note(self.note)
        if before.get("uri") == uri:
            self.run = str(before["run"])
            self.client.update_run(self.run, status="RUNNING")
        else:
            name = self.config.experiment or (self.sweep.name if self.sweep else plan.name)
            experiment = _get_experiment(self.client, name, pictures)
            title = self.config.run_name or make_title(self.path)
            self.run = str(self.client.create_run(experiment, run_name=title).info.run_id)
            write_note(self.note, uri=uri, run=self.run)
        self._log_fields(self.client.get_run(self.run).data.params)
        last = self.client.get_metric_history(self.run, "steps")
        return max((metric.step for metric in last), default=0)

    def _log_fields(self, known: Mapping[str, str]) -> None:
        """Log the scenario's fields; tag those that have changed, as no parameter may change."""
        from mlflow.entities import Param

        flat = flatten_scenario(self.path)
        fields = {name: str(value)[:_MOST_CHARACTERS] for name, value in flat.items()}
        new = [Param(name, value) for name, value in fields.items() if name not in known]
        for start in range(0, len(new), _MOST_PARAMETERS):
            self.client.log_batch(self.run, params=new[start : start + _MOST_PARAMETERS])
        for name in fields.keys() & known.keys():
            if fields[name] != known[name]:
                self.client.set_tag(self.run, f"resumed.{name}", fields[name])

    def keep(
        self, number: int, figures: Mapping[str, float], spread: Mapping[str, Sequence[float]]
    ) -> None:
        from mlflow.entities import Metric

        values, now = dict(figures), int(time.time() * 1000)
        for name, each in spread.items():  # MLflow has no histograms
            ends = {"min": min(each), "median": statistics.median(each), "max": max(each)}
            values |= {f"clients/{name}/{end}": float(value) for end, value in ends.items()}
        metrics = [Metric(name, value, now, number) for name, value in values.items()]
        self.client.log_batch(self.run, metrics=metrics)

    def show(self, picture: Path) -> None:
        self.client.log_artifact(self.run, str(picture))

    def close(self, status: Status) -> None:
        self.client.set_terminated(self.run, _STATES.get(status, "KILLED"))


def _get_experiment(client: "MlflowClient", name: str, pictures: str | None) -> str:
    """Return an experiment's number; create it if no other cell of the sweep just did."""
    from mlflow.exceptions import MlflowException

    if (experiment := client.get_experiment_by_name(name)) is None:
        try:
            return str(client.create_experiment(name, artifact_location=pictures))
        except MlflowException:
            if (experiment := client.get_experiment_by_name(name)) is None:
                raise
    return str(experiment.experiment_id)
