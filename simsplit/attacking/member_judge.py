"""The judge of attacks on members knows which candidates were trained on.

Scores are judged by the members found at few false alarms, and by the AUC, from each seat. A coin
finds about as many members as it has false alarms. Of an audit, right guesses at the coins of its
canaries bound epsilon from below.
"""

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import torch
from torch import Tensor

from simsplit.assembly import Assembly
from simsplit.assembly.supplies import Supplies
from simsplit.attacking.attack_judge import AttackJudge, KindScores, make_cells
from simsplit.attacking.exposing import expose_exam, read_losses
from simsplit.attacking.shadow_runs import read_shadows
from simsplit.attacks.canaries import CANARIES
from simsplit.attacks.member_attack import CANDIDATES, CandidateReading, MemberAttack
from simsplit.data import Prepared
from simsplit.metrics.audit_bounds import audit
from simsplit.metrics.leaks import measure_coin, measure_members, trace_rates
from simsplit.privacy.accounting import list_guarantees
from simsplit.privacy.accounts import choose_delta
from simsplit.results.directory import encode_csv
from simsplit.results.leak_table import ATTACK, FLOOR, Row, list_leaks
from simsplit.results.member_leaks import COIN, EPSILON, OF_WEIGHTS
from simsplit.results.recovered_files import ROC
from simsplit.scenario import Scenario
from simsplit.seeds import numpy_rng_for

DELTA = 1e-5
"""The delta of a lower bound beside which there is no guarantee."""


class MemberJudge(AttackJudge[MemberAttack]):
    """The judge of attacks on members; it also reads the candidates from each seat."""

    def __init__(self, scenario: Scenario, data: Prepared, parts: Assembly) -> None:
        self.scenario, self.data, self.parts = scenario, data, parts
        self.client = scenario.targets.client
        supplies = Supplies(scenario, data, torch.device("cpu"))
        self.exams = supplies.build_further_exams()
        self.members: dict[str, np.ndarray] = {}
        """Of each exam's samples, which were trained on."""
        if CANDIDATES in self.exams:
            self.members[CANDIDATES] = supplies.candidates.members
        if CANARIES in self.exams:
            assert data.canaries is not None, "its attack has planted them"
            self.members[CANARIES] = np.concatenate([data.canaries.first, ~data.canaries.first])
        self._read_shadows = cache(
            lambda folder: read_shadows(folder, scenario, data, self.exams[CANDIDATES])
        )

    def begin(self, number: int) -> None:
        # What was read before is of other weights.
        self._read_losses = cache(
            lambda client, split: read_losses(self.parts, client, split, self.exams[split], number)
        )
        exposed = (self.scenario, self.parts, self.client)
        self._expose = cache(lambda split, epoch: expose_exam(*exposed, split, number + epoch))

    def inform(self, attack: MemberAttack) -> None:
        config = attack.config
        (split,) = config.splits
        folder = config.shadow_folder
        shadows = [] if folder is None else self._read_shadows(folder)
        seat = self.scenario.find_viewpoint(config).client
        if seat is None:
            packets = [self._expose(split, epoch) for epoch in range(config.encodings)]
            losses = self._read_losses(self.client, split)
            attack.reading = CandidateReading({"weights": losses}, packets, shadows)
        else:
            handed = self._read_losses(seat, split)
            attack.reading = CandidateReading({"handover": handed}, (), shadows)

    def score(self, number: int, attacks: Mapping[str, MemberAttack]) -> KindScores:
        """Return a row for each attack, seat and figure, and those of a coin."""
        scores, points = KindScores(), []
        place: Row = {"round": number, "kind": "members"}
        for name, attack in attacks.items():
            (split,) = attack.config.splits
            members, who = self.members[split], {"attack": name, "role": ATTACK}
            for view, values in attack.scores.items():
                rng = numpy_rng_for(self.scenario.seed, "bootstrap", name, view)
                read = values.double().numpy()
                for figure, interval in measure_members(read, members, rng).items():
                    cells = make_cells(figure, interval, len(read))
                    scores.rows.append({**place, **who, "view": view, **cells})
                points += [
                    {"attack": name, "view": view, "fpr": fpr, "tpr": tpr}
                    for fpr, tpr in zip(*trace_rates(read, members), strict=True)
                ]
            if attack.config.audited:
                scores.rows += [{**place, **who, **row} for row in self._audit(attack)]
        coin = {**place, "attack": COIN, "role": FLOOR}
        # Every attack but an audit reads the candidates, so the coin is tossed for these.
        scores.rows += list_leaks(coin, measure_coin(next(iter(self.members.values()))))
        scores.files[ROC] = encode_csv(points, digits=6)
        return scores

    def _audit(self, attack: MemberAttack) -> Iterator[Row]:
        """Yield the rows of the lower bounds of epsilon that follow from an audit's guesses.

        They hold of all that the attack sees, and of the trained model alone.
        """
        canaries = self.data.canaries
        assert canaries is not None, "its attack has planted them"
        delta = getattr(attack.config, "delta", None) or self._choose_delta()
        pairs = {view: _subtract(values) for view, values in attack.scores.items()}
        model = {view: scores for view, scores in pairs.items() if view == "weights"}
        for metric, read in ((EPSILON, pairs), (OF_WEIGHTS, model)):
            if read:
                bound = audit(read, canaries.first, delta=delta)
                cells = {"value": bound.epsilon, "low": bound.epsilon, "samples": bound.guesses}
                yield {"view": bound.score, "metric": metric, **cells, "known": delta}

    def _choose_delta(self) -> float:
        """Return the largest delta of the scenario's guarantees, so that it bounds all of them."""
        samples = len(self.data.parts[self.client])
        sound = [each for each in list_guarantees(self.scenario) if not each.lacks]
        return max((choose_delta(each.delta, samples) for each in sound), default=DELTA)


def _subtract(scores: Tensor) -> np.ndarray:
    """Return how much more the first sample of each pair scores than the second."""
    first, second = scores.double().numpy().reshape(2, -1)
    difference: np.ndarray = first - second
    return difference
