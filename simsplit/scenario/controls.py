"""Which controls an evaluation can have: ways to score the same weights, by methods and cut."""

from collections.abc import Sequence

from simsplit.errors import ScenarioError
from simsplit.methods import MethodConfig
from simsplit.models.fresh import Shape
from simsplit.scenario.messages import shown, unknown
from simsplit.schedules.exchange import WITHOUT_TRUNK


def refuse_unknown(controls: Sequence[str], methods: Sequence[MethodConfig]) -> None:
    """ScenarioError for a control that there is not, or that is named twice."""
    known = [WITHOUT_TRUNK, *(reading for method in methods for reading in method.readings)]
    for index, control in enumerate(controls):
        if control not in known:
            raise ScenarioError(f"evaluate.controls.{index}", unknown(control, known))
    if len(set(controls)) < len(controls):
        raise ScenarioError("evaluate.controls", f"must name each once, got {shown(controls)}")


def refuse_unequal(controls: Sequence[str], cut: Shape, features: Shape) -> None:
    """ScenarioError where a trunk is to be left out that changes shapes."""
    if WITHOUT_TRUNK in controls and cut != features:
        taken, given = ("x".join(map(str, shape)) for shape in (cut, features))
        raise ScenarioError(
            f"evaluate.controls.{list(controls).index(WITHOUT_TRUNK)}",
            f"{WITHOUT_TRUNK} needs a trunk that puts out what it takes in shape; this one takes "
            f"{taken} and puts out {given}",
        )
