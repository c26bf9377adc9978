"""The judge of attacks on attributes knows the attribute of each target.

Two floors need no attack, and stand beside each attack by its name: the largest class, and the
commonest class of each label. An attribute that goes with the label is read from it alone, and a
probe must read more.
"""

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import torch

from simsplit.assembly import Assembly
from simsplit.attacking.attack_judge import AttackJudge, KindScores, make_cells
from simsplit.attacking.exposing import expose_exam
from simsplit.attacks.attribute_probe import AttributeProbe
from simsplit.data import Prepared, Samples
from simsplit.data.attributes import measure_attribute
from simsplit.data.samples import get_classes
from simsplit.metrics.leaks import Interval, measure_majority, measure_share
from simsplit.parties.feed import QUERIES, TARGETS
from simsplit.results.leak_table import ATTACK, FLOOR, Row
from simsplit.results.member_leaks import LABEL, LARGEST
from simsplit.scenario import Scenario


class AttributeJudge(AttackJudge[AttributeProbe]):
    """The judge of attacks on attributes; it also has the samples encoded for them."""

    def __init__(self, scenario: Scenario, data: Prepared, parts: Assembly) -> None:
        self.scenario, self.parts, self.client = scenario, parts, scenario.targets.client
        assert data.auxiliary is not None, "the scenario's checks refuse probes without it"
        samples, rows = scenario.aims.choose(data)
        self.samples: list[Samples] = [data.auxiliary, samples.take(rows)]
        self.values: dict[str, list[np.ndarray]] = {}
        """The attribute of auxiliary samples and of targets, by attack."""
        for index, config in enumerate(scenario.attacks):
            if config.recovers == "attributes":
                name, where = getattr(config, "attribute", None), f"attacks.{index}.attribute"
                read = measure_attribute(self.samples, name, data.columns, where)
                self.values[config.title] = read

    def begin(self, number: int) -> None:
        # What was encoded before had other weights.
        self._expose = cache(
            lambda split: expose_exam(self.scenario, self.parts, self.client, split, number)
        )

    def inform(self, attack: AttributeProbe) -> None:
        values = torch.from_numpy(self.values[attack.config.title][0])
        attack.tell(self._expose(QUERIES), values, self._expose(TARGETS))

    def score(self, number: int, attacks: Mapping[str, AttributeProbe]) -> KindScores:
        rows: list[Row] = []
        for name, attack in attacks.items():
            known, truth = self.values[name]
            told = [
                (name, ATTACK, view, measure_share(guesses.numpy() == truth))
                for view, guesses in attack.guesses_by_view.items()
            ]
            floors = [(each, FLOOR, name, hits) for each, hits in self._list_floors(known, truth)]
            for who, role, view, hits in (*told, *floors):
                place = {"round": number, "kind": "attributes", "attack": who, "role": role}
                cells = make_cells("accuracy", hits, len(truth))
                rows.append({**place, "view": view, **cells})
        return KindScores(rows)

    def _list_floors(self, known: np.ndarray, truth: np.ndarray) -> Iterator[tuple[str, Interval]]:
        """Yield what is right without any attack."""
        yield LARGEST, measure_majority(truth)
        public, own = (get_classes(each.labels).numpy() for each in self.samples)
        labels = np.unique(public[public >= 0])
        if not len(labels):  # public texts of another source have no labels
            return
        commonest = np.full(1 + max(public.max(), own.max()), np.bincount(known).argmax())
        for label in labels:
            commonest[label] = np.bincount(known[public == label]).argmax()
        yield LABEL, measure_share(commonest[own] == truth)
