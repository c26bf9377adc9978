"""A run's simulated time to accuracy can be computed for other devices and links than its own.

It follows from the run's tables (each client's packets and training samples) and from the FLOPs in
its summary, so a run need not be repeated to be timed.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simsplit.legs import ClientId
from simsplit.metrics import find_headline, format_column
from simsplit.network.clock import ClientWork, Clock, Flops, choose_order, collect_works
from simsplit.network.profiles import NetworkConfig
from simsplit.phases import EVALUATE
from simsplit.protocols import JOINT, PROTOCOLS, choose_protocols
from simsplit.report.tables import Table
from simsplit.results import Run
from simsplit.rows import ClientRow, WireRow
from simsplit.sizes import format_size

if TYPE_CHECKING:
    import pandas as pd

Works = dict[ClientId, ClientWork]

PROFILES = (("phone", "lte"), ("laptop", "wifi"))
"""The devices and links that a run is timed on by default."""
LEVELS = (50, 80, 90, 95, 98)
"""Percentages of test accuracy whose first round is shown."""


def time_to_accuracy(run: Run, profiles: Sequence[tuple[str, str]] = PROFILES) -> Table:
    """Tabulate the round, bytes and simulated time at which each test accuracy was first reached.

    A model that writes its classes is measured by its answers. There is a column per (device,
    link); the run's own network comes first, if its scenario names one. A run without evaluations
    has no rows. Evaluation itself takes no simulated time.
    """
    figure = find_headline(map(str, run.rounds.columns)) or "test_accuracy"
    marks = _find_marks(run.rounds, figure)
    scenario = run.fields
    if scenario["topology"] not in PROTOCOLS:
        marks = []  # the saved run does not contain the protocol of a plugin's topology
    own = scenario.get("network")
    server = (own or {}).get("server", {})
    networks = {"as run": NetworkConfig.model_validate(own)} if own else {}
    for device, link in profiles:
        values = {"device": device, "link": link, "server": server}
        networks[f"{device}, {link}"] = NetworkConfig.model_validate(values)
    elapsed = {
        title: _compute_elapsed_s(run, scenario, network) if marks else {}
        for title, network in networks.items()
    }
    if "as run" in elapsed and "simulated_total_s" in run.rounds:
        # the run's own times are exact, because it knows the order of clients in each lap
        columns = run.rounds["round"], run.rounds["simulated_total_s"]
        elapsed["as run"] = dict(zip(*columns, strict=True))
    sent = run.rounds.set_index("round")["bytes_total"]
    rows = []
    for level, number in marks:
        times = [write_duration(each[number]) for each in elapsed.values()]
        rows.append((level, str(number), format_size(float(sent[number])), *times))
    named = format_column(figure)
    title = f"simulated time to {format_column(figure)}"
    title += "\non assumed devices and links (simsplit list profiles)"
    return Table(title, (named.removeprefix("test "), "round", "sent", *networks), rows)


def write_duration(seconds: float) -> str:
    """Write seconds in the unit that suits their size, such as `12.3 ms` or `1.5 min`."""
    value = 1000 * seconds
    for unit, length in (("ms", 1000), ("s", 60), ("min", 60), ("h", 24)):
        if round(value, 1) < length:
            return f"{value:.1f} {unit}"
        value /= length
    return f"{value:.1f} d"


def _find_marks(rounds: "pd.DataFrame", figure: str) -> list[tuple[str, int]]:
    """Return the first round of each accuracy level reached, as (level, round), the best last."""
    if figure not in rounds:
        return []
    evaluated = rounds.dropna(subset=[figure])
    if evaluated.empty:
        return []
    accuracies, numbers = evaluated[figure].to_numpy(), evaluated["round"].to_numpy()
    marks = [
        (f"{level}%", int(numbers[(accuracies >= level / 100).argmax()]))
        for level in LEVELS
        if accuracies.max() >= level / 100
    ]
    best = accuracies.argmax()
    return [*marks, (f"best: {accuracies[best]:.2%}", int(numbers[best]))]


def _compute_elapsed_s(
    run: Run, scenario: Mapping[str, Any], network: NetworkConfig
) -> dict[int, float]:
    """Compute the simulated seconds from the start of the run to the end of each round."""
    schedule = scenario["schedule"]
    kind = (scenario.get("aggregation") or {}).get("kind", "none")
    order = choose_order(schedule["kind"], kind, joint=scenario["topology"] in JOINT)
    clock = Clock(
        order,
        choose_protocols(scenario).training,
        network.draw_rates(scenario["clients"]["count"], scenario["seed"]),
        network.server,
        Flops.read(run.summary["flops"]),
        schedule.get("max_ahead"),
    )
    elapsed, total, seconds = {}, 0.0, 0.0
    before: Works | None = None
    for number, works in _collect_works(run).items():
        if works != before:  # most rounds repeat the work of the round before
            seconds = clock.time_round(works).seconds
            before = works
        total += seconds
        elapsed[number] = total
    return elapsed


def _collect_works(run: Run) -> dict[int, Works]:
    """Return each round's work by client, in the order of the tables."""
    counts: dict[int, dict[ClientId, tuple[int, int]]] = {}
    sent: dict[int, list[WireRow]] = {}
    for row in ClientRow.in_frame(run.clients):
        counts.setdefault(row.round, {})[row.client] = row.steps, row.samples
    for each in WireRow.in_frame(run.wire):
        if each.phase != EVALUATE:
            counts.setdefault(each.round, {}).setdefault(each.client, (0, 0))
            sent.setdefault(each.round, []).append(each)
    return {
        number: collect_works(counts[number], sent.get(number, ()), number)
        for number in sorted(counts)
    }
