"""What a transcript offers to attackers decides which attacks of the registry are tried.

An attack's needs and threat say what it takes. What a transcript lacks is named, with the option or
the recording that would give it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from pydantic import ValidationError

from simsplit.attacks import ATTACKS, AttackConfig, Knows, Sees
from simsplit.auditing.recorded_sessions import LEAST_KNOWN
from simsplit.errors import SimsplitError, suggest
from simsplit.legs import Leg
from simsplit.needs import Given, Need
from simsplit.scenario import Scenario
from simsplit.scenario.setting import TAKING, find_culprits, is_met
from simsplit.scenario.unmet_needs import list_options

AUDITED = frozenset({"inputs", "labels", "sessions"})
"""What attacks of an audit may recover. A recorded wire has no truth of anything else: it does not
say which samples were never trained on (members), has no further column of a sample (attributes),
and does not hide whose a row is (origins). A run's own attacks recover these."""
LEAST_PAIRS = 20
"""Fewer known inputs teach nothing."""
UNKNOWN_COST = 10_000
"""Iterations of an attack whose field leaves them open."""
_PUBLIC = "public data like the victims' (--public)"
_PARTS = "the client's network (--knows model= or factory=)"
_MODEL = "the public model that the head comes from (--knows model=)"
_TAIL = "the public model with its layers in the tail (--knows model= --knows tail=)"
_RUN = "the run that was recorded (--knows run=)"

LACKS: Mapping[Knows | Sees, str] = {
    Knows.PUBLIC: _PUBLIC,
    Knows.ARCHITECTURE: _PARTS,
    Knows.METHODS: _RUN,
    Knows.SECRETS: _RUN,
    Knows.NOISE: _RUN,
    Knows.OPTIMIZER: _RUN,
    Knows.DISGUISES: _RUN,
    Knows.HEAD: _MODEL,
    Knows.CAUSAL_HEAD: _MODEL,
    Knows.TAIL: _TAIL,
    Knows.MODEL: _TAIL,
    Knows.CLASSES: "labels in the truth",
    Knows.LABELS: "labels in the truth",
    Knows.QUERIES: f"{LEAST_PAIRS} known inputs or more, beside the targets (--knows pairs=)",
    Knows.WEIGHTS: "the client's network with its weights (--knows model=)",
    Knows.WRITTEN: f"the texts of {LEAST_KNOWN} sessions or more, beside the targets",
    Sees.INPUTS: "the victims' own inputs in training",
    Sees.TRUNK: "the trunk at each step, which no transcript has",
}
"""What an attacker may have that not every transcript offers, and what would give it."""
_GIVEN: Mapping[Given, str] = {
    Given.PUBLIC: _PUBLIC,
    Given.WATCHED: "steps of training",
    Given.LABELLED: "labels in the truth",
    Given.SESSIONS: "sessions in which texts are written, with smashed data and features",
    Given.KNOWN_TAIL: _MODEL,
}


class Untried(NamedTuple):
    """An attack that was not tried, or not to its end, and why."""

    attack: str
    wants: tuple[str, ...]
    """What it would need; empty if the budget was spent."""
    why: str = ""


def list_wants(untried: Sequence[Untried]) -> list[str]:
    """List what attackers would need, the fewest things first, with the attacks that they allow."""
    by_wants: dict[tuple[str, ...], list[str]] = {}
    for each in untried:
        if each.wants:
            by_wants.setdefault(each.wants, []).append(each.attack)
    lines = sorted(by_wants.items(), key=lambda item: len(item[0]))
    wanted = [f"with {'; '.join(wants)}: {', '.join(attacks)}" for wants, attacks in lines]
    return [*wanted, *(each.why for each in untried if not each.wants)]


@dataclass(frozen=True)
class Offers:
    """What one transcript offers to attackers."""

    scenario: Scenario
    """The setting, without attacks."""
    legs: frozenset[Leg]
    """The legs that were recorded with a row for each sample."""
    things: frozenset[Knows | Sees]
    """What attackers have, of all that not every transcript offers."""
    has: frozenset[Given] = frozenset()
    """Things that the transcript itself has, whatever the scenario says."""
    judged: frozenset[str] = frozenset({"inputs", "labels"})
    """What attacks may recover, as there is a truth to judge it by."""

    def __post_init__(self) -> None:
        assert self.judged <= AUDITED, self.judged

    def meets(self, need: Need) -> bool:
        """Return whether the transcript satisfies a need."""
        if need.what in TAKING:
            return need.leg in self.legs and not find_culprits(self.scenario.method, need)
        if need.what in _GIVEN:
            return need.what in self.has
        return is_met(self.scenario, need)

    def list_lacks(self, config: AttackConfig) -> tuple[str, ...]:
        """List what an attack would need beside what there is, in words."""
        if config.recovers not in AUDITED:
            return (f"a run of simsplit, since no recording has a truth of {config.recovers}",)
        threat = config.threat
        lacks = ["a server that acts, not a recording"] if threat.acts else []
        if config.recovers not in self.judged and config.recovers != "sessions":
            lacks.append(f"{config.recovers} in the truth")
        unmet = [need for need in config.needs if not self.meets(need)]
        met_by_field = Given.PUBLIC not in {need.what for need in config.needs}
        # Known inputs or sessions take the place of public ones.
        is_told = not {Knows.QUERIES, Knows.WRITTEN}.isdisjoint(threat.knows)
        there = self.things | ({Knows.PUBLIC} if met_by_field or is_told else set())
        things: tuple[Knows | Sees, ...] = (*threat.sees, *threat.knows)
        lacks += [LACKS[thing] for thing in things if thing in LACKS and thing not in there]
        legs = [need.leg.words for need in unmet if need.leg is not None]
        if legs:
            lacks.append(f"recorded {', '.join(dict.fromkeys(legs))}, a row for each sample")
        lacks += [
            _GIVEN.get(need.what) or need.in_words or need.what.name.lower().replace("_", " ")
            for need in unmet
            if need.leg is None and not (need.what is Given.PUBLIC and is_told)
        ]
        return tuple(dict.fromkeys(lacks))


def choose_attacks(
    offers: Offers, named: Sequence[str | Mapping[str, Any]] = ()
) -> tuple[list[AttackConfig], list[Untried]]:
    """Choose the attacks that a transcript allows, the cheapest first; list the others.

    `named` are kinds, or fields as a scenario has them; none: all of the registry. Raise
    SimsplitError for an unknown kind, for wrong fields, and for an attack on other data.
    """
    chosen, untried = [], []
    for each in named or ATTACKS:
        config = _build_config(each)
        kind = config.title
        of_data = [need for need in config.needs if need.what.value.modalities]
        if not all(is_met(offers.scenario, need) for need in of_data):
            if named:
                modality = offers.scenario.data.source.modality
                raise SimsplitError(f"--attack: {kind} is not for {modality}")
            continue
        able = next((each for each in _list_forms(config) if not offers.list_lacks(each)), None)
        if able is None:
            untried.append(Untried(kind, offers.list_lacks(config)))
        else:
            chosen.append(able)
    return sorted(chosen, key=estimate_cost), untried


def _build_config(given: str | Mapping[str, Any]) -> AttackConfig:
    """Build an attack's config from its kind, or from its fields."""
    fields = {"kind": given} if isinstance(given, str) else dict(given)
    kind = str(fields.get("kind"))
    if kind not in ATTACKS:
        raise SimsplitError(
            f"--attack: unknown '{kind}'{suggest(kind, ATTACKS) or ','} simsplit list attacks"
        )
    try:
        return ATTACKS[kind].model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise SimsplitError(f"--attack: {kind}.{field}: {first['msg']}") from None


def _list_forms(config: AttackConfig) -> Iterator[AttackConfig]:
    """Yield an attack as it is by default, and with other values of the fields that need things."""
    yield config
    for name in dict.fromkeys(need.field for need in config.needs if need.field != "kind"):
        for value in list_options(type(config).model_fields[name].annotation):
            yield config.model_copy(update={name: value})


def estimate_cost(config: AttackConfig) -> int:
    """Return about how many iterations an attack takes, from the fields that set its effort."""
    values = [getattr(config, name) for name in config.effort if hasattr(config, name)]
    values += [UNKNOWN_COST] if config.threat.follows_training else []
    return prod(each if isinstance(each, int) else UNKNOWN_COST for each in values)
