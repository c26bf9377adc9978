"""`simsplit plan` says what a run or a sweep will take."""

from typing import Annotated

import typer

from simsplit.commands.options import File, Json, Plugin, Set, load_plugins, parse_pairs, print_json
from simsplit.errors import ScenarioError
from simsplit.showing.saying import say


def plan(
    file: File,
    *,
    set_: Set = None,
    no_timing: Annotated[
        bool, typer.Option("--no-timing", help="Time no step: without seconds on this machine.")
    ] = False,
    read_data: Annotated[
        bool,
        typer.Option(
            "--read-data", help="Read the data, wherever they are, where exact sizes need it."
        ),
    ] = False,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="A budget of the whole run; the noise that reaches it is printed.", min=0, max=500
        ),
    ] = None,
    plugin: Plugin = None,
    as_json: Json = False,
) -> None:
    """Say what a run will take, in bytes, memory and time."""
    from simsplit.forecasting.planning import plan as forecast_run
    from simsplit.forecasting.planning import plan_sweep
    from simsplit.scenario import has_sweep, load_scenario, load_sweep
    from simsplit.scenario.refusals import list_warnings
    from simsplit.terminal.forecasts import print_forecast, print_sweep_forecast

    overrides, known = parse_pairs(set_ or []), load_plugins(plugin)
    if has_sweep(file, overrides):
        if epsilon is not None:
            raise ScenarioError("sweep", "has many runs; --epsilon is for one scenario's")
        sweep = load_sweep(file, overrides, known)
        tell = (lambda cell: None) if as_json else (lambda cell: say(f"planning {cell}"))
        cells = plan_sweep(sweep, timing=not no_timing, read_data=read_data, tell=tell)
        if as_json:
            print_json({"file": str(file), **cells.to_dict()})
        else:
            print_sweep_forecast(cells)
            _print_warnings(list_warnings(sweep.cells[0].scenario))
        return
    scenario = load_scenario(file, overrides, known)
    forecast = forecast_run(
        scenario, timing=not no_timing, read_data=read_data, epsilon=epsilon or None
    )
    if as_json:
        print_json({"file": str(file), **forecast.to_dict()})
    else:
        print_forecast(forecast)
        _print_warnings(list_warnings(scenario))


def _print_warnings(warnings: list[str]) -> None:
    for warning in warnings:
        say(f"warning: {warning}")
