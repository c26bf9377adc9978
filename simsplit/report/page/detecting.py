"""Who was caught: the table of detectors, and how well each ranks clients."""

from collections.abc import Sequence

import numpy as np

from simsplit.report.detections import detected, detections_of, malicious_of
from simsplit.report.html.chart import COLOURS, Series, line_chart
from simsplit.report.html.markup import Markup, figure, section, views
from simsplit.report.html.subject import Subject
from simsplit.report.html.table_markup import table
from simsplit.report.thresholds import detectors_of, suspicion_of
from simsplit.results import Run


def detecting(subject: Subject) -> Markup:
    """The table, and a ROC chart for each setting with malicious clients."""
    found = detected(subject.one) if subject.one is not None else detections_of(subject.entries)
    charts = []
    for name, row in zip(subject.names, subject.rows, strict=True):
        runs = [entry.run for entry in row.entries if malicious_of(entry.run)]
        if curves := _curves(runs):
            charts.append(_chart(curves, name, len(runs), several=len(subject.rows) > 1))
    return section("Detection", table(found), views(charts, "ROC of"))


def _chart(
    curves: Sequence[tuple[float, Series]], name: str, runs: int, *, several: bool
) -> Markup:
    shown = [series for _, series in curves[:COLOURS]]
    share = ("honest clients flagged", lambda value: f"{100 * value:g} %")
    caught = ("malicious clients caught", lambda value: f"{100 * value:g} %")
    drawn = line_chart("ROC", shown, share, caught, diagonal=True)
    words = "Malicious clients caught (upwards) over honest clients flagged, whatever the "
    words += "threshold, at the last round" + (f" of {runs} seeds together" if runs > 1 else "")
    words += "; in brackets the area under the curve."
    if len(curves) > len(shown):
        words += f" The {len(shown)} best of {len(curves)} detectors."
    return figure(drawn, f"{name}. {words}" if several else words, name)


def _curves(runs: Sequence[Run]) -> list[tuple[float, Series]]:
    """(area, curve) of each detector, the best first."""
    from sklearn.metrics import auc, roc_curve

    made = []
    for detector in dict.fromkeys(name for run in runs for name in detectors_of(run)):
        pairs = [suspicion_of(run, detector) for run in runs if detector in detectors_of(run)]
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
