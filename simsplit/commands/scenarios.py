"""`simsplit validate`, `new`, `schema` and `list` help to write scenario files."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simsplit.commands.options import (
    File,
    Format,
    Json,
    Plugin,
    Set,
    complete_scenario_names,
    load_plugins,
    parse_pairs,
    print_json,
)
from simsplit.errors import ScenarioError
from simsplit.terminal.saying import echo, say

if TYPE_CHECKING:
    from simsplit.scenario import Scenario


def validate(file: File, set_: Set = None, plugin: Plugin = None, as_json: Json = False) -> None:
    """Check a scenario without running it; say what it would send."""
    from simsplit.scenario import has_sweep, load_scenario, load_sweep
    from simsplit.scenario.warnings import list_warnings
    from simsplit.terminal.documents import (
        describe_cells,
        describe_scenario,
        describe_search,
        document_mistakes,
        document_scenario,
    )

    overrides, known = parse_pairs(set_ or []), load_plugins(plugin)
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
        _divide_data(scenarios)
    except ScenarioError as error:
        if not as_json:
            raise
        print_json(document_mistakes(error))
        raise typer.Exit(2) from None
    if plugin:
        _rehearse(scenarios)
    if as_json:
        print_json({"file": str(file), **document, "warnings": warnings})
        return
    echo(f"{file}: {words}")
    for warning in warnings:
        say(f"warning: {warning}")


def _divide_data(scenarios: "list[Scenario]") -> None:
    """Read data that are at hand and small, and divide them among the clients, once each."""
    for scenario in {repr((each.data, each.clients)): each for each in scenarios}.values():
        if getattr(scenario.data.source, "is_quick", False):  # texts have no such property
            scenario.prepare_data()


def _rehearse(scenarios: "list[Scenario]") -> None:
    """Rehearse one scenario for each choice of plugins' parts."""
    import torch

    from simsplit.rehearsal import list_own_parts, rehearse

    for scenario in {list_own_parts(each): each for each in scenarios}.values():
        rehearse(scenario, None, torch.device("cpu"))


def new(
    name: Annotated[str, typer.Argument(help="Name of the scenario, and of its file.")],
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="SCENARIO",
            help="The file or shipped scenario to start from.",
            autocompletion=complete_scenario_names,
        ),
    ] = "quickstart",
) -> None:
    """Write a scenario file of your own to start from."""
    from simsplit.scenario.schema import SCHEMA_FILE, start_file

    file = start_file(name, from_, Path())
    echo(f"{file}: a copy of {from_}; {SCHEMA_FILE} beside it tells editors its fields")
    echo(f"check it: simsplit validate {file}")


def cite(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="A scenario or sweep, or a shipped one's name; without one, all papers on record.",
            autocompletion=complete_scenario_names,
        ),
    ] = None,
    set_: Set = None,
    plugin: Plugin = None,
    as_json: Json = False,
) -> None:
    """Print BibTeX of the papers that a scenario uses."""
    from simsplit import __version__
    from simsplit.catalogue.citing import OWN, choose_references, list_parts, read_references

    found, unknown = read_references(), []
    if file is not None:
        scenarios = _load_all(file, set_, plugin)
        parts = frozenset[str]().union(*(list_parts(each) for each in scenarios))
        found = choose_references(parts)
        unknown = sorted(parts - frozenset[str]().union(*(each.parts for each in found)))
    if as_json:
        print_json(
            {
                "papers": [
                    {"key": each.key, "parts": sorted(each.parts), **each.fields} for each in found
                ],
                "without_paper": unknown,
            }
        )
        return
    echo("\n\n".join([OWN % __version__, *(each.bibtex for each in found)]))
    if unknown:
        say(f"no paper is on record of {', '.join(unknown)}")


def _load_all(file: Path, set_: list[str] | None, plugin: list[str] | None) -> "list[Scenario]":
    """Load a scenario, or each cell of a sweep."""
    from simsplit.scenario import has_sweep, load_scenario, load_sweep

    overrides, known = parse_pairs(set_ or []), load_plugins(plugin)
    if has_sweep(file, overrides):
        return [cell.scenario for cell in load_sweep(file, overrides, known).cells]
    return [load_scenario(file, overrides, known)]


def schema(plugin: Plugin = None) -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from simsplit.scenario import file_schema

    echo(json.dumps(file_schema(load_plugins(plugin)), indent=2))


def list_(
    what: Annotated[
        str | None, typer.Argument(help="methods, models, data, partitions, schedules, ...")
    ] = None,
    part: Annotated[str | None, typer.Argument(help="One of them alone, by its kind.")] = None,
    format_: Format = "table",
    plugin: Plugin = None,
    as_json: Json = False,
) -> None:
    """List the parts that a scenario can name, and their fields."""
    from simsplit.catalogue import tabulate_catalogue
    from simsplit.terminal.documents import document_tables
    from simsplit.terminal.printing import print_table

    tables = tabulate_catalogue(what, load_plugins(plugin), part)
    if as_json:
        print_json(document_tables(tables))
        return
    for table in tables:
        print_table(table, format_)
