"""An audit attacks a recorded wire and judges what is read, as a run's attacks are judged.

Attacks come from the registry, by their needs; the cheapest are tried first, within a budget. An
attack gets packets and what the server knows; the truth is the judges' alone.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from simsplit.attacking import Judgement
from simsplit.attacks import AttackConfig
from simsplit.auditing.audit_directory import AuditDirectory
from simsplit.auditing.audit_options import AuditOptions
from simsplit.auditing.audit_verdicts import (
    AuditFinding,
    find_worst,
    measure_findings,
    write_verdict,
)
from simsplit.auditing.grounds import Ground
from simsplit.auditing.offers import Untried, choose_attacks, list_wants
from simsplit.auditing.preparing_audits import PreparedAudit, prepare_audit
from simsplit.auditing.read_samples import choose_finding, list_samples, save_samples
from simsplit.auditing.recorded_clients import TimeSpentError, WireRecord, attack_record
from simsplit.errors import RunError, ScenarioError, SimsplitError
from simsplit.legs import Leg
from simsplit.machine import pin_threads
from simsplit.results import Run
from simsplit.results.leak_table import ATTACK
from simsplit.running.directories import (
    choose_free_name,
    explain_path_errors,
    holds_run,
)
from simsplit.wires.facts import REFERENCE
from simsplit.wires.transcript import Transcript

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[str, int, int], None]

LABELS_CROSS = "Labels cross as well, and are read without an attack."
"""Begins the verdict on a wire that carries labels."""


@dataclass(frozen=True)
class Audit:
    """What an audit has found."""

    run: Run
    """The run directory with the tables."""
    findings: Sequence[AuditFinding]
    """What each attack has read, in the order in which they were tried."""
    untried: Sequence[Untried] = ()
    """The attacks that were not tried, and what they would need."""
    notes: Sequence[str] = ()
    """What a reader of the figures should know."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What was recorded, and how much of it was used."""
    reference: "Audit | None" = None
    """The audit of the same samples without the defence, if these were recorded."""

    def __repr__(self) -> str:
        return f"<Audit {self.run.path}: {self.verdict}>"

    @property
    def verdict(self) -> str:
        """One sentence on what was read."""
        plain = self.reference.findings if self.reference else ()
        said = write_verdict(self.findings, int(self.facts.get("pairs", 0)), plain)
        return f"{LABELS_CROSS} {said}" if self.facts.get("legs", {}).get(Leg.LABELS) else said

    @property
    def worst(self) -> AuditFinding | None:
        """The attack that has read most; upper bounds do not count. None if none was tried."""
        return find_worst(self.findings)

    @property
    def share(self) -> float:
        """How much an attack has read at most, from 0 to 1; upper bounds do not count.

        The worst attack is that which gains most over a guess. One that gains less may read more,
        such as labels of two classes.
        """
        own = [each for each in self.findings if each.role == ATTACK and each.is_above_guess]
        return max((each.share for each in own), default=self.worst.share if self.worst else 0.0)

    @cached_property
    def table(self) -> "pd.DataFrame":
        """One row per attack: what it has read, and the best guess beside it."""
        import pandas as pd

        return pd.DataFrame([finding.to_dict() for finding in self.findings])

    @property
    def wants(self) -> Sequence[str]:
        """The lines that say what attackers would need to try more."""
        return list_wants(self.untried)

    @property
    def in_vain(self) -> Sequence[AuditFinding]:
        """The attacks that have read no more than a guess."""
        return [finding for finding in self.findings if not finding.is_above_guess]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values, as `audit.json` has them."""
        return {
            "verdict": self.verdict,
            "share": self.share,
            "attacks": [finding.to_dict() for finding in self.findings],
            "untried": [each._asdict() for each in self.untried],
            "wants": [*self.wants],
            "notes": [*self.notes],
            **({"reference": self.reference.to_dict()} if self.reference else {}),
            **self.facts,
        }


def _ignore_progress(what: str, done: int, total: int) -> None:
    del what, done, total


def audit(
    wire: str | Path,
    out: str | Path | None = None,
    *,
    knows: Mapping[str, Any] | None = None,
    public: str | Path | None = None,
    attacks: Sequence[str | Mapping[str, Any]] = (),
    budget: float = 600.0,
    targets: int = 64,
    client: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress = _ignore_progress,
) -> Audit:
    """Attack a recorded wire, and return what was read of it.

    Args:
        wire: The transcript's folder.
        out: The run directory to write; default: `runs/audit-NAME`.
        knows: What the server has: `model`, of texts a public model's folder, of others the
            client's network (a module, a safetensors file, a folder); `factory`, a function that
            makes that network; `module`, its part at the client; `run`, the run that was recorded;
            `pairs`, how many recorded inputs it knows, or a transcript with others.
        public: Public data that the attacker has: a folder, a file, or a word of `simsplit list
            data`.
        attacks: Kinds of attacks, or their fields as a scenario has them; default: all that the
            transcript allows.
        budget: Seconds after which no attack begins, and the one at work is stopped.
        targets: About how many samples are attacked.
        client: Whose samples; default: the client with most packets.
        seed: Seed of all draws.
        device: Where attacks compute.
        progress: A function called with an attack's name, the work done and the total work.

    >>> audit("wire", public="python_docs").verdict  # doctest: +SKIP
    """
    until = time.monotonic() + budget
    options = AuditOptions(
        path=Path(wire),
        knows=dict(knows or {}),
        public=None if public is None else str(public),
        targets=targets,
        client=client,
        seed=seed,
        device=device,
    )
    place = Path("runs") / f"audit-{options.name}" if out is None else Path(out)
    with explain_path_errors(place):
        if out is None:
            place = choose_free_name(place, resume=False, foreign="")
        if holds_run(place):
            raise RunError(f"{place} already holds a run; give another --out")
    work = partial(_attack_wire, attacks=attacks, progress=progress)
    prepared = prepare_audit(options)
    if not Transcript.open(options.path).has_reference:
        made = work(prepared, place, until=until)
    else:
        # prepared before an attack begins: what does not fit is said at once
        same = replace(options, reference=True, samples=prepared.samples)
        reference = prepare_audit(same)
        made = work(prepared, place, until=until - budget / 2)
        plain = work(reference, place / REFERENCE, until=until)
        made = replace(made, reference=plain)
    AuditDirectory.note(made.run.path, made.to_dict())
    return made


def _attack_wire(
    prepared: PreparedAudit,
    place: Path,
    *,
    attacks: Sequence[str | Mapping[str, Any]],
    until: float,
    progress: Progress,
) -> Audit:
    """Attack what one folder of packets has, and write its run directory."""
    ground, offers = prepared.ground, prepared.offers
    chosen, untried = choose_attacks(offers, attacks)
    if attacks and untried:
        raise SimsplitError(f"--attack: {untried[0].attack} needs {'; '.join(untried[0].wants)}")
    directory = AuditDirectory(place, ground.scenario, ground.data)
    notes, seconds = [*ground.notes], dict[str, float]()
    with pin_threads(ground.scenario.threads):
        directory.start(prepared.counts)
        for config in chosen:
            began = time.monotonic()
            judged = _let_attack(ground, prepared.record, config, until, progress)
            if isinstance(judged, str):
                untried.append(Untried(config.title, (), judged))
                continue
            directory.save(config.title, judged, prepared.record.rounds)
            seconds[config.title] = round(time.monotonic() - began, 2)
            notes += judged.notes
    run = directory.finish(prepared.record.rounds)
    bounds = [each.title for each in chosen if each.threat.is_bound]
    findings = measure_findings(run.leaks, bounds)
    shown = choose_finding(findings)
    if shown is not None:
        save_samples(run, shown, list_samples(run, shown))
    return Audit(run, findings, untried, notes, {**prepared.facts, "seconds": seconds})


def _let_attack(
    ground: Ground, record: WireRecord, config: AttackConfig, until: float, progress: Progress
) -> Judgement | str:
    """Let one attack work; return its scores, or why it did not come to its end."""
    if time.monotonic() > until:
        return f"{config.title}: the budget was spent before it"
    try:
        return attack_record(ground, record, config, until, progress)
    except TimeSpentError as error:
        return f"{config.title}: the budget was spent, {error}"
    except ScenarioError as error:  # what crosses does not fit its networks; others may read it
        return f"{config.title}: {error.reason}"
    # Numbers whose products overflow; others may read them.
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        return f"{config.title}: what crossed has numbers that it cannot solve for ({error})"
