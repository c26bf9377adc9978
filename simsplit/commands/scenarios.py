"""`simsplit validate`, `new`, `schema` and `list` help to write scenario files."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simsplit.commands import options
from simsplit.errors import ScenarioError, SimsplitError
from simsplit.showing.saying import echo, say

if TYPE_CHECKING:
    from simsplit.scenario import Scenario


def validate(
    file: options.File,
    set_: options.Set = None,
    plugin: options.Plugin = None,
    as_json: options.Json = False,
) -> None:
    """Check a scenario without running it; say what it would send."""
    from simsplit.scenario import has_sweep, load_scenario, load_sweep
    from simsplit.scenario.refusals import list_warnings
    from simsplit.terminal.documents import (
        describe_cells,
        describe_scenario,
        describe_search,
        document_mistakes,
        document_scenario,
    )

    overrides, known = options.parse_pairs(set_ or []), options.load_plugins(plugin)
    try:
        if has_sweep(file, overrides):
            sweep = load_sweep(file, overrides, known)
            cells = sweep.cells
            names = [cell.name for cell in cells]
            scenarios = [cell.scenario for cell in cells]
            words, warnings = describe_cells(names), list_warnings(cells[0].scenario)
            document: dict[str, object] = {"valid": True, "cells": names}
            if sweep.search is not None:
                words, document = describe_search(sweep), {"valid": True, "search": len(cells)}
        else:
            scenario = load_scenario(file, overrides, known)
            scenarios = [scenario]
            words, document = describe_scenario(scenario), document_scenario(scenario)
            warnings = list_warnings(scenario)
        warnings = [*warnings, *_divide_data(scenarios)]
    except ScenarioError as error:
        if not as_json:
            raise
        options.print_json(document_mistakes(error))
        raise typer.Exit(2) from None
    if plugin:
        warnings = [*warnings, *_rehearse(scenarios)]
    if as_json:
        options.print_json({"file": str(file), **document, "warnings": warnings})
        return
    echo(f"{file}: {words}")
    for warning in warnings:
        say(f"warning: {warning}")


def _divide_data(scenarios: "list[Scenario]") -> list[str]:
    """Read data that are at hand and small, divide them once each, and return warnings of them."""
    from simsplit.scenario.refusals import list_data_warnings

    warnings: dict[str, None] = {}
    for scenario in {repr((each.data, each.clients)): each for each in scenarios}.values():
        if getattr(scenario.data.source, "is_quick", False):  # texts have no such property
            warnings |= dict.fromkeys(list_data_warnings(scenario, scenario.prepare_data()))
    return [*warnings]


def _rehearse(scenarios: "list[Scenario]") -> list[str]:
    """Rehearse one scenario for each choice of plugins' parts, and return warnings."""
    import torch

    from simsplit.assembly.rehearsal import list_own_parts
    from simsplit.running.rehearsing import rehearse

    chosen = {list_own_parts(each): each for each in scenarios}.values()
    found = [rehearse(scenario, None, torch.device("cpu")) for scenario in chosen]
    return [*dict.fromkeys(warning for warnings in found for warning in warnings)]


def new(
    name: Annotated[
        str | None, typer.Argument(help="Name of the scenario, and of its file.")
    ] = None,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="SCENARIO",
            help="The file or shipped scenario to start from.",
            autocompletion=options.complete_scenario_names,
        ),
    ] = "quickstart",
    plugin: Annotated[
        str | None,
        typer.Option(metavar="EXAMPLE", help="Copy an example of a plugin instead, such as sign."),
    ] = None,
) -> None:
    """Write a scenario file of your own to start from, or a plugin."""
    if plugin is not None:
        from simsplit.scenario.shipped import start_plugin

        file = start_plugin(plugin, Path())
        echo(f"{file}: an example of a plugin; try it: simsplit list --plugin {file}")
        return
    if name is None:
        raise SimsplitError("new: give the scenario a name, or --plugin EXAMPLE")
    from simsplit.scenario.files import TABLES
    from simsplit.scenario.schema import SCHEMA_FILE, start_file

    if name.lower().endswith(TABLES):
        raise SimsplitError(
            f"new: '{name}' is named as a table of data; give the scenario a name of its own, and "
            f"set data.source to {{kind: table, path: {name}, target: COLUMN}} in it"
        )
    file = start_file(name, from_, Path())
    echo(f"{file}: a copy of {from_}; {SCHEMA_FILE} beside it tells editors its fields")
    echo(f"check it: simsplit validate {file}")


def cite(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="A scenario or sweep, a shipped one's name, or the folder of a run or sweep; "
            "without one, all papers on record.",
            autocompletion=options.complete_scenario_names,
        ),
    ] = None,
    set_: options.Set = None,
    plugin: options.Plugin = None,
    as_json: options.Json = False,
) -> None:
    """Print BibTeX of the papers that a scenario uses."""
    from simsplit import __version__
    from simsplit.catalogue import citing

    found, unknown = citing.read_references(), []
    if file is not None:
        scenarios = [each for one in _list_files(file) for each in _load_all(one, set_, plugin)]
        parts = frozenset[str]().union(*(citing.list_parts(each) for each in scenarios))
        found = citing.choose_references(parts)
        unknown = sorted(parts - frozenset[str]().union(*(each.parts for each in found)))
    if as_json:
        options.print_json(
            {
                "papers": [
                    {"key": each.key, "parts": sorted(each.parts), **each.fields} for each in found
                ],
                "without_paper": unknown,
            }
        )
        return
    version, commit = _read_origin(file)
    own = citing.cite_software(version or __version__, commit)
    echo("\n\n".join([own, *(each.bibtex for each in found)]))
    if unknown:
        say(f"no paper is on record of {', '.join(unknown)}")


def _read_origin(file: Path | None) -> tuple[str | None, str | None]:
    """Return the version and commit with which runs were made; None where a folder has not one."""
    from simsplit.foreign import read_facts
    from simsplit.results.directory import ENVIRONMENT

    files = [] if file is None else [file / ENVIRONMENT, *file.glob(f"*/{ENVIRONMENT}")]
    facts = [read_facts(each) for each in files if each.is_file()]
    packages = [each.get("packages") for each in facts]
    versions = {
        str(each.get("simsplit")) if isinstance(each, dict) else "None" for each in packages
    }
    return _choose_word(versions), _choose_word({str(each.get("commit")) for each in facts})


def _choose_word(words: set[str]) -> str | None:
    """Return the one word that may stand in an entry, or None; a run may be anybody's."""
    (word,) = words if len(words) == 1 else ("None",)
    return word if word != "None" and re.fullmatch(r"[\w.+-]+", word, re.ASCII) else None


def _list_files(file: Path) -> list[Path]:
    """List the scenarios of a run's or a sweep's folder; another path stands for itself."""
    if not file.is_dir():
        return [file]
    from simsplit.results import SCENARIO

    own = [file / SCENARIO, *sorted(file.glob(f"*/{SCENARIO}"))]
    if not (files := [each for each in own if each.is_file()]):
        raise SimsplitError(f"{file} is no folder of a run or sweep (no {SCENARIO} in it)")
    return files


def _load_all(file: Path, set_: list[str] | None, plugin: list[str] | None) -> "list[Scenario]":
    """Load a scenario, or each cell of a sweep."""
    from simsplit.scenario import has_sweep, load_scenario, load_sweep

    overrides, known = options.parse_pairs(set_ or []), options.load_plugins(plugin)
    if has_sweep(file, overrides):
        return [cell.scenario for cell in load_sweep(file, overrides, known).cells]
    return [load_scenario(file, overrides, known)]


def schema(plugin: options.Plugin = None) -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from simsplit.scenario import file_schema

    echo(json.dumps(file_schema(options.load_plugins(plugin)), indent=2))


def list_(
    what: Annotated[
        str | None, typer.Argument(help="methods, models, data, partitions, schedules, ...")
    ] = None,
    part: Annotated[str | None, typer.Argument(help="One of them alone, by its kind.")] = None,
    format_: options.Format = "table",
    plugin: options.Plugin = None,
    as_json: options.Json = False,
) -> None:
    """List the parts that a scenario can name, and their fields."""
    from simsplit.catalogue import tabulate_catalogue
    from simsplit.terminal.documents import document_tables
    from simsplit.terminal.printing import print_table

    tables = tabulate_catalogue(what, options.load_plugins(plugin), part)
    if as_json:
        options.print_json(document_tables(tables))
        return
    for table in tables:
        print_table(table, format_)
