"""Packages that a scenario needs and that this machine lacks are named before work starts.

A sweep asks for all of its cells, so that none is trained in vain.
"""

from collections.abc import Iterator

from simsplit.metrics.image_scores import describe_lack_of_lpips
from simsplit.metrics.text import describe_lack_of_code_bleu
from simsplit.scenario.fields import ScenarioFields
from simsplit.scenario.findings import Finding, Findings


def find_lacking(scenario: ScenarioFields) -> Findings:
    """Refuse a field whose package this machine lacks."""
    yield from (Finding(*each) for each in _list_lacks(scenario) if each[1])


def _list_lacks(scenario: ScenarioFields) -> Iterator[tuple[str, str]]:
    """Yield fields and what each lacks, which is empty where nothing is missing."""
    for index, config in enumerate(scenario.observers):
        yield f"observers.{index}.kind", config.lacks
    yield "model.lora", scenario.model.lacks
    if "code_bleu" in scenario.metrics:
        yield "evaluate.metrics", describe_lack_of_code_bleu()
    if scenario.targets.lpips is not None:
        yield "targets.lpips", describe_lack_of_lpips()
