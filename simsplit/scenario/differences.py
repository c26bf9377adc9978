"""Where two scenarios differ, field by field: what a refusal to resume tells its user."""

from typing import Any

from simsplit.scenario.messages import shown
from simsplit.scenario.model import Scenario


def differences(before: Scenario, now: Scenario) -> list[str]:
    """What a checkpoint of one cannot serve the other for, as `seed was 0, is 1`."""
    return _below(before.identified(), now.identified(), "")


def _below(before: Any, now: Any, name: str) -> list[str]:  # noqa: ANN401 - plain values
    if before == now:
        return []
    if isinstance(before, dict) and isinstance(now, dict) and before.get("kind") == now.get("kind"):
        pairs = {key: (before.get(key), now.get(key)) for key in {**before, **now}}
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = {str(index): both for index, both in enumerate(zip(before, now, strict=True))}
    else:
        return [f"{name} was {shown(before)}, is {shown(now)}"]
    return [
        told
        for key, (old, new) in pairs.items()
        for told in _below(old, new, f"{name}.{key}".strip("."))
    ]
