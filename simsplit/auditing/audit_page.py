"""An audit's page: the verdict, what each attack has read, samples, and what was not tried."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path

from simsplit.auditing.audit_tables import tabulate_audit
from simsplit.auditing.audit_verdicts import AuditFinding
from simsplit.auditing.audits import Audit
from simsplit.auditing.read_samples import ReadSample, choose_finding, draw_samples, list_samples
from simsplit.errors import RunError, format_count
from simsplit.report.html.markup import (
    Markup,
    figure,
    join,
    mark_up,
    mark_up_pairs,
    mark_up_rows,
    section,
    tag,
    void,
)
from simsplit.report.page import fill_page
from simsplit.results.directory import replace


def refuse_other_page(target: Path) -> None:
    """Raise RunError for a file whose name is no page's, before any attack works."""
    if target.suffix not in (".html", ".htm"):
        raise RunError(f"--html takes a file that ends with .html, got '{target}'")


def write_audit_page(audit: Audit, target: Path) -> Path:
    """Write an audit's page; raise RunError if the file cannot be written."""
    refuse_other_page(target)
    sections = [
        section("What was read", mark_up(tabulate_audit(audit))),
        section("Read best and worst", *_show_samples(audit)),
        section("What was tried in vain", *_list_in_vain(audit)),
        section("What an attacker would need to try more", *_list_wants(audit)),
        section("How it was audited", _list_facts(audit)),
    ]
    title = f"audit of {Path(str(audit.facts.get('transcript', audit.run.path))).name}"
    page = fill_page(title, audit.verdict, [each for each in sections if each])
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace(target, page.encode())
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror or error}") from None
    return target


def _show_samples(audit: Audit) -> Iterator[Markup]:
    """Show the samples that the attack which has read most has read best and worst."""
    finding = choose_finding(audit.findings)
    if finding is None:
        return
    samples = list_samples(audit.run, finding)
    if finding.kind == "images" and samples:
        drawing = _draw(audit, finding, samples)
        yield figure(drawing, f"Private images above what {finding.attack} has read.")
    elif finding.kind in ("texts", "sessions"):
        rows = [
            (
                "best" if each.is_best else "worst",
                finding.write(each.value),
                each.private,
                each.read,
            )
            for each in samples
        ]
        columns = ("", finding.metric.replace("_", " "), "private", f"read by {finding.attack}")
        yield mark_up_rows(columns, rows, "lrll")


def _draw(audit: Audit, finding: AuditFinding, samples: list[ReadSample]) -> Markup:
    """Draw images into the page itself, which loads nothing."""
    drawn = io.BytesIO()
    draw_samples(audit.run, finding, samples).savefig(
        drawn, format="png", dpi=130, bbox_inches="tight"
    )
    source = f"data:image/png;base64,{base64.b64encode(drawn.getvalue()).decode()}"
    words = f"{format_count(len(samples), 'image')}, private and as {finding.attack} has read them"
    return void("img", src=source, alt=words, style="max-width: 100%")


def _list_in_vain(audit: Audit) -> Iterator[Markup]:
    if audit.in_vain:
        yield tag(
            "p",
            "These attacks have read no more than a guess. Others, or the same with more work, may "
            "read more.",
        )
        yield tag(
            "ul",
            *(tag("li", f"{each.attack}: {each.words} ({each.kind})") for each in audit.in_vain),
        )


def _list_wants(audit: Audit) -> Iterator[Markup]:
    if audit.wants:
        yield tag("ul", *(tag("li", line) for line in audit.wants))


def _list_facts(audit: Audit) -> Markup:
    facts = audit.facts
    legs = ", ".join(f"{leg} ({count:,})" for leg, count in facts.get("legs", {}).items())
    rows: list[tuple[str, object]] = [
        ("transcript", facts.get("transcript", "")),
        ("samples", f"{facts.get('targets', 0):,} of {facts.get('samples', 0):,} were attacked"),
        ("known inputs", f"{facts.get('pairs', 0):,} for upper bounds"),
        ("packets", f"{facts.get('packets', 0):,}: {legs}"),
        ("run directory", str(audit.run.path)),
    ]
    if facts.get("ended"):
        rows.append(("the recording ended", facts["ended"]))
    notes = [tag("p", note, class_="note") for note in audit.notes]
    intervals = tag(
        "p",
        "Intervals have 95 % and are over the attacked samples. Upper bounds know more than an "
        "attacker of this wire has.",
        class_="note",
    )
    return join((mark_up_pairs(rows), *notes, intervals))
