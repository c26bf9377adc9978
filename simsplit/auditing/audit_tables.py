"""An audit's table: what each attack has read, beside a guess."""

from simsplit.auditing.audit_verdicts import AuditFinding
from simsplit.auditing.audits import Audit
from simsplit.report.tables import Table
from simsplit.results.leak_table import CEILING

_WORDS = {CEILING: "upper bound"}


def tabulate_audit(audit: Audit) -> Table:
    """Tabulate a row for each attack: upper bounds last, and those that have read most first."""
    facts = audit.facts
    # What was read of the same samples without the defence.
    findings = audit.reference.findings if audit.reference else ()
    plain = {(each.attack, each.kind): each.reading for each in findings}
    rows = [
        (
            _entitle(each),
            each.kind,
            each.metric.replace("_", " "),
            each.reading,
            *([plain.get((each.attack, each.kind), "")] if audit.reference else ()),
            f"{each.write(each.floor)} ({each.guess.replace('_', ' ')})",
            str(each.samples),
            *(["" if each.is_above_guess else "in vain"] if audit.in_vain else ()),
            f"{facts.get('seconds', {}).get(each.attack, 0):.1f}",
        )
        for each in sorted(audit.findings, key=lambda each: (each.role == CEILING, -each.gain))
    ]
    title = (
        f"{facts.get('targets', 0):,} of {facts.get('samples', 0):,} recorded samples attacked; "
        "intervals: 95 %, over samples"
    )
    columns = [("attack", "l"), ("of", "l"), ("figure", "l"), ("read", "r")]
    columns += [("without the defence", "r")] if audit.reference else []
    columns += [("a guess", "r"), ("samples", "r")]
    columns += [("", "l")] if audit.in_vain else []
    columns += [("s", "r")]
    names, sides = zip(*columns, strict=True)
    return Table(title, names, rows, "".join(sides))


def _entitle(finding: AuditFinding) -> str:
    """Return an attack's name, and what it knows beside what the server sees."""
    words = _WORDS.get(finding.role, "knows labels" if finding.known else "")
    return f"{finding.attack} ({words})" if words else finding.attack
