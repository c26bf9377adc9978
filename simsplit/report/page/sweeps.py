"""The tables of `compare`, with their intervals."""

from simsplit.report.comparison import compare
from simsplit.report.page.markup import Markup, section
from simsplit.report.page.subject import Subject
from simsplit.report.page.tables import table
from simsplit.report.recoveries import recoveries_of


def comparison(subject: Subject) -> Markup:
    """A row a setting, over seeds; nothing of a single run."""
    if subject.one is not None:
        return Markup()
    tables = [compare(subject.entries), *recoveries_of(subject.entries)]
    return section("Comparison", *map(table, tables))
