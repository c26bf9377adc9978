"""A search's answer is a scenario file: its best setting, with a comment on where it comes from."""

import re
import textwrap
from pathlib import Path

import yaml

from simsplit.errors import RunError
from simsplit.foreign import strip_controls
from simsplit.plugins import Given
from simsplit.report.grouping import Entry
from simsplit.report.ranking import Ranking, describe_best
from simsplit.results import SCENARIO
from simsplit.results.directory import replace
from simsplit.scenario import load_scenario
from simsplit.scenario.shortening import shorten


def write_best(ranking: Ranking, file: Path, plugins: Given = ()) -> None:
    """Write the best setting as a scenario file; raise RunError if the file exists already."""
    if file.exists():
        raise RunError(f"{file} exists already; choose another name")
    entry = ranking.best.row.entries[0]
    scenario = load_scenario(entry.run.path / SCENARIO, plugins=plugins)
    values = shorten(scenario, plugins)
    values["name"] = re.sub(r"[^A-Za-z0-9._-]", "-", file.stem)
    about = "".join(f"# {line}\n" for line in _describe_origin(ranking, entry))
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    try:
        replace(file, f"{about}{text}".encode())
    except OSError as error:
        raise RunError(f"cannot write {file}: {error}") from None


def _describe_origin(ranking: Ranking, entry: Entry) -> list[str]:
    """Return lines that say where the best setting comes from."""
    said = strip_controls(describe_best(ranking)).replace("\n", " ")
    whole = f"{said}. It was ranked among {len(ranking.places)} settings of {entry.sweep_name}."
    return textwrap.wrap(whole, 98, break_long_words=False)
