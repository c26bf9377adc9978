"""A kind of thing for attacks to recover that does not ship: how long each sample's payload is."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from simsplit.attacking.judging import AttackJudge, KindScores
from simsplit.attacks import Attack, AttackConfig, Knowledge
from simsplit.packets import Packet
from simsplit.report.html.markup import Markup, section, tag
from simsplit.report.html.subject import Subject
from simsplit.report.presentations import Presentation
from simsplit.report.tables import Table
from simsplit.results.kept import RoundFiles
from simsplit.results.recovers import Recovered

KIND, GUESS = "lengths", "guess"
FILES = RoundFiles("lengths", "jsonl")


class NormsConfig(AttackConfig):
    """Reads the payload that it sees."""

    kind: Literal["norms"] = "norms"
    public: ClassVar[bool] = False
    recovers: ClassVar[str] = KIND
    effort: ClassVar[tuple[str, ...]] = ()

    def build(self, known: Knowledge) -> "Norms":
        return Norms(known)


class Norms(Attack):
    """What the judge tells it, times what it sees."""

    factor = 0.0

    def work(self, targets: Sequence[Packet]) -> Iterator[tuple[int, int]]:
        self.norms = torch.cat([self.known.flatten_payload(each).norm(dim=1) for each in targets])
        yield 1, 1

    @property
    def recovered(self) -> Tensor:
        return self.factor * self.norms


class LengthJudge(AttackJudge[Norms]):
    """Tells attacks a factor, and keeps what they make of it."""

    def __init__(self, scenario, data, parts) -> None:
        self.begun = 0

    @staticmethod
    def columns(scenario):
        return ("round", "attack", "sample", "length")

    def begin(self, number: int) -> None:
        self.begun += 1

    def inform(self, attack: Norms) -> None:
        assert self.begun, "before any attack works"
        attack.factor = 2.0

    def score(self, number: int, attacks: Mapping[str, Norms]) -> KindScores:
        read = {name: attack.recovered.tolist() for name, attack in attacks.items()}
        read[GUESS] = [1.0]
        rows = [
            {"round": number, "attack": name, "sample": sample, "length": length}
            for name, lengths in read.items()
            for sample, length in enumerate(lengths)
        ]
        return KindScores(rows, {FILES: json.dumps(read).encode()})


def means(run):
    table = run.read_recovered(KIND)
    return {} if table.empty else table.groupby("attack", sort=False)["length"].mean().to_dict()


def tabulate(run):
    rows = [(name, f"{length:.3f}") for name, length in means(run).items()]
    return Table("lengths that attacks read", ("attack", "length"), rows)


def compare(entries, baseline):
    rows = [(str(each.run.path), f"{means(each.run)['norms']:.3f}") for each in entries]
    return [Table("lengths of runs", ("run", "norms"), rows)]


def write(subject: Subject) -> Markup:
    return section("Lengths", *(tag("p", len(means(each.run))) for each in subject.entries))


RECOVERED = Recovered(
    table=KIND,
    place=("round", "attack", "sample"),
    floors=(GUESS,),
    summarise=lambda table: {} if table.empty else {KIND: float(table["length"].max())},
)
PRESENTATION = Presentation(
    show=lambda run: [tabulate(run)],
    compare=compare,
    frame=lambda run: run.read_recovered(KIND).drop(columns="sample"),
    keys=("attack",),
    describe=means,
    section=write,
    conclude=lambda subject: "lengths leak",
    measure=lambda run: {f"{name}_length": value for name, value in means(run).items()},
    ways={"length": "less"},
)
ATTACKS = {"norms": NormsConfig}
