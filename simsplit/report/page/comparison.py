"""The tables of `compare`, with their intervals."""

from simsplit.report.comparison import compare
from simsplit.report.html.markup import Markup, section
from simsplit.report.html.subject import Subject
from simsplit.report.html.table_markup import table
from simsplit.report.presentations import PRESENTATIONS


def comparison(subject: Subject) -> Markup:
    """A row a setting, over seeds; nothing of a single run."""
    if subject.one is not None:
        return Markup()
    beside = [each for each in PRESENTATIONS.values() if each.compared_beside]
    recovered = [made for each in beside for made in each.compare(subject.entries, None)]
    return section("Comparison", *map(table, (compare(subject.entries), *recovered)))
