"""Fields of a scenario that a deployment, on machines of several owners, cannot have, or that need
a package that this machine lacks.

Packages are named before work starts. A sweep asks for all of its cells, so that none is trained in
vain.
"""

from simsplit.data.joined_tables import JoinedSource
from simsplit.metrics.image_scores import describe_lack_of_lpips
from simsplit.metrics.text import describe_lack_of_code_bleu
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


def find_lacking(scenario: ScenarioFields) -> Findings:
    """Refuse a field whose package this machine lacks."""
    lacks = {f"observers.{place}.kind": each.lacks for place, each in enumerate(scenario.observers)}
    lacks["model.lora"] = scenario.model.lacks
    if "code_bleu" in scenario.metrics:
        lacks["evaluate.metrics"] = describe_lack_of_code_bleu()
    if scenario.targets.lpips is not None:
        lacks["targets.lpips"] = describe_lack_of_lpips()
    yield from (Finding(field, lack) for field, lack in lacks.items() if lack)
