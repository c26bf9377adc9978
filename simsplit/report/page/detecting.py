"""The section on detection shows the table of detectors and how well each ranks clients.

The section on several settings has the tables of `compare`.
"""

from collections.abc import Sequence

import numpy as np

from simsplit.report.comparison import compare
from simsplit.report.detections import (
    compare_detections,
    list_detectors,
    list_malicious,
    rank_suspicion,
    tabulate_detections,
)
from simsplit.report.html.chart import COLOURS, Series, draw_lines, write_percent
from simsplit.report.html.markup import Markup, figure, mark_up, section, views
from simsplit.report.html.subject import Subject
from simsplit.report.presentations import list_presentations
from simsplit.results import Run


def show_detections(subject: Subject) -> Markup:
    """Show the detectors' table, and a ROC chart for each setting with malicious clients."""
    one = subject.one
    detections = tabulate_detections(one) if one else compare_detections(subject.entries)
    charts = []
    for name, row in zip(subject.names, subject.rows, strict=True):
        runs = [entry.run for entry in row.entries if list_malicious(entry.run)]
        if curves := _compute_curves(runs):
            charts.append(_draw_chart(curves, name, len(runs), several=len(subject.rows) > 1))
    return section("Detection", mark_up(detections), views(charts, "ROC of"))


def _draw_chart(
    curves: Sequence[tuple[float, Series]], name: str, runs: int, *, several: bool
) -> Markup:
    shown = [series for _, series in curves[:COLOURS]]
    flagged, caught = "honest clients flagged", "malicious clients caught"
    axes = (flagged, write_percent), (caught, write_percent)
    drawing = draw_lines("ROC", shown, *axes, diagonal=True)
    words = "Malicious clients caught (upwards) over honest clients flagged, whatever the "
    words += "threshold, at the last round" + (f" of {runs} seeds together" if runs > 1 else "")
    words += "; in brackets the area under the curve."
    if len(curves) > len(shown):
        words += f" The {len(shown)} best of {len(curves)} detectors."
    return figure(drawing, f"{name}. {words}" if several else words, name)


def _compute_curves(runs: Sequence[Run]) -> list[tuple[float, Series]]:
    """Return (area, curve) of each detector, the best first."""
    names = dict.fromkeys(name for run in runs for name in list_detectors(run))
    if not names:
        return []
    from sklearn.metrics import auc, roc_curve  # a second, which other runs need not wait for

    made = []
    for detector in names:
        pairs = [rank_suspicion(run, detector) for run in runs if detector in list_detectors(run)]
        bad, suspicion = (np.concatenate(each) for each in zip(*pairs, strict=True))
        if len(set(bad.tolist())) < 2:
            continue
        fpr, tpr, cuts = roc_curve(bad, suspicion)
        area = float(auc(fpr, tpr))
        words = [
            f"{detector}, flagging from {cut:.3g} on: {100 * caught:.0f} % of malicious clients "
            f"caught, {100 * alarm:.0f} % of honest ones flagged"
            for alarm, caught, cut in zip(fpr, tpr, cuts, strict=True)
        ]
        title = f"{detector} ({area:.2f})"
        made.append((area, Series(title, fpr.tolist(), tpr.tolist(), words, step=True)))
    return sorted(made, key=lambda pair: -pair[0])


def compare_settings(subject: Subject) -> Markup:
    """Tabulate a row per setting, over seeds; return nothing for a single run."""
    if subject.one is not None:
        return Markup()
    beside = [each for _, each in list_presentations() if each.compared_beside]
    recovered = [made for each in beside for made in each.compare(subject.entries, None)]
    return section("Comparison", *map(mark_up, (compare(subject.entries), *recovered)))
