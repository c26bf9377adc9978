"""A report is one self-contained HTML page of a run, or of several runs compared.

The page contains its style and script, and its own policy forbids a browser to load or run anything
else. Names and texts come from the authors of the runs, so they are escaped (`markup`).
"""

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from string import Template

from simsplit.report.html.markup import Markup, join, tag, void
from simsplit.report.html.subject import Subject
from simsplit.report.page.detecting import compare_settings, show_detections
from simsplit.report.page.heat import draw_heat_maps
from simsplit.report.page.holding import tabulate_holdings
from simsplit.report.page.learning_curves import draw_curves
from simsplit.report.page.question import describe_environment, describe_question
from simsplit.report.page.sent import draw_sent
from simsplit.report.page.verdict import write_verdict
from simsplit.report.presentations import list_presentations

_BEFORE = (
    *(describe_question, draw_curves, draw_sent),
    *(tabulate_holdings, draw_heat_maps, show_detections),
)
_BEHIND = (compare_settings, describe_environment)
"""Sections before and after the sections on what attacks recovered."""
_HINT = "Point at a chart to read its values, or reach it with Tab and move with the arrow keys."


def write_page(subject: Subject, before: Sequence[Markup] = (), reload_s: int | None = None) -> str:
    """Write the page of runs, which a browser reads again after `reload_s` seconds if given."""
    recovered = [each.section for _, each in list_presentations()]
    sections = (make(subject) for make in (*_BEFORE, *recovered, *_BEHIND))
    made = [*before, *(section for section in sections if section)]
    hint = tag("p", _HINT, class_="note hint")
    return fill_page(subject.title, write_verdict(subject), made, hint, reload_s)


def fill_page(
    title: str,
    verdict: str,
    sections: Sequence[Markup],
    hint: Markup | None = None,
    reload_s: int | None = None,
) -> str:
    """Write a page of sections under its title, the verdict and the contents."""
    toggle = tag("button", "Dark theme", id="theme", type="button", hidden="")
    above = (tag("p", verdict, class_="verdict"), _list_contents(sections), hint)
    body = join((tag("header", tag("h1", title), toggle), tag("main", *above, *sections)))
    script = _read_part("script.js")
    # the policy allows only the script with this digest, so a script in a run's texts cannot run
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(_read_part("page.html")).substitute(
        title=join((title, " | simsplit")),
        style=_read_part("style.css"),
        script=script,
        reload=void("meta", http_equiv="refresh", content=reload_s) if reload_s else "",
        hash=digest,
        body=body,
    )


def _list_contents(sections: Sequence[Markup]) -> Markup:
    """Write links to the sections, named by their headings."""
    links = []
    for made in sections:
        name = made.split('id="', 1)[1].split('"', 1)[0]
        heading = made.split(">", 2)[2].split("<", 1)[0]
        links.append(tag("li", tag("a", Markup(heading), href=f"#{name}")))
    return tag("nav", tag("ul", *links), aria_label="Contents")


def _read_part(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


__all__ = ["Subject", "fill_page", "write_page"]
