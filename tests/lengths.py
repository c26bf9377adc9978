"""A kind of thing for attacks to recover that does not ship: how long each sample's payload is."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from simsplit.attacking.attack_judge import AttackJudge, KindScores
from simsplit.attacks import Attack, AttackConfig, Knowledge, Threat
from simsplit.metrics import Metric
from simsplit.packets import Packet
from simsplit.results.leak_table import ATTACK, FLOOR, keep_kinds, list_leaks, take_last_judged
from simsplit.results.recovered_files import RoundFiles
from simsplit.results.recovered_kinds import Kind

KIND, GUESS = "lengths", "guess"
FILES = RoundFiles("lengths", "jsonl")


class NormsConfig(AttackConfig):
    """Reads the payload that it sees."""

    kind: Literal["norms"] = "norms"
    threat: ClassVar[Threat] = Threat(knows=())
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

    def begin(self, number: int) -> None:
        self.begun += 1

    def inform(self, attack: Norms) -> None:
        assert self.begun, "before any attack works"
        attack.factor = 2.0

    def score(self, number: int, attacks: Mapping[str, Norms]) -> KindScores:
        read = {name: attack.recovered.tolist() for name, attack in attacks.items()}
        read[GUESS] = [1.0]
        place = {"round": number, "kind": KIND}
        rows = [
            leak
            for name, lengths in read.items()
            for sample, length in enumerate(lengths)
            for leak in list_leaks(
                place
                | {"attack": name, "role": FLOOR if name == GUESS else ATTACK}
                | {"target": sample},
                {"length": length},
            )
        ]
        return KindScores(rows, {FILES: json.dumps(read).encode()})


def means(run):
    table = take_last_judged(keep_kinds(run.leaks, KIND))
    return {} if table.empty else table.groupby("attack", sort=False)["value"].mean().to_dict()


RECOVERED = Kind(
    recovers=KIND,
    metrics=("length",),
    guesses={GUESS: "(one)"},
    summarise=lambda table: {KIND: float(table["value"].max())},
)
LENGTH = Metric("length", "more", decimals=3, of="attack")
ATTACKS = {"norms": NormsConfig}
