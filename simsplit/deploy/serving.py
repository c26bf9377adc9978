"""The server of a deployed run: the simulator's own rounds, with clients that come in."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simsplit.deploy.elsewhere import elsewhere
from simsplit.deploy.gate import Gate
from simsplit.deploy.keys import Keys, valid_until
from simsplit.deploy.sockets import Sockets
from simsplit.deploy.terms import Mode, digest_of, facts, refuse_undeployable
from simsplit.errors import counted
from simsplit.experiment import Experiment
from simsplit.machine import pinned_threads
from simsplit.progress import Observer
from simsplit.results import SUMMARY, Run
from simsplit.results.directory import replace
from simsplit.scenario import Scenario

SAME = ("torch", "machine", "capability", "threads")
"""What must be the same everywhere for figures to be the simulation's, bit for bit."""


def serve(
    scenario: Scenario,
    path: Path,
    keys: Keys,
    listen: str,
    *,
    resume: bool = False,
    mode: Mode = "rehearsal",
    deadline_s: float = 600.0,
    patience_s: float = 600.0,
    observers: Sequence[Observer] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Run:
    """Train with the clients that come, and open the run.

    `deadline_s` is for one answer, `patience_s` for clients that are away.
    """
    refuse_undeployable(scenario)
    valid_until(keys)
    sockets = Sockets(path)
    terms = digest_of(scenario, mode)
    with pinned_threads(scenario.threads):
        gate = Gate(scenario, terms, sockets, deadline_s=deadline_s, patience_s=patience_s, say=say)
        with _opened(gate, listen, keys):
            gate.wait()
            data = elsewhere(scenario.data.source.kind, gate.form, gate.samples())
            words = f"deployed ({mode}), {counted(gate.count, 'client')} of their owners"
            watching = [*observers, sockets]
            experiment = Experiment(scenario, path, watching, data, gate, engine=words)
            experiment.run(resume=resume)
            _note(path, mode, facts(), [gate.told[c]["facts"] for c in range(gate.count)])
    return Run.load(path)


@contextmanager
def _opened(gate: Gate, listen: str, keys: Keys) -> Iterator[None]:
    """A block in which clients can come; at its end they are told how it ended."""
    why = "failed"
    try:
        port = gate.open(listen, keys)
        gate.say(f"listening on {listen.rpartition(':')[0]}:{port}, for {gate.count} clients")
        yield
        why = "finished"
    except KeyboardInterrupt:
        why = "interrupted"
        raise
    finally:
        gate.close(why)


def differing(ours: Mapping[str, Any], theirs: Sequence[Mapping[str, Any]]) -> list[str]:
    """In words, where clients' machines differ from the server's in what changes figures."""
    return [
        f"client {client}'s {name}: {told.get(name)}, not {ours[name]}"
        for client, told in enumerate(theirs)
        for name in SAME
        if told.get(name) != ours[name]
    ]


def _note(path: Path, mode: Mode, ours: Mapping[str, Any], theirs: list[dict[str, Any]]) -> None:
    """Add to the summary how it was deployed, and whether a simulation gives the same."""
    differs = differing(ours, theirs)
    told = {
        "mode": mode,
        "server": dict(ours),
        "clients": theirs,
        "differs": differs,
        "as_simulated": mode == "rehearsal" and not differs,
    }
    summary = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
    text = json.dumps({**summary, "deployed": told}, indent=2) + "\n"
    replace(path / SUMMARY, text.encode())
