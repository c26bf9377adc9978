"""Rules about where attackers sit: a seat must exist, and must show what an attack reads."""

from simsplit.attacks import ATTACKS
from simsplit.errors import SimsplitError, format_list
from simsplit.scenario.fields import ScenarioFields
from simsplit.scenario.findings import Finding, Findings


def find_empty_seats(scenario: ScenarioFields) -> Findings:
    """Refuse an attacker at a client, or a party, that does not exist."""
    last, wanted = scenario.clients.count - 1, "party" if scenario.parties else "client"
    for index, attack in enumerate(scenario.attacks):
        field = f"attacks.{index}.by"
        word, _, who = attack.by.partition(" ")
        if who and word != wanted:
            yield Finding(
                field,
                f"got '{attack.by}'; under topology: {scenario.topology} use '{wanted} {who}'",
            )
        try:
            client = scenario.find_viewpoint(attack).client
        except SimsplitError as error:
            yield Finding(field, str(error))
            continue
        if client is not None and client > last:
            yield Finding(field, f"must be a {wanted} between 0 and {last}, got {client}")


def find_blind_seats(scenario: ScenarioFields) -> Findings:
    """Refuse an attack from a seat that does not show what it reads."""
    for index, attack in enumerate(scenario.attacks):
        role = scenario.find_role(scenario.find_viewpoint(attack))
        threat = attack.threat
        if role in threat.roles:
            continue
        unseen = [each.value.words for each in threat.sees if role not in each.value.seen_by]
        others = [kind for kind, each in ATTACKS.items() if role in each.threat.roles]
        yield Finding(
            f"attacks.{index}.by",
            f"{attack.kind_name} reads {format_list(unseen)}, which a {role} does not see; allowed "
            f"for it: {format_list(threat.roles)}; attacks by a {role}: {format_list(others)}",
        )


def find_own_victims(scenario: ScenarioFields) -> Findings:
    """Refuse an attacker whose samples are its own targets."""
    for index, attack in enumerate(scenario.attacks):
        own = attack.sitting and scenario.find_viewpoint(attack).client == scenario.targets.client
        # The labels that a party is after are another's.
        if own and not (scenario.parties and attack.recovers == "labels"):
            yield Finding(
                f"attacks.{index}.by",
                f"{attack.by} is targets.client too; an attacker's samples are no secret to it",
            )


def find_steady_optimizers(scenario: ScenarioFields) -> Findings:
    """Refuse an attacker that would change its optimizer, where that has no such change."""
    optimizer = scenario.train.client
    for index, attack in enumerate(scenario.attacks):
        acts = attack.sitting and attack.threat.acts
        if acts and attack.change_optimizer(optimizer) is optimizer:
            yield Finding(
                "train.client.kind",
                f"got {optimizer.kind_name}; attacks.{index} ({attack.kind_name}) "
                f"{attack.threat.acts}, which sgd alone has",
            )
