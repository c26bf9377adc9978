"""One HTML page of a run, or of several beside each other, that needs nothing but itself.

Style and script stand in the page; what a browser may load or run is closed to all else by the
page's own policy. Names and texts come from whoever made the runs, and are escaped (`markup`).
"""

import base64
import hashlib
from importlib.resources import files
from string import Template

from simsplit.report.html.markup import Markup, joined, tag
from simsplit.report.html.subject import Subject
from simsplit.report.page.comparison import comparison
from simsplit.report.page.curves import curves
from simsplit.report.page.detecting import detecting
from simsplit.report.page.heat import heat
from simsplit.report.page.question import question
from simsplit.report.page.sent import sent
from simsplit.report.page.surroundings import surroundings
from simsplit.report.page.verdict import verdict
from simsplit.report.presentations import PRESENTATIONS

_BEFORE = (question, curves, sent, heat, detecting)
_BEHIND = (comparison, surroundings)
"""Sections before and behind those on what attacks recovered."""
_HINT = "Point at a chart to read its values, or reach it with Tab and move with the arrow keys."


def page_of(subject: Subject) -> str:
    """The page of one run, or of several."""
    recovered = [each.section for each in PRESENTATIONS.values()]
    sections = (make(subject) for make in (*_BEFORE, *recovered, *_BEHIND))
    made = [section for section in sections if section]
    toggle = tag("button", "Dark theme", id="theme", type="button", hidden="")
    body = joined(
        (
            tag("header", tag("h1", subject.title), toggle),
            tag("main", tag("p", verdict(subject), class_="verdict"), _contents(made),
                tag("p", _HINT, class_="note hint"), *made),
        )
    )  # fmt: skip
    script = _part("script.js")
    # a script that somebody's text smuggled in would have another digest, and does not run
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    title = joined((subject.title, " | simsplit"))
    return Template(_part("page.html")).substitute(
        title=title, style=_part("style.css"), script=script, hash=digest, body=body
    )


def _contents(sections: list[Markup]) -> Markup:
    """Links to the sections, by their headings."""
    links = []
    for made in sections:
        name = made.split('id="', 1)[1].split('"', 1)[0]
        heading = made.split(">", 2)[2].split("<", 1)[0]
        links.append(tag("li", tag("a", Markup(heading), href=f"#{name}")))
    return tag("nav", tag("ul", *links), aria_label="Contents")


def _part(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


__all__ = ["Subject", "page_of"]
