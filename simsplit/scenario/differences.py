"""The fields in which two scenarios differ, for the message that refuses to resume a run."""

from typing import Any

from simsplit.scenario.messages import format_value
from simsplit.scenario.model import Scenario


def differences(before: Scenario, now: Scenario) -> list[str]:
    """Return the differences that keep `now` from resuming `before`, such as `seed was 0, is 1`."""
    return _compare(before.select_identity(), now.select_identity(), "")


def _compare(before: Any, now: Any, name: str) -> list[str]:  # noqa: ANN401 - plain values
    """Return the differences below a field; parts of two kinds differ as a whole."""
    if before == now:
        return []
    if isinstance(before, dict) and isinstance(now, dict) and before.get("kind") == now.get("kind"):
        pairs = {key: (before.get(key), now.get(key)) for key in {**before, **now}}
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = {str(index): both for index, both in enumerate(zip(before, now, strict=True))}
    else:
        return [f"{name} was {format_value(before)}, is {format_value(now)}"]
    return [
        difference
        for key, (old, new) in pairs.items()
        for difference in _compare(old, new, f"{name}.{key}".strip("."))
    ]
