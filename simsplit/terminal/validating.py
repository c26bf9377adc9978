"""What `simsplit validate` says of a scenario that is valid."""

from collections.abc import Sequence

from simsplit.packets import Leg
from simsplit.scenario import Scenario


def told(scenario: Scenario) -> str:
    """That it is valid, and what it would send."""
    lines = ["a valid scenario"]
    info = scenario.data.describe()
    if info is None:
        lines.append("its data are not known before they are loaded, so shapes were not checked")
        return "\n".join(lines)
    if not scenario.model.at_hand:
        lines.append("its model is fetched when a run begins, so shapes were not checked")
        return "\n".join(lines)
    (cut, features), (smashed, sent) = scenario.shapes(info)
    legs = [("cut", cut, smashed), ("features", features, sent)]
    for name, whole, crossing in legs if scenario.crossings.has(Leg.FEATURES) else legs[:1]:
        shape, values = "x".join(map(str, whole)), "x".join(map(str, crossing))
        lines.append(f"{name}: {shape}" + (f", sent as {values}" if whole != crossing else ""))
    return "\n".join(lines)


def told_of_cells(names: Sequence[str]) -> str:
    """That a sweep is valid, and what its cells are called."""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return f"a valid sweep of {len(names)} cells\n{'  '.join(names[:6])}{more}"
