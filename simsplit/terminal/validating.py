"""`simsplit validate` describes a valid scenario by the shapes that it sends."""

from collections.abc import Sequence

from simsplit.packets import Leg
from simsplit.scenario import Scenario


def describe_scenario(scenario: Scenario) -> str:
    """Return lines on a valid scenario, with the shapes that it sends."""
    lines = ["a valid scenario"]
    info = scenario.data.describe()
    if info is None:
        lines.append("its data are not known before they are loaded, so shapes were not checked")
        return "\n".join(lines)
    if not scenario.model.is_available_offline:
        lines.append("its model is fetched when a run begins, so shapes were not checked")
        return "\n".join(lines)
    (cut, features), (smashed, sent) = scenario.shapes(info)
    legs = [("cut", cut, smashed), ("features", features, sent)]
    for name, whole, crossing in legs if scenario.crossings.has(Leg.FEATURES) else legs[:1]:
        shape, values = "x".join(map(str, whole)), "x".join(map(str, crossing))
        lines.append(f"{name}: {shape}" + (f", sent as {values}" if whole != crossing else ""))
    return "\n".join(lines)


def describe_cells(names: Sequence[str]) -> str:
    """Return lines on a valid sweep, with the names of its first cells."""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return f"a valid sweep of {len(names)} cells\n{'  '.join(names[:6])}{more}"
