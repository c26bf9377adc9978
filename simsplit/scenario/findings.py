"""A rule of scenarios is an entry: what it checks, how grave a finding is, and what finds it.

`refusals` has the table of all rules. A finding of a grave rule is a ScenarioError; the others are
warnings.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from simsplit.errors import ScenarioError

Severity = Literal["refuse", "warn"]


class Finding(NamedTuple):
    """One thing that is wrong with a scenario, or hardly meant."""

    field: str
    """The field to change, dotted; empty if no single field is to blame."""
    reason: str

    def __str__(self) -> str:
        return f"scenario.{self.field}: {self.reason}" if self.field else self.reason


Findings = Iterator[Finding]


def catch(check: Callable[..., object], *given: object) -> Findings:
    """Yield the ScenarioError that a check of another room raises, as a finding."""
    try:
        check(*given)
    except ScenarioError as error:
        yield Finding(error.field, error.reason)


class Occasion(Enum):
    """When a rule is checked: each needs to know more than the one before."""

    READ = "when the scenario is read"
    SAMPLES = "when the form of samples is known"
    SHAPES = "when the model's shapes are known"
    PACKAGES = "before a run starts"
    DATA = "when data are loaded"
    MODEL = "when the model is built"
    BUILT = "when the methods are built"
    MEMORY = "when memory is estimated"
    BATCHES = "when batches are counted"
    ROUNDS = "when the rounds are planned"
    DEPLOYED = "before a deployment starts"


@dataclass(frozen=True)
class Rule:
    """A rule of scenarios."""

    find: Callable[..., Findings]
    """The function that yields findings; the first line of its docstring says what it checks. The
    first finding alone is read where it is refused, so what follows may take it as mended."""
    field: str
    """The field that findings name, with N for a number; `...` stands for other fields."""
    severity: Severity = "refuse"

    @property
    def about(self) -> str:
        """The sentence that says what the rule checks."""
        return " ".join((self.find.__doc__ or "").split("\n\n")[0].split())
