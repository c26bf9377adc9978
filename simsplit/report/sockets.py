"""A deployed run counts its frames between machines, which hold more than the wire's packets."""

from simsplit.preflight import format_size
from simsplit.report.tables import Table
from simsplit.results import Run

TITLE = "frames between machines (evaluation, calls and repeated rounds included)"
_NUMBERS = ["down_frames", "down_bytes", "up_frames", "up_bytes"]


def tabulate_frames(run: Run) -> Table:
    """Tabulate frames and bytes in both directions, by call and by the leg that the call brings."""
    columns = ("call", "brings", "frames down", "down", "frames up", "up")
    if run.socket.empty:
        return Table("", columns, [])
    sums = run.socket.fillna({"leg": ""}).groupby(["call", "leg"], sort=False)[_NUMBERS].sum()
    places = [(str(call), str(leg)) for call, leg in sums.index]
    counts = [[int(each) for each in row] for row in sums.to_numpy()]
    counts.append([int(each) for each in sums.to_numpy().sum(axis=0)])
    rows = [
        (*place, f"{down:,}", format_size(sent), f"{up:,}", format_size(got))
        for place, (down, sent, up, got) in zip([*places, ("all", "")], counts, strict=True)
    ]
    return Table(TITLE, columns, rows, align="llrrrr")
