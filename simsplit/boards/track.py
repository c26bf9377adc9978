"""A track of the board as data: what is defended, by what, against what, and how it is scored.

A track's file lies in `scenarios/boards/`:

    title: Images at the cut
    says: ...                             what is asked, in one sentence
    utility: {is: test_accuracy, times: 100, unit: points, better: more}
    controls: {majority class: 10}        utility that nothing learned has: a number, or a figure
    leak:
      reads: "{attack}_ssim"              what an attack reads: a figure by the attack's name
      floor: mean_image_ssim              what needs no attack: a figure, which may be by the
                                          attack's name too, or a number
      ceiling: undefended                 or a number
      views: [gradients, features]        where `reads` has `{view}`: what attacks look at; defences
                                          are placed by the first
    scenario: {...}                       fields that all tiers share
    tiers:
      quick: {seeds: [0], takes_min: .05, scenario: {...}}      fields that differ; attacks in runs
                                          of their own are `attacks_beside`
    defences:                             name -> strength -> methods
      none: {none: []}
      LightSplit: {lightsplit-8: [{kind: lightsplit, ratio: 8}]}
      SafeSplit: {safesplit: {detectors: [{kind: safesplit}]}}      fields, where it is no method

    published:                            attack -> field -> how long the published attack runs
      unsplit: {outer: {is: 1000, of: turns}}

Instead of `reads`, `leak.figures` may name figures of the run itself. A track whose attacks are
part of training has `threats`: name -> fields; each trains on its own, and the worst one counts.
"""

import copy
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from simsplit.config import Config
from simsplit.errors import ScenarioError, SimsplitError, format_list, suggest
from simsplit.evidence.claims import Figure, Tier, explain_invalid
from simsplit.foreign import find_yaml_loader
from simsplit.scenario.shipped import BOARDS, find_folder

Fields = Mapping[str, Any]
StrengthFields = Sequence[Fields] | Fields
"""A strength of a defence: its methods in order, or fields of the scenario."""
NONE = "none"
"""The defence that is none: others are held against it."""
UNDEFENDED = "undefended"
"""The ceiling that is what the best attack reads without a defence."""


class TrackLeak(Config):
    """How what attacks read is scored, between what needs no attack and what an ideal one reads."""

    called: str = "leak"
    """What is scored, as tables and pictures call it."""
    reads: str = Field(default="", pattern=r"^$|\{attack\}")
    """The figure of what an attack reads, with `{attack}` for its name."""
    figures: tuple[str, ...] = ()
    """Figures of the run that are what leaks, in place of what attacks read."""
    floor: str | float
    """What needs no attack, leak 0: a figure, `{attack}` in it for each one's own, or a number."""
    ceiling: Literal["undefended"] | float
    """What an ideal attack reads, leak 1: a number, or the worst of what is read undefended."""

    views: tuple[str, ...] = ()
    """Groups of what attacks look at, `{view}` in `reads` and `floor`: defences are placed by the
    first, and each of the others has a column of its own."""

    @model_validator(mode="after")
    def _refuse_misfits(self) -> Self:
        if bool(self.reads) == bool(self.figures):
            raise ScenarioError("leak", "takes `reads` or `figures`, one of them")
        if bool(self.views) != ("{view}" in self.reads):
            raise ScenarioError("leak.views", "goes with `{view}` in `leak.reads`")
        if self.views and self.ceiling == UNDEFENDED:
            raise ScenarioError("leak.ceiling", "must be a number where there are views")
        return self

    @property
    def called_by(self) -> str:
        """The word for what is scored, with the view by which defences are placed."""
        return f"{self.called} by {self.views[0]}" if self.views else self.called


class PublishedLength(Config):
    """How long a published attack runs."""

    is_: int = Field(alias="is", ge=1)
    """The published value of a field."""
    of: str
    """What it counts, in the plural."""


class TrackTier(Config):
    """A track at one size."""

    scenario: Fields = Field(default_factory=dict)
    """Fields of the scenario that differ from the track's."""
    attacks_beside: Sequence[Fields] = ()
    """Attacks beside the scenario's, each strength in one run more: what is added here leaves the
    rows of the others as they are."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """The seeds of its draws."""
    takes_min: float = Field(default=1.0, gt=0)
    """Minutes of a cell on one processor, until one has been measured."""


class Track(Config):
    """One track of the board."""

    title: str
    """A short title, for tables and pictures."""
    says: str
    """What the track asks, in one sentence."""
    utility: Figure
    """The figure that a defence must keep; a loss is given in its unit."""
    leak: TrackLeak
    """What leaks, and between which bounds."""
    controls: Mapping[str, Figure | float] = Field(default_factory=dict)
    """Name -> the utility of what learns nothing of the task, a figure of the undefended run or a
    number: a defence that is no better has no use."""
    models: Mapping[str, str] = Field(default_factory=dict)
    """Folder of a model that the track's scenarios name -> the command that makes it."""
    scenario: Fields = Field(default_factory=dict)
    """The fields that all tiers share."""
    tiers: Mapping[Tier, TrackTier]
    """Size -> what differs at it."""
    defences: Mapping[str, Mapping[str, StrengthFields]]
    """Name of a defence -> name of a strength -> its methods, or its fields; `none` has neither."""
    published: Mapping[str, Mapping[str, PublishedLength]] = Field(default_factory=dict)
    """Attack -> a field that says how long it runs -> the published length: where a tier's is
    shorter, the board says so."""
    unreliable: Mapping[str, str] = Field(default_factory=dict)
    """Defence -> why its rows are not to be relied on, such as an attack that adapts to it."""
    threats: Mapping[str, Fields] = Field(default_factory=dict)
    """Name of an attack in training -> fields; empty: attacks are the scenario's own."""

    @property
    def has_attacks(self) -> bool:
        """Whether something attacks, in training or after it; else the run's own figures count."""
        return bool(self.threats) or not self.leak.figures

    @model_validator(mode="after")
    def _refuse_misfits(self) -> Self:
        if [*self.defences.get(NONE, {}).values()] != [[]]:
            raise ScenarioError(f"defences.{NONE}", "must be {none: []}")
        strengths = [name for each in self.defences.values() for name in each]
        if twice := next((name for name in strengths if strengths.count(name) > 1), None):
            raise ScenarioError("defences", f"has the strength '{twice}' twice")
        if lost := sorted(self.unreliable.keys() - self.defences.keys()):
            raise ScenarioError(
                f"unreliable.{lost[0]}", f"is no defence of the track: {format_list(self.defences)}"
            )
        self._refuse_unknown_lengths()
        for name, tier in self.tiers.items():
            if tier.attacks_beside and (self.threats or self.leak.figures):
                raise ScenarioError(
                    f"tiers.{name}.attacks_beside",
                    "nothing is attacked after training on this track; leave it out",
                )
            own = {name_attack(each) for each in self.list_fields(name).get("attacks", ())}
            for each in tier.attacks_beside:
                if (taken := name_attack(each)) in own:
                    raise ScenarioError(
                        f"tiers.{name}.attacks_beside",
                        f"the tier has an attack '{taken}' already; give this one another `name`",
                    )
                own.add(taken)
        return self

    def _refuse_unknown_lengths(self) -> None:
        """Raise ScenarioError for a published length of an attack that no tier has."""
        known = {
            name_attack(each)
            for name, tier in self.tiers.items()
            for each in (*self.list_fields(name).get("attacks", ()), *tier.attacks_beside)
        }
        for attack in self.published:
            if attack not in known:
                hint = suggest(attack, known) or ","
                raise ScenarioError(
                    f"published.{attack}",
                    f"no tier has this attack{hint} attacks: {format_list(sorted(known), 20)}",
                )

    def find_tier(self, tier: Tier) -> TrackTier:
        """Return a size of the track; raise SimsplitError where the track lacks it."""
        if tier not in self.tiers:
            raise SimsplitError(
                f"the track has no tier '{tier}', it has: {format_list(self.tiers)}"
            )
        return self.tiers[tier]

    def list_fields(self, tier: Tier) -> dict[str, Any]:
        """Return the scenario's fields at a tier."""
        return merge_fields(self.scenario, self.find_tier(tier).scenario)

    def find_shorter(self, attacks: Mapping[str, Config]) -> dict[str, str]:
        """Find which of these attacks, by name, run for less than published, and for how much."""
        made = {
            attack: [
                f"{ours:,} of {length.is_:,} {length.of}"
                for field, length in lengths.items()
                if (ours := _read_length(attacks[attack], attack, field)) < length.is_
            ]
            for attack, lengths in self.published.items()
            if attack in attacks
        }
        return {attack: ", ".join(words) for attack, words in made.items() if words}


def _read_length(attack: Config, name: str, field: str) -> int:
    """Return the value of an attack's field that says how long it runs."""
    value = getattr(attack, field, None)
    if not isinstance(value, int):
        raise ScenarioError(f"published.{name}.{field}", "is no field of the attack with a number")
    return value


def name_attack(attack: Fields) -> str:
    """Return the name that an attack's figures have, from its fields."""
    return str(attack.get("name") or attack["kind"])


def merge_fields(first: Fields, second: Fields) -> dict[str, Any]:
    """Return fields in which the second's replace the first's; mappings of a kind are merged."""
    merged = copy.deepcopy(dict(first))
    for name, value in second.items():
        old = merged.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and "kind" not in value:
            merged[name] = merge_fields(old, value)
        else:
            merged[name] = copy.deepcopy(value)
    return merged


@cache
def list_tracks() -> Mapping[str, Path]:
    """List the tracks' files by name, in the order of the alphabet."""
    return {file.stem: file for file in sorted((find_folder() / BOARDS).glob("*.yaml"))}


@cache
def load_track(name: str) -> Track:
    """Load a track by its name; refuse an unknown one, and a file that is no track."""
    files = list_tracks()
    if name not in files:
        hint = suggest(name, files) or ","
        raise SimsplitError(f"unknown track '{name}'{hint} tracks: {format_list(files, 20)}")
    values = yaml.load(files[name].read_text(encoding="utf-8"), Loader=find_yaml_loader())
    try:
        return Track.model_validate(values)
    except ValidationError as error:
        raise explain_invalid(files[name], error) from None
