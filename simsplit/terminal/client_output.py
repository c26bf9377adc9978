"""A run client by client, as plain values and in a picture's file."""

from pathlib import Path
from typing import Any

from simsplit.report.canvas import save_figure_as
from simsplit.report.client_figures import draw_clients
from simsplit.report.client_sums import list_records, rank_clients, summarise_clients
from simsplit.results import Run

_ROUNDS = ("round", "client", "steps", "samples", "train_loss", "train_accuracy")


def document_clients(run: Run) -> dict[str, Any]:
    """Return a run by client: sums, figures of each round, and who helps if it was measured."""
    known = [name for name in _ROUNDS if name in run.clients]
    return {
        "path": str(run.path),
        "clients": list_records(summarise_clients(run)),
        "rounds": list_records(run.clients[known]),
        "contributions": list_records(run.contributions),
        "ranking": rank_clients(run),
    }


def draw_clients_into(run: Run, file: Path) -> None:
    """Draw a run by client into a file; raise RunError if it cannot be written."""
    save_figure_as(draw_clients(run), file)
