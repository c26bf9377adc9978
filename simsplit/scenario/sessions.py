"""Whether models write in sessions, in which each token crosses once, or send whole texts anew."""

from simsplit.errors import ScenarioError
from simsplit.models.language import CausalLM
from simsplit.needs import Given
from simsplit.packets import Leg
from simsplit.scenario.fields import ScenarioFields


def writes_in_sessions(scenario: ScenarioFields, reading: str = "") -> bool:
    """Whether a control (empty: the run as it is) does."""
    return scenario.evaluate.sessions is not False and _hindrance(scenario, reading) is None


def refuse_sessions(scenario: ScenarioFields) -> None:
    """ScenarioError where sessions are asked for and cannot be."""
    if not scenario.evaluate.sessions:
        return
    for reading in ("", *scenario.evaluate.controls):
        if (why := _hindrance(scenario, reading)) is not None:
            raise ScenarioError(
                "evaluate.sessions",
                f"got true, but {why}; use null, which sends whole texts where it must",
            )


def no_sessions(scenario: ScenarioFields) -> str | None:
    """Why attacks see no texts of clients that write; None where they do.

    Where whole texts cross in every pass they see the last one, if a row is a text.
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
            return f"method.{index} ({method.word}) sends rows that are no single text's"
    return None


def _hindrance(scenario: ScenarioFields, reading: str) -> str | None:
    """Why tokens cannot cross one by one; None where they can."""
    if not isinstance(scenario.model, CausalLM):
        return f"{scenario.model.kind} writes no texts"
    if not scenario.crossings.sessions:
        return f"topology {scenario.topology} has no sessions"
    for index, method in enumerate(scenario.method):
        if not method.in_sessions(reading):
            under = f" under the control {reading}" if reading else ""
            return f"method.{index} ({method.word}) needs whole texts in every pass{under}"
    return None
