"""What attacks read of sessions, at both ends: figures, and prompts and responses beside theirs."""

from simsplit.report.page.markup import Markup, section
from simsplit.report.page.subject import Subject
from simsplit.report.page.tables import table
from simsplit.report.sessions import dialogues, told_of_sessions, told_of_sessions_by


def sessions(subject: Subject) -> Markup:
    """Of one run its attacks and what they read; of several settings AP, utility and DCS."""
    if not any(len(entry.run.sessions) for entry in subject.entries):
        return Markup()
    if subject.one is None:
        told = told_of_sessions_by(subject.entries)
        return section("Sessions", *([] if told is None else [table(told)]))
    return section("Sessions", table(told_of_sessions(subject.one)), table(dialogues(subject.one)))
