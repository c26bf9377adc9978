"""Checks of `evaluate.controls`, which score the same weights in other ways.

The methods and the shapes at the cut decide which controls a scenario can have.
"""

from collections.abc import Sequence

from simsplit.errors import ScenarioError
from simsplit.methods import MethodConfig
from simsplit.models.fresh import Shape
from simsplit.scenario.messages import describe_unknown, format_value
from simsplit.schedules.exchange import WITHOUT_TRUNK


def refuse_unknown(controls: Sequence[str], methods: Sequence[MethodConfig]) -> None:
    """Raise ScenarioError for an unknown control, or one that is named twice."""
    known = [WITHOUT_TRUNK, *(reading for method in methods for reading in method.readings)]
    for index, control in enumerate(controls):
        if control not in known:
            raise ScenarioError(f"evaluate.controls.{index}", describe_unknown(control, known))
    if len(set(controls)) < len(controls):
        raise ScenarioError(
            "evaluate.controls", f"must name each once, got {format_value(controls)}"
        )


def refuse_unequal(controls: Sequence[str], cut: Shape, features: Shape) -> None:
    """Raise ScenarioError if the trunk is to be left out but changes shapes."""
    if WITHOUT_TRUNK in controls and cut != features:
        taken, given = ("x".join(map(str, shape)) for shape in (cut, features))
        raise ScenarioError(
            f"evaluate.controls.{list(controls).index(WITHOUT_TRUNK)}",
            f"{WITHOUT_TRUNK} needs a trunk whose input and output have the same shape; this one "
            f"takes {taken} and returns {given}",
        )
