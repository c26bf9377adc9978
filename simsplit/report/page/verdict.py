"""The page's first sentence: accuracy, bytes, the worst attacks beside floors, who was caught."""

from collections.abc import Sequence

from simsplit.metrics.headline import said
from simsplit.preflight import size
from simsplit.report.detections import flagged_of, malicious_of
from simsplit.report.html.subject import Subject, at_end, told
from simsplit.report.presentations import PRESENTATIONS
from simsplit.report.rates import quoted_at
from simsplit.report.thresholds import detectors_of
from simsplit.results import Run
from simsplit.topologies import CARRIED


def verdict(subject: Subject) -> str:
    """What the runs came to, in one sentence."""
    clauses = [
        _scores(subject),
        _sent(subject),
        *(each.conclude(subject) for each in PRESENTATIONS.values()),
        _backdoor(subject),
        _caught(subject),
    ]
    words = "; ".join(clause for clause in clauses if clause)
    return _counted(subject) + (f"{words[:1].upper()}{words[1:]}." if words else "")


def _counted(subject: Subject) -> str:
    if (run := subject.one) is not None:
        done, rounds = len(run.rounds), run.summary["rounds"]
        state = run.summary["status"]
        if state == "finished":
            return ""
        why = f"Why: {run.summary['reason']}. " if "reason" in run.summary else ""
        return f"Not finished ({state}), {done} of {rounds} rounds. {why}"
    count = len(subject.rows)
    return f"{count} setting{'s' * (count > 1)}, {len(subject.entries)} runs. "


def _scores(subject: Subject) -> str:
    """The task's figure, and over what."""
    figure = subject.figure
    if figure is None:
        return ""
    found = [
        (sum(known) / len(known), name)
        for name, row in zip(subject.names, subject.rows, strict=True)
        if (known := [v for e in row.entries if (v := at_end(e.run, figure)) is not None])
    ]
    if not found:
        return ""
    if len(found) == 1:
        return f"test {said(figure)} {told(figure, found[0][0])}{_when(subject)}"
    (least, low), (most, high) = min(found), max(found)
    return (
        f"test {said(figure)} from {told(figure, least)} ({low}) to {told(figure, most)} ({high})"
    )


def _when(subject: Subject) -> str:
    """Of which round, or over how many seeds."""
    if (run := subject.one) is None:
        return f", mean of {len(subject.entries)} seeds"
    chosen, last = run.summary.get("best_on_validation"), run.summary.get("last")
    if not chosen:
        return f" (round {last['round']})" if last else ""
    return f" (round {chosen['round']}, the best on validation)"


def _sent(subject: Subject) -> str:
    """Bytes, of one run against those of a cut without methods."""
    totals = [_bytes(entry.run) for entry in subject.entries]
    if not any(totals):
        return ""
    if (run := subject.one) is None:
        ends = dict.fromkeys((size(min(totals)), size(max(totals))))
        return f"{' to '.join(ends)} sent in a run"
    return f"{size(totals[0])} sent{against_plain(run)}"


def _bytes(run: Run) -> int:
    return int(run.wire.loc[run.wire["phase"] != "evaluate", "bytes"].sum())


def against_plain(run: Run) -> str:
    """How many times less or more a plain cut would have sent, hand-overs aside; may be empty."""
    plain = int(run.rounds["bytes_plain"].sum()) if "bytes_plain" in run.rounds else 0
    wire = run.wire[(run.wire["phase"] != "evaluate") & ~run.wire["leg"].isin(CARRIED)]
    sent = int(wire["bytes"].sum())
    if not plain or not sent:
        return ""
    share = sent / plain
    times = f"{1 / share:.2f} times less" if share <= 1 else f"{share:.2f} times more"
    return f", at the cut {times} than a plain cut"


def _backdoor(subject: Subject) -> str:
    runs = [e.run for e in subject.entries if malicious_of(e.run)]
    ends = [
        value
        for run in runs
        if (value := quoted_at(run, "attack_success", "best_on_validation")) is not None
    ]
    if not ends:
        return ""
    low, high = f"{100 * min(ends):.0f}", f"{100 * max(ends):.0f}"
    return f"the backdoor succeeds on {low if low == high else f'{low} to {high}'} % of samples"


def _caught(subject: Subject) -> str:
    """Which detectors had all malicious clients at the end, and who is flagged where none is."""
    watched = [e.run for e in subject.entries if detectors_of(e.run)]
    attacked = [run for run in watched if malicious_of(run)]
    if not watched:
        return ""
    if not attacked:
        alarms = sum(bool(_flagged(run)) for run in watched)
        return f"nobody is malicious, and somebody is flagged in {alarms} of {len(watched)} runs"
    names = list(dict.fromkeys(name for run in attacked for name in detectors_of(run)))
    catching = [name for name in names if all(_catches(run, name) for run in attacked)]
    where = "" if len(attacked) == 1 else f" in each of {len(attacked)} runs"
    if not catching:
        return f"no detector caught every malicious client{where}"
    which = f": {catching[0]}" if len(catching) == 1 else ""
    return f"{len(catching)} of {len(names)} detectors caught every malicious client{where}{which}"


def _flagged(run: Run) -> Sequence[int]:
    return [client for name in detectors_of(run) for client in flagged_of(run, name)]


def _catches(run: Run, name: str) -> bool:
    return name in detectors_of(run) and set(malicious_of(run)) <= set(flagged_of(run, name))
