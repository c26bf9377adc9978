"""A server runs the simulator's own rounds, with clients that connect from their machines."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simsplit.deploy.gate import Gate
from simsplit.deploy.keys import Keys, check_validity
from simsplit.deploy.remote_data import make_remote_data
from simsplit.deploy.socket_table import SocketTable
from simsplit.deploy.terms import Mode, describe_machine, digest_terms, refuse_undeployable
from simsplit.errors import format_count
from simsplit.experiment import Experiment
from simsplit.machine import pin_threads
from simsplit.progress import Observer
from simsplit.results import SUMMARY, Run
from simsplit.results.directory import replace
from simsplit.scenario import Scenario

DECISIVE_FACTS = ("torch", "machine", "capability", "threads")
"""The facts of machines that must be equal for a run to equal its simulation, bit for bit."""


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
    """Train with the clients that connect, and return the run.

    `deadline_s` is the time for one answer, `patience_s` the time for clients that are away.
    """
    refuse_undeployable(scenario)
    check_validity(keys)
    sockets = SocketTable(path)
    terms = digest_terms(scenario, mode)
    with pin_threads(scenario.threads):
        gate = Gate(scenario, terms, sockets, deadline_s=deadline_s, patience_s=patience_s, say=say)
        with _open_gate(gate, listen, keys):
            gate.wait()
            data = make_remote_data(scenario.data.source.kind, gate.form, gate.count_samples())
            engine = f"deployed ({mode}), {format_count(gate.count, 'client')} of their owners"
            watching = [*observers, sockets]
            experiment = Experiment(scenario, path, watching, data, gate, engine=engine)
            experiment.run(resume=resume)
            _record_deployment(
                path,
                mode,
                describe_machine(),
                [gate.greetings[c]["facts"] for c in range(gate.count)],
            )
    return Run.load(path)


@contextmanager
def _open_gate(gate: Gate, listen: str, keys: Keys) -> Iterator[None]:
    """Open the gate for a block; at its end, send clients the reason why it ended."""
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


def find_differences(ours: Mapping[str, Any], theirs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe where clients' machines differ from the server's in facts that change figures."""
    return [
        f"client {client}'s {name}: {facts.get(name)}, not {ours[name]}"
        for client, facts in enumerate(theirs)
        for name in DECISIVE_FACTS
        if facts.get(name) != ours[name]
    ]


def _record_deployment(
    path: Path, mode: Mode, ours: Mapping[str, Any], theirs: list[dict[str, Any]]
) -> None:
    """Add to the summary how the run was deployed, and whether a simulation equals it."""
    differs = find_differences(ours, theirs)
    deployed = {
        "mode": mode,
        "server": dict(ours),
        "clients": theirs,
        "differs": differs,
        "as_simulated": mode == "rehearsal" and not differs,
    }
    summary = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
    text = json.dumps({**summary, "deployed": deployed}, indent=2) + "\n"
    replace(path / SUMMARY, text.encode())
