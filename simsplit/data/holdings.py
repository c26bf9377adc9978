"""Who holds what: each client's number of samples of each class, as `holdings.csv` has it."""

import csv
import io
from collections.abc import Iterable, Sequence

import numpy as np

from simsplit.client_names import ClientNames
from simsplit.legs import ClientId


def format_holdings(
    clients: Iterable[ClientId],
    parts: Sequence[np.ndarray],
    groups: np.ndarray | None,
    names: ClientNames,
) -> str:
    """Return a CSV with a row for each of these clients and each class.

    `groups` has the class of each sample. A deployed server has none: it lists each client's number
    of samples.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["client", *(["name"] if names else []), "class", "samples"])
    for client in clients:
        part = parts[client]
        who = [client, *([names.get(client)] if names else [])]
        if groups is None:
            writer.writerow([*who, "", len(part)])
            continue
        numbers, counts = np.unique(groups[part], return_counts=True)
        writer.writerows([*who, n, c] for n, c in zip(numbers, counts, strict=True))
    return text.getvalue()
