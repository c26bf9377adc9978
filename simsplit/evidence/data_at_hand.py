"""Data and models of a paper's scenarios lie in folders; this module checks whether they do."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from simsplit.scenario import Scenario, scenario_of

DATA = Path("data")
"""The folder of data sets that shipped scenarios name."""
_SOURCES = ("source", "public", "support")
_HUB = {
    "cifar10": "uoft-cs/cifar10",
    "mnist": "ylecun/mnist",
    "sst2": "stanfordnlp/sst2",
    "cola": "nyu-mll/glue (cola)",
    "rte": "nyu-mll/glue (rte)",
    "gsm8k": "openai/gsm8k (main)",
    "codealpaca": "sahil2801/CodeAlpaca-20k",
    "wikitext2": "Salesforce/wikitext (wikitext-2-raw-v1)",
}
"""Last folder of a path -> the data set on the Hugging Face hub that it holds."""


def move_data(scenario: Scenario, folder: Path) -> Scenario:
    """Return a scenario that reads from `folder` in place of ./data."""
    moved = {
        f"data.{name}.path": str(folder / _below_data(path)) for name, path in _list_paths(scenario)
    }
    return scenario_of(scenario, moved)


def explain_absence(scenario: Scenario, models: Mapping[str, str]) -> str | None:
    """Return what is not at hand and where it comes from; None if all is.

    `models` are folders of models that a command makes, with the command.
    """
    for _, path in _list_paths(scenario):
        if not path.is_dir():
            hub = _HUB.get(path.name)
            source = f"parquet files of {hub} on the Hugging Face hub" if hub else "parquet files"
            return (
                f"there is no folder {path}; it should hold the {source}. If they lie elsewhere, "
                f"in a folder {_below_data(path)} of FOLDER: --data FOLDER"
            )
    name = getattr(scenario.model, "name", None)
    if isinstance(name, str) and name in models and not Path(name).is_dir():
        return f"there is no model in {name}; make it first, in minutes: {models[name]}"
    return None


def _list_paths(scenario: Scenario) -> Iterator[tuple[str, Path]]:
    """Yield the relative paths of data, each with the field of data that has it."""
    for name in _SOURCES:
        path = getattr(getattr(scenario.data, name), "path", None)
        if isinstance(path, str | Path) and path:
            yield name, Path(path)


def _below_data(path: Path) -> Path:
    return path.relative_to(DATA) if path.is_relative_to(DATA) else path
