"""What attacks read of sessions, at both ends: figures, and prompts and responses beside theirs."""

from simsplit.report.html.markup import Markup, section
from simsplit.report.html.subject import Subject
from simsplit.report.html.table_markup import table
from simsplit.report.session_tables import compare_sessions, show_sessions


def sessions(subject: Subject) -> Markup:
    """Of one run its attacks and what they read; of several settings AP, utility and DCS."""
    if not any(len(entry.run.sessions) for entry in subject.entries):
        return Markup()
    one = subject.one
    tables = compare_sessions(subject.entries) if one is None else show_sessions(one)
    return section("Sessions", *map(table, tables))
