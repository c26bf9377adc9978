"""Packages that a scenario needs and that this machine lacks are named before work starts.

A sweep asks for all of its cells, so that none is trained in vain.
"""

from simsplit.metrics.image_scores import describe_lack_of_lpips
from simsplit.metrics.text import describe_lack_of_code_bleu
from simsplit.scenario.fields import ScenarioFields
from simsplit.scenario.findings import Finding, Findings


def find_lacking(scenario: ScenarioFields) -> Findings:
    """Refuse a field whose package this machine lacks."""
    lacks = {f"observers.{place}.kind": each.lacks for place, each in enumerate(scenario.observers)}
    lacks["model.lora"] = scenario.model.lacks
    if "code_bleu" in scenario.metrics:
        lacks["evaluate.metrics"] = describe_lack_of_code_bleu()
    if scenario.targets.lpips is not None:
        lacks["targets.lpips"] = describe_lack_of_lpips()
    yield from (Finding(field, lack) for field, lack in lacks.items() if lack)
