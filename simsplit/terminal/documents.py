"""Commands with --json print these documents: plain values, with numbers that are not rounded.

What `simsplit validate` prints is here in both forms, as a document and as lines.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simsplit.client_names import ClientNames
from simsplit.errors import ScenarioError, format_count
from simsplit.legs import Leg
from simsplit.report.client_tables import list_records, rank_clients, summarise_clients
from simsplit.report.grouping import load_entries
from simsplit.report.presentations import find_presentation
from simsplit.report.ranking import Ranking
from simsplit.report.run_tables import read_latest
from simsplit.report.tables import Table
from simsplit.results import Run

if TYPE_CHECKING:
    from simsplit.scenario import Scenario, Sweep

Document = dict[str, Any]
_ROUNDS = ("round", "client", "steps", "samples", "train_loss", "train_accuracy")


def document_run(run: Run) -> Document:
    """Return a run's summary, and its path."""
    document = {**run.summary, "path": str(run.path)}
    if document["status"] == "running" and not run.rounds.empty:
        # The summary of a run that is under way, or was killed, is of its start.
        document |= {"rounds_done": int(run.rounds["round"].iloc[-1]), "last": read_latest(run)}
    return document


def document_comparison(paths: Sequence[Path]) -> Document:
    """Return each run's summary and settings in its sweep, and the reasons for left-out cells."""
    entries, left_out = load_entries(paths)
    runs = []
    for entry in entries:
        of_sweep = {"sweep": entry.sweep and str(entry.sweep), "set": dict(entry.settings)}
        runs.append({**of_sweep, **document_run(entry.run)})
    return {"runs": runs, "left_out": left_out}


def describe_search(sweep: "Sweep") -> str:
    """Say in a line what a search will try."""
    search = sweep.search
    assert search is not None, "asked of a sweep with a search"
    each = len(sweep.cells) // search.count
    cells = f", each as {format_count(each, 'cell')}" if each > 1 else ""
    pruner = f", and gives settings up early ({search.pruner})" if search.pruner else ""
    return (
        f"a search of {format_count(search.count, 'setting')}{cells}; Optuna ({search.sampler}) "
        f"chooses by {search.figure or 'validation data'}{pruner}"
    )


def document_ranking(ranking: Ranking) -> Document:
    """Return the places of a ranking, and the figure that ranks."""
    places = [
        {
            "place": number,
            "tied": number > 1 and not place.is_resolved,
            "set": dict(place.row.settings),
            "runs": [str(entry.run.path) for entry in place.row.entries],
            ranking.by: list(place.by_seed.values()),
            "seeds": list(place.by_seed),
            "change": list(place.changes),
            "interval": place.interval and list(place.interval),
        }
        for number, place in enumerate(ranking.places, 1)
    ]
    pruned = [
        {
            "set": dict(place.row.settings),
            "runs": [str(entry.run.path) for entry in place.row.entries],
            "rounds": place.rounds,
            ranking.by: list(place.by_seed.values()),
        }
        for place in ranking.pruned
    ]
    left_out = list(ranking.left_out)
    return {"by": ranking.by, "places": places, "pruned": pruned, "left_out": left_out}


def document_attack(run: Run, name: str) -> Document:
    """Return the figures of the attacks of this attack's kind, and of guesses without attack."""
    figures = find_presentation(run.find_kind(name)).describe(run)
    return {"path": str(run.path), "attack": name, "figures": figures}


def document_tables(tables: Sequence[Table]) -> list[Document]:
    """Return the titles and rows of tables."""
    documents = []
    for table in tables:
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        documents.append({"title": table.title, "rows": rows})
    return documents


def document_scenario(scenario: "Scenario") -> Document:
    """Return the shapes that a valid scenario sends, if they are known before data are loaded."""
    info = scenario.data.describe()
    if info is None or not scenario.model.is_available_offline:
        return {"valid": True, "shapes": None}
    (cut, features), (smashed, sent) = scenario.shapes(info)
    shapes: Document = {"cut": {"shape": cut, "sent": smashed}}
    if info.parts:  # what each party's head puts out, and that as it is sent
        names = ClientNames(scenario.party_names)
        shapes["cut"] = {
            names.get(party): {"shape": own[0], "sent": crossing[0]}
            for party, (own, crossing) in enumerate(scenario.list_party_shapes(info))
        }
    if scenario.crossings.has(Leg.FEATURES):
        shapes["features"] = {"shape": features, "sent": sent}
    cuts = {"cuts": dict(Counter(map(str, scenario.places)))} if scenario.has_own_cuts else {}
    return {"valid": True, "shapes": shapes, **cuts}


def document_clients(run: Run) -> Document:
    """Return a run by client: sums, figures of each round, and who helps if it was measured."""
    known = [name for name in _ROUNDS if name in run.clients]
    return {
        "path": str(run.path),
        "clients": list_records(summarise_clients(run)),
        "rounds": list_records(run.clients[known]),
        "contributions": list_records(run.contributions),
        "ranking": rank_clients(run),
    }


def document_mistakes(error: ScenarioError) -> Document:
    """Return the problems of a scenario by field."""
    problems = [{"field": each.field, "reason": each.reason} for each in error.problems]
    return {"valid": False, "problems": problems}


def describe_scenario(scenario: "Scenario") -> str:
    """Return lines on a valid scenario, with the shapes that it sends."""
    lines, made = ["a valid scenario"], document_scenario(scenario)
    info, legs = scenario.data.describe(), made["shapes"] or {}
    if info is None:
        lines.append("its data are not known before they are loaded, so shapes were not checked")
    elif not legs:
        lines.append("its model is fetched when a run begins, so shapes were not checked")
    elif info.parts:
        parties = {f"cut of {name}": each for name, each in legs.pop("cut").items()}
        legs = parties | legs
    for name, each in legs.items():
        shape, values = ("x".join(map(str, each[what])) for what in ("shape", "sent"))
        lines.append(f"{name}: {shape}" + (f", sent as {values}" if shape != values else ""))
    for place, clients in made.get("cuts", {}).items():
        lines.append(f"model.{scenario.model.cut_field} {place}: {format_count(clients, 'client')}")
    return "\n".join(lines)


def describe_cells(names: Sequence[str]) -> str:
    """Return lines on a valid sweep, with the names of its first cells."""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return f"a valid sweep of {len(names)} cells\n{'  '.join(names[:6])}{more}"
