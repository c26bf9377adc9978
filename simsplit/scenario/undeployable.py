"""Fields of a scenario that a deployment, on machines of several owners, cannot have."""

from simsplit.data.joined_tables import JoinedSource
from simsplit.scenario.fields import ScenarioFields
from simsplit.scenario.findings import Finding, Findings


def find_undeployable(scenario: ScenarioFields) -> Findings:
    """Refuse to deploy fields that only simulations allow."""
    only = "works in simulations only, not in deployments"
    cohort, schedule = scenario.cohort, scenario.schedule
    problems = {
        ("clients.malicious", f"{only}; leave it out"): scenario.clients.malicious,
        ("attacks", f"{only}: attacks are judged by clients' samples; use []"): scenario.attacks,
        ("cohort.deadline_s", f"{only}; use simsplit serve --deadline instead"): cohort.deadline_s,
        ("cohort.dropout", f"{only}; use 0"): cohort.dropout,
        ("engine.rest", f"{only}; use memory"): scenario.rests_on_disk,
        (
            "servers",
            f"got {scenario.servers}, but a deployed run has one server, which would see what "
            "several servers must keep from each other; use 1",
        ): scenario.servers > 1,
        (
            "schedule.epochs",
            "a deployed client must know the number of rounds; use schedule.rounds instead",
        ): schedule.epochs,
    }
    if isinstance(scenario.data.source, JoinedSource) and scenario.joining.party is None:
        yield Finding(
            "vertical.party",
            "must name the party that has the labels, as no machine has all files",
        )
    yield from (Finding(*problem) for problem, is_set in problems.items() if is_set)
    for number, method in enumerate(scenario.method):
        if not method.deployable:
            yield Finding(
                f"method.{number}.kind",
                f"got {method.kind_name}, which {only}: it needs the vocabulary of all clients' "
                "texts; use another method",
            )
