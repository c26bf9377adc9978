"""A server runs the simulator's own rounds, with clients that connect from their machines."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simsplit.client_names import ClientNames
from simsplit.deploy.alignment import PartiesAway
from simsplit.deploy.client_session import ClientLost, FaultOf
from simsplit.deploy.data_form import make_remote_data
from simsplit.deploy.gate import Gate
from simsplit.deploy.keys import Keys, check_validity, read_roster
from simsplit.deploy.server_tables import LeftOutTable, SocketTable
from simsplit.deploy.terms import Mode, describe_machine, digest_terms, refuse_undeployable
from simsplit.errors import RunFailedError, ScenarioError, format_count
from simsplit.experiment import Experiment
from simsplit.legs import ClientId
from simsplit.machine import find_device, pin_threads
from simsplit.opened_run import OpenedRun
from simsplit.plugins.gathering import list_changed
from simsplit.privacy.accounting import list_withheld_figures
from simsplit.progress import Observer
from simsplit.results import SCENARIO, SUMMARY, Run
from simsplit.results.directory import replace
from simsplit.running.checkpointing import LOSSES
from simsplit.running.rehearsing import rehearse
from simsplit.scenario import Scenario

SEED_IS_KNOWN = (
    "in a rehearsal all noise follows the scenario's seed, so the server can draw it too; use "
    "--mode private"
)
DECISIVE_FACTS = ("simsplit", "torch", "machine", "capability", "threads", "device")
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
    without: Collection[ClientId] = (),
    observers: Sequence[Observer] = (),
    say: Callable[[str], None] = lambda _: None,
) -> OpenedRun:
    """Train with the clients that connect, and return the run.

    `deadline_s` is the time for one answer, `patience_s` the time for clients that are away. The
    run starts or continues without the clients of `without`.
    """
    refuse_undeployable(scenario)
    check_validity(keys)
    for warning in list_changed(path, scenario.plugins) if resume else ():
        say(warning)
    sockets, left_out = SocketTable(path), LeftOutTable(path, resume=resume)
    _leave_out(scenario, left_out, without, path)
    with pin_threads(scenario.threads):
        if (info := scenario.data.describe()) is not None:
            # a plugin that always fails is named before anybody connects
            for warning in rehearse(scenario, None, find_device(scenario.device), info=info):
                say(warning)
        gate = Gate(
            *(scenario, digest_terms(scenario, mode), sockets, left_out),
            deadline_s=deadline_s,
            patience_s=patience_s,
            say=say,
        )
        with _open_gate(gate, listen, keys):
            own = [config.build(path) for config in scenario.observers]
            experiment = _build_experiment(gate, path, [*observers, *own, sockets], mode, keys)
            experiment.run(resume=resume)
            _record_deployment(path, mode, gate)
    return OpenedRun.load(path)


def _build_experiment(
    gate: Gate, path: Path, observers: Sequence[Observer], mode: Mode, keys: Keys
) -> Experiment:
    """Wait for clients and build the run; start anew if one is lost or expelled meanwhile."""
    losses: Counter[ClientId] = Counter()
    while True:
        # Again after each loss: data are planned anew for those who remain.
        _align_ids(gate, keys)
        gate.wait()
        source = gate.scenario.data.source.kind
        names = ClientNames(gate.scenario.party_names)
        data = make_remote_data(source, gate.form, gate.count_samples(), names)
        present = format_count(gate.count - len(gate.left_out), "client")
        engine = f"deployed ({mode}), {present} of their owners"
        try:
            return Experiment(
                *(gate.scenario, path, observers, data, gate),
                engine=engine,
                withheld=list_withheld_figures(gate.scenario),
                no_guarantee=SEED_IS_KNOWN if mode == "rehearsal" else "",
            )
        except ClientLost as lost:
            losses[lost.host] += 1
            if losses[lost.host] > LOSSES:
                gate.give_up(lost.host, f"it was lost again and again: {lost.cause}", 1)


def _align_ids(gate: Gate, keys: Keys) -> None:
    """Have the parties find their common ids, if the scenario says so, before they greet."""
    while gate.meeting is not None:
        try:
            gate.meeting.hold(
                lambda: {*range(gate.count)} - gate.left_out,
                lambda client: client in gate.sessions,
                read_roster(keys),
                gate.patience_s,
            )
        except PartiesAway as away:
            if not gate.is_quorum_without(away.clients):
                raise
            for client in away.clients:
                why = f"it did not come within {gate.patience_s:g} s"
                gate.table.add(client, 1, "away", why)
        except FaultOf as culprit:
            gate.meeting.drop(culprit.client)
            if not gate.is_quorum_without([culprit.client]):
                raise RunFailedError(
                    f"client {culprit.client} sent {culprit}, so ids cannot be aligned; start "
                    f"without it: --without {culprit.client}, or set clients.quorum"
                ) from None
            gate.lose(culprit.client, f"it sent {culprit}", True, 1)
        else:
            return


def _leave_out(
    scenario: Scenario, left_out: LeftOutTable, without: Collection[ClientId], path: Path
) -> None:
    """Leave out the clients of `--without`; raise ScenarioError if the scenario needs them."""
    count, least = scenario.clients.count, scenario.least_clients
    if unknown := [client for client in without if not 0 <= client < count]:
        raise ScenarioError(
            "clients.count", f"--without {unknown[0]}: clients are numbered 0 to {count - 1}"
        )
    if (remaining := count - len(left_out.clients | {*without})) < least.count:
        raise ScenarioError(
            least.field,
            f"{format_count(remaining, 'client')} would remain in {path}, at least {least.count} "
            "must",
        )
    # Earlier rounds were trained with the client, and their rows stay as they are.
    done = len(Run.load(path).rounds) if (path / SCENARIO).exists() else 0
    for client in sorted(without):
        left_out.add(client, done + 1, "without", "the server's owner continues without it")


@contextmanager
def _open_gate(gate: Gate, listen: str, keys: Keys) -> Iterator[None]:
    """Open the gate for a block; at its end, send clients the reason why it ended."""
    # The worst is assumed until the block has ended, whatever leaves it.
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


def find_differences(
    ours: Mapping[str, Any], theirs: Sequence[Mapping[str, Any] | None]
) -> list[str]:
    """Describe where clients' machines differ from the server's in facts that change figures.

    The facts of a client that never greeted are None.
    """
    return [
        f"client {client}'s {name}: {facts.get(name)}, not {ours[name]}"
        for client, facts in enumerate(theirs)
        for name in DECISIVE_FACTS
        if facts is not None and facts.get(name) != ours[name]
    ]


def _record_deployment(path: Path, mode: Mode, gate: Gate) -> None:
    """Add to the summary how the run was deployed, and whether a simulation equals it.

    With data of a client's own that is not known (null): they may be other samples than a
    simulation reads.
    """
    ours = describe_machine(find_device(gate.scenario.device))
    theirs = [gate.greetings.get(client, {}).get("facts") for client in range(gate.count)]
    differs = find_differences(ours, theirs)
    equals = mode == "rehearsal" and not (differs or gate.has_clipped or gate.left_out)
    has_own = any(facts is not None and facts.get("data") == "own" for facts in theirs)
    deployed = {
        "mode": mode,
        "server": ours,
        "clients": theirs,
        "differs": differs,
        "trunk_clipped": gate.has_clipped,
        "as_simulated": None if equals and has_own else equals,
    }
    summary = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
    text = json.dumps({**summary, "deployed": deployed}, indent=2) + "\n"
    replace(path / SUMMARY, text.encode())
