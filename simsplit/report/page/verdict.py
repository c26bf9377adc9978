"""A page starts with a sentence that sums up accuracy, bytes, the worst attacks and detections."""

from simsplit.metrics import format_column
from simsplit.protocols import CARRIED
from simsplit.report.detections import list_detectors, list_flagged, list_malicious
from simsplit.report.html.markup import capitalise
from simsplit.report.html.subject import Subject, write_value
from simsplit.report.presentations import list_presentations
from simsplit.report.rates import read_quoted
from simsplit.results import Run
from simsplit.sizes import format_size


def write_verdict(subject: Subject) -> str:
    """Write the results of the runs in one sentence."""
    clauses = [
        _write_scores(subject),
        _write_sent(subject),
        *(each.conclude(subject) for _, each in list_presentations()),
        _write_backdoor(subject),
        _write_caught(subject),
    ]
    words = "; ".join(clause for clause in clauses if clause)
    return _write_count(subject) + (f"{capitalise(words)}." if words else "")


def _write_count(subject: Subject) -> str:
    if (run := subject.one) is not None:
        done, rounds = len(run.rounds), run.summary["rounds"]
        state = run.summary["status"]
        if state == "finished":
            return ""
        why = f"Why: {run.summary['reason']}. " if "reason" in run.summary else ""
        return f"Not finished ({state}), {done} of {rounds} rounds. {why}"
    count = len(subject.rows)
    return f"{count} setting{'s' * (count > 1)}, {len(subject.entries)} runs. "


def _write_scores(subject: Subject) -> str:
    """Write the task's figure, with its round or seeds."""
    figure = subject.figure
    if figure is None:
        return ""
    means = []
    for name, row in zip(subject.names, subject.rows, strict=True):
        values = (read_quoted(e.run, f"test_{figure}", "best_on_validation") for e in row.entries)
        if known := [value for value in values if value is not None]:
            means.append((sum(known) / len(known), name))
    if not means:
        return ""
    if len(means) == 1:
        value = write_value(figure, means[0][0])
        return f"test {format_column(figure)} {value}{_write_round(subject)}"
    (least, low), (most, high) = min(means), max(means)
    start, end = write_value(figure, least), write_value(figure, most)
    return f"test {format_column(figure)} from {start} ({low}) to {end} ({high})"


def _write_round(subject: Subject) -> str:
    """Write the quoted round of one run, or the number of seeds."""
    if (run := subject.one) is None:
        return f", mean of {len(subject.entries)} seeds"
    chosen, last = run.summary.get("best_on_validation"), run.summary.get("last")
    if not chosen:
        return f" (round {last['round']})" if last else ""
    return f" (round {chosen['round']}, the best on validation)"


def _write_sent(subject: Subject) -> str:
    """Write the bytes sent, for one run compared with a cut without methods."""
    wires = [entry.run.wire for entry in subject.entries]
    totals = [int(wire.loc[wire["phase"] != "evaluate", "bytes"].sum()) for wire in wires]
    if not any(totals):
        return ""
    if (run := subject.one) is None:
        ends = dict.fromkeys((format_size(min(totals)), format_size(max(totals))))
        return f"{' to '.join(ends)} sent in a run"
    return f"{format_size(totals[0])} sent{compare_with_plain(run)}"


def compare_with_plain(run: Run) -> str:
    """Write the ratio of bytes at the cut to those of a plain cut, or an empty string.

    Hand-overs are not counted, because the bytes of a plain cut are only those across the cut.
    """
    plain = int(run.rounds["bytes_plain"].sum()) if "bytes_plain" in run.rounds else 0
    wire = run.wire[(run.wire["phase"] != "evaluate") & ~run.wire["leg"].isin(CARRIED)]
    sent = int(wire["bytes"].sum())
    if not plain or not sent:
        return ""
    share = sent / plain
    times = f"{1 / share:.2f} times less" if share <= 1 else f"{share:.2f} times more"
    return f", at the cut {times} than a plain cut"


def _write_backdoor(subject: Subject) -> str:
    runs = [e.run for e in subject.entries if list_malicious(e.run)]
    succeeded = [read_quoted(run, "attack_success", "best_on_validation") for run in runs]
    ends = [value for value in succeeded if value is not None]
    if not ends:
        return ""
    low, high = f"{100 * min(ends):.0f}", f"{100 * max(ends):.0f}"
    return f"the backdoor succeeds on {low if low == high else f'{low} to {high}'} % of samples"


def _write_caught(subject: Subject) -> str:
    """Write which detectors caught all malicious clients; without any, the runs with alarms."""
    watched = [e.run for e in subject.entries if list_detectors(e.run)]
    attacked = [run for run in watched if list_malicious(run)]
    if not watched:
        return ""
    if not attacked:
        alarms = sum(
            any(list_flagged(run, name) for name in list_detectors(run)) for run in watched
        )
        return f"nobody is malicious, and somebody is flagged in {alarms} of {len(watched)} runs"
    names = list(dict.fromkeys(name for run in attacked for name in list_detectors(run)))
    catching = [
        name
        for name in names
        if all(name in list_detectors(run) for run in attacked)
        if all(set(list_malicious(run)) <= set(list_flagged(run, name)) for run in attacked)
    ]
    where = "" if len(attacked) == 1 else f" in each of {len(attacked)} runs"
    if not catching:
        return f"no detector caught every malicious client{where}"
    which = f": {catching[0]}" if len(catching) == 1 else ""
    return f"{len(catching)} of {len(names)} detectors caught every malicious client{where}{which}"
