"""The table of all rules that a whole scenario must keep, in the order in which they are checked.

What one part refuses of its own values stands in its config. Nothing else refuses a scenario.
"""

from collections.abc import Mapping

from simsplit.data import Prepared
from simsplit.errors import ScenarioError
from simsplit.scenario import (
    attacker_seats,
    cuts,
    lacking,
    misfits,
    private_rules,
    session_rules,
    stacking,
    undeployable,
    unmet_needs,
    vertical_rules,
)
from simsplit.scenario import warnings as hardly_meant
from simsplit.scenario.fields import ScenarioFields
from simsplit.scenario.findings import Finding, Findings, Occasion, Rule, Severity

RULES: Mapping[Occasion, tuple[Rule, ...]] = {
    Occasion.READ: (
        Rule(vertical_rules.find_unfit_parties, "vertical..., data.partition, clients.count"),
        Rule(vertical_rules.find_unknown_party, "vertical.party"),
        Rule(vertical_rules.find_unfit_for_parties, "clients..., schedule..., detectors, ..."),
        Rule(vertical_rules.find_unfit_texts, "data.source..., model..., vertical..."),
        Rule(vertical_rules.find_strange_owners, "method.N.by"),
        Rule(misfits.find_idle_methods, "method.N.kind"),
        Rule(misfits.find_extra_servers, "servers"),
        Rule(misfits.find_unserved_models, "model.kind, topology"),
        Rule(misfits.find_unknown_metrics, "evaluate.metrics.N"),
        Rule(misfits.find_other_samples, "train..., data..., evaluate..."),
        Rule(misfits.find_uneven_parts, "train.accumulate"),
        Rule(private_rules.find_unsampled_batches, "train..., train.dp"),
        Rule(private_rules.find_mixing_methods, "method.N.kind"),
        Rule(private_rules.find_unplanned_budgets, "train.dp.epsilon"),
        Rule(misfits.find_unscorable, "evaluate.metrics, evaluate.on"),
        Rule(misfits.find_unknown_stops, "stop.metric"),
        Rule(misfits.find_untunable, "attacks.N.tune..."),
        Rule(misfits.find_unknown_controls, "evaluate.controls.N"),
        Rule(session_rules.find_impossible_sessions, "evaluate.sessions"),
        Rule(unmet_needs.find_unmet, "aggregation, method.N..., detectors.N..., attacks.N..."),
        Rule(misfits.find_weights_of_one_client, "model.weights"),
        Rule(misfits.find_disorder, "method.N.kind"),
        Rule(misfits.find_second_aims, "clients.malicious.poison.N"),
        Rule(misfits.find_unseen_packets, "observers.N.kind"),
        Rule(misfits.find_twin_detectors, "detectors.N.name"),
        Rule(misfits.find_strangers, "detectors.N.root, targets.client"),
        Rule(misfits.find_twin_attacks, "attacks.N.name"),
        Rule(misfits.find_second_forgers, "attacks.N"),
        Rule(attacker_seats.find_empty_seats, "attacks.N.by"),
        Rule(attacker_seats.find_blind_seats, "attacks.N.by"),
        Rule(attacker_seats.find_own_victims, "attacks.N.by"),
        Rule(attacker_seats.find_steady_optimizers, "train.client.kind"),
        Rule(misfits.find_undrawable, "clients.malicious..."),
        Rule(misfits.find_missing_networks, "network, cohort.deadline_s"),
        Rule(misfits.find_restless, "engine.rest"),
        Rule(stacking.find_unstackable, "engine.stack"),
        Rule(cuts.find_unfit_cuts, "clients.cut..., model..., aggregation..."),
        Rule(misfits.find_refused_by_torch, "train.client..., train.server..."),
        Rule(hardly_meant.find_missing_devices, "device", "warn"),
        Rule(hardly_meant.find_many_threads, "threads", "warn"),
        Rule(hardly_meant.find_slow_precision, "train.precision, attacks.N.precision", "warn"),
        Rule(hardly_meant.find_missing_files, "data.source.path", "warn"),
        Rule(hardly_meant.find_crowded_data, "clients.count", "warn"),
        Rule(hardly_meant.find_telling_messages, "servers", "warn"),
        Rule(hardly_meant.find_idle_proximal_terms, "aggregation.proximal", "warn"),
        Rule(stacking.find_idle_stacks, "engine.stack", "warn"),
        Rule(hardly_meant.find_unrotated_levels, "method.N.levels", "warn"),
        Rule(hardly_meant.find_late_detectors, "detectors.N.since", "warn"),
    ),
    Occasion.SAMPLES: (
        Rule(misfits.find_images_only, "model.kind"),
        Rule(unmet_needs.find_other_classes, "method.N.kind, attacks.N.kind"),
    ),
    Occasion.SHAPES: (
        Rule(misfits.find_overlong, "data.public.length, method.N.tokens"),
        Rule(misfits.find_unequal_shapes, "evaluate.controls.N"),
        Rule(cuts.find_unequal_cuts, "clients.cut..., method.0.kind"),
    ),
    Occasion.PACKAGES: (
        Rule(lacking.find_lacking, "observers.N.kind, model.lora, evaluate.metrics, targets.lpips"),
    ),
    Occasion.DATA: (
        Rule(hardly_meant.find_empty_classes, "", "warn"),
        Rule(hardly_meant.find_few_tests, "", "warn"),
        Rule(hardly_meant.find_oversized_batches, "train.batch_size", "warn"),
        Rule(hardly_meant.find_attacks_without_rows, "attacks", "warn"),
        Rule(hardly_meant.find_partial_statistics, "train.accumulate", "warn"),
        Rule(hardly_meant.find_poor_roots, "detectors.N.root", "warn"),
        Rule(private_rules.find_large_deltas, "train.dp.delta, method.N.report_delta", "warn"),
    ),
    Occasion.MODEL: (
        Rule(private_rules.find_mixing_layers, "train.dp"),
        Rule(stacking.find_unstackable_layers, "engine.stack"),
    ),
    Occasion.BUILT: (
        Rule(private_rules.find_learned_parts, "method"),
        Rule(unmet_needs.find_idle, "method.N.kind"),
        Rule(vertical_rules.find_unfit_methods, "method.N.kind"),
        Rule(misfits.find_inspected_parts, "train.accumulate"),
        Rule(misfits.find_second_losses, "method.N.kind"),
        Rule(misfits.find_unheard_losses, "method.N.kind"),
        Rule(stacking.find_unstackable_methods, "engine.stack"),
        Rule(unmet_needs.find_learning_servers, "method.N.kind, detectors.N.kind, attacks.N.kind"),
    ),
    Occasion.MEMORY: (Rule(misfits.find_too_large, "engine.rest"),),
    Occasion.BATCHES: (Rule(misfits.find_late_methods, "method.N..."),),
    Occasion.ROUNDS: (Rule(misfits.find_late_poisons, "clients.malicious.poison.N.from_round"),),
    Occasion.DEPLOYED: (
        Rule(undeployable.find_undeployable, "clients.malicious, attacks, cohort..., servers, ..."),
    ),
}


def _find(
    severity: Severity, occasion: Occasion, scenario: ScenarioFields, *known: object
) -> Findings:
    for rule in RULES[occasion]:
        if rule.severity == severity:
            yield from rule.find(scenario, *known)


def refuse(occasion: Occasion, scenario: ScenarioFields, *known: object) -> None:
    """Raise ScenarioError for the first finding on an occasion; `known` is what rules need."""
    for finding in _find("refuse", occasion, scenario, *known):
        raise ScenarioError(*finding)


def list_findings(occasion: Occasion, scenario: ScenarioFields, *known: object) -> list[Finding]:
    """Return all findings on an occasion, warnings left out."""
    return list(_find("refuse", occasion, scenario, *known))


def list_warnings(scenario: ScenarioFields) -> list[str]:
    """Return the warnings that need no data, a line each."""
    return [*map(str, _find("warn", Occasion.READ, scenario))]


def list_data_warnings(scenario: ScenarioFields, data: Prepared) -> list[str]:
    """Return the warnings about loaded data, a line each."""
    return [*data.warnings, *map(str, _find("warn", Occasion.DATA, scenario, data))]
