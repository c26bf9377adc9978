"""Models write texts in sessions, in which each token crosses once, or send whole texts anew.

This file decides which of both a scenario does.
"""

from simsplit.legs import Leg
from simsplit.models.language import CausalLM
from simsplit.needs import Given
from simsplit.scenario.fields import ScenarioFields
from simsplit.scenario.findings import Finding, Findings


def writes_in_sessions(scenario: ScenarioFields, reading: str = "") -> bool:
    """Return whether a scenario writes in sessions under a control; empty: under none."""
    return scenario.evaluate.sessions is not False and _find_hindrance(scenario, reading) is None


def find_impossible_sessions(scenario: ScenarioFields) -> Findings:
    """Refuse `evaluate.sessions: true` if the model cannot write in sessions."""
    # A control can make a method read otherwise, and then need whole texts.
    for reading in ("", *scenario.evaluate.controls) if scenario.evaluate.sessions else ():
        if (why := _find_hindrance(scenario, reading)) is not None:
            yield Finding(
                "evaluate.sessions",
                f"got true, but {why}; use null, which sends whole texts where sessions fail",
            )


def explain_no_sessions(scenario: ScenarioFields) -> str | None:
    """Return why attacks cannot read the texts that clients write; None if they can.

    Without sessions they read the last pass, if each row of it is one text.
    """
    if not isinstance(scenario.model, CausalLM):
        return f"{scenario.model.kind} writes no texts"
    if not (scenario.crossings.sessions and scenario.crossings.tail_with_client):
        return f"under topology {scenario.topology} clients do not write with a tail of their own"
    if writes_in_sessions(scenario):
        return None
    for index, method in enumerate(scenario.method):
        mixes = any(need.what is Given.SUPPORT for need in method.needs) or method.added_tokens
        if mixes or Leg.SMASHED in method.superposes:
            return f"method.{index} ({method.kind_name}) sends rows that mix texts"
    return None


def _find_hindrance(scenario: ScenarioFields, reading: str) -> str | None:
    """Return why tokens cannot cross one by one; None if they can."""
    if not isinstance(scenario.model, CausalLM):
        return f"{scenario.model.kind} writes no texts"
    if scenario.has_own_cuts:
        # Caches count layers from the trunk's first.
        return "clients.cut gives clients different cuts"
    if not scenario.crossings.sessions:
        return f"topology {scenario.topology} has no sessions"
    for index, method in enumerate(scenario.method):
        if not method.can_run_in_sessions(reading):
            under = f" under the control {reading}" if reading else ""
            return f"method.{index} ({method.kind_name}) needs whole texts in every pass{under}"
    length, limit = getattr(scenario.data.source, "length", 0), scenario.model.find_cache_limit()
    if limit is not None and length > limit:
        return f"data.source.length is {length}, and the model's caches hold up to {limit}"
    return None
