"""What really crossed between the machines of a deployed run, beside what its wire counts."""

from simsplit.preflight import size
from simsplit.report.tables import Table
from simsplit.results import Run

TITLE = "frames between machines (evaluation, calls and repeated rounds included)"
_NUMBERS = ["down_frames", "down_bytes", "up_frames", "up_bytes"]


def frames_of(run: Run) -> Table:
    """Frames and bytes to clients and from them, by call and by the leg that the call brings."""
    columns = ("call", "brings", "frames down", "down", "frames up", "up")
    if run.socket.empty:
        return Table("", columns, [])
    sums = run.socket.fillna({"leg": ""}).groupby(["call", "leg"], sort=False)[_NUMBERS].sum()
    counts = [(*map(str, place), *map(int, row)) for place, *row in sums.itertuples()]
    everything = ("all", "", *(int(total) for total in sums.sum()))
    rows = [
        (str(call), str(leg), f"{down:,}", size(int(sent)), f"{up:,}", size(int(got)))
        for call, leg, down, sent, up, got in [*counts, everything]
    ]
    return Table(TITLE, columns, rows, align="llrrrr")
