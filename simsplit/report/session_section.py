"""The section on sessions shows attacks' figures at both ends, and the texts that they read."""

from simsplit.report.html.markup import Markup, section
from simsplit.report.html.subject import Subject
from simsplit.report.html.table_markup import mark_up
from simsplit.report.session_tables import compare_sessions, show_sessions


def show_session_results(subject: Subject) -> Markup:
    """Show one run's attacks and the texts that they read, or AP, utility and DCS of settings."""
    if not any(len(entry.run.sessions) for entry in subject.entries):
        return Markup()
    one = subject.one
    tables = compare_sessions(subject.entries) if one is None else show_sessions(one)
    return section("Sessions", *map(mark_up, tables))
