"""Sums of a run client by client: who holds, learns, sends and waits how much."""

from typing import TYPE_CHECKING, Any

from simsplit.legs import Leg
from simsplit.results import HOLDINGS, Run

if TYPE_CHECKING:
    import pandas as pd

LEARNED = ("train_loss", "train_accuracy")
"""Columns that say how a client learns."""
_SUMMED = ("compute_s", "transfer_s")
_LAST = ("malicious", "barred")


def summarise_clients(run: Run) -> "pd.DataFrame":
    """Return a row per client: samples, steps, first and last losses and accuracies, bytes, time.

    Bytes are those of training: `bytes_up` from the client, `bytes_down` to it.
    """
    import pandas as pd

    table = run.clients.sort_values("round")
    made = pd.DataFrame({"client": sorted(table["client"].unique())}).set_index("client")
    if run.client_names:
        made["name"] = [run.client_names.get(int(client)) for client in made.index]
    if (run.path / HOLDINGS).exists():
        made["samples"] = run.holdings.groupby("client")["samples"].sum()
    trained = table[table["steps"] > 0].groupby("client")["round"].nunique()
    made["rounds"] = trained.reindex(made.index).fillna(0).astype(int)
    made["steps"] = table.groupby("client")["steps"].sum().astype(int)
    return made.join([_read_figures(table), _sum_bytes(run)]).reset_index()


def _read_figures(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return by client the first and last figures of its training, and the last ones of others."""
    import pandas as pd

    by_client, made = table.groupby("client"), pd.DataFrame(index=table["client"].unique())
    for name in map(str, table.columns):
        if name in LEARNED:
            made[f"{name}_first"] = by_client[name].first()
            made[f"{name}_last"] = by_client[name].last()
        elif name in _LAST or name.startswith(("test_", "validation_")):
            made[name] = by_client[name].last()
        elif name in _SUMMED:
            made[name] = by_client[name].sum()
    return made


def _sum_bytes(run: Run) -> "pd.DataFrame":
    import pandas as pd

    sent = run.wire[run.wire["phase"] != "evaluate"]
    up = sent["leg"].map(_goes_up).astype(bool)
    everybody = run.clients["client"].unique()
    sums = {
        name: rows.groupby("client")["bytes"].sum().reindex(everybody).fillna(0).astype(int)
        for name, rows in (("bytes_up", sent[up]), ("bytes_down", sent[~up]))
    }
    return pd.DataFrame(sums)


def _goes_up(leg: object) -> bool:
    """Return whether a leg leads from a client; a plugin's, which is not known here, counts so."""
    try:
        return Leg(str(leg)).up
    except ValueError:
        return True


def list_chains(run: Run) -> list[str]:
    """List the methods at each client's cut, where parties have methods of their own; else none."""
    methods = run.fields.get("method", [])
    owners = [str(each.get("by") or "").partition(" ")[2] for each in methods]
    if not any(owners):
        return []
    names = run.client_names
    acting = [None if not owner else names.find(owner) for owner in owners]
    return [
        ", ".join(m["kind"] for m, who in zip(methods, acting, strict=True) if who in (None, party))
        or "none"
        for party in range(run.fields["clients"]["count"])
    ]


def list_records(table: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return rows as plain values by column; what a row lacks is None."""
    plain = table.astype(object).where(table.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in plain.to_dict("records")]


def rank_clients(run: Run) -> list[int]:
    """Return the measured clients, the most helpful first, by Shapley values if there are any."""
    made = run.contributions
    if made.empty:
        return []
    best = "shapley" if (made["by"] == "shapley").any() else made["by"].iloc[0]
    chosen = made[made["by"] == best].sort_values(["value", "client"], ascending=[False, True])
    return [int(client) for client in chosen["client"]]
