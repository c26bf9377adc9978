"""The section on several settings contains the tables of `compare`, with their intervals."""

from simsplit.report.comparison import compare
from simsplit.report.html.markup import Markup, section
from simsplit.report.html.subject import Subject
from simsplit.report.html.table_markup import mark_up
from simsplit.report.presentations import PRESENTATIONS


def compare_settings(subject: Subject) -> Markup:
    """Tabulate a row per setting, over seeds; return nothing for a single run."""
    if subject.one is not None:
        return Markup()
    beside = [each for each in PRESENTATIONS.values() if each.compared_beside]
    recovered = [made for each in beside for made in each.compare(subject.entries, None)]
    return section("Comparison", *map(mark_up, (compare(subject.entries), *recovered)))
