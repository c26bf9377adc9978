"""The judge of attacks on labels: what their scores and clusters tell, beside what chance would.

Scores are given the better sign and clusters the best match with classes, as nobody could name
them. AUCs have bootstrap intervals, accuracies exact ones (Clopper and Pearson). The floors stand
beside them as rows: `chance`, a permutation of the labels under the same best sign or match, its
mean and where 95 % of 1,000 permutations lie; and `majority`, the largest class. A floor is that of
the attacks with its figure, its number of samples and its share of known labels.

Where classes are of very different sizes, k-means splits the large one, and a match of one cluster
to one class says little: the clusters' `purity` stands beside it (and not among the worst leaks).
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from simsplit.assembly import Assembly
from simsplit.attacking.judging import AttackJudge, KindScores, Row
from simsplit.attacks.knowledge import SeenView
from simsplit.attacks.label_attack import Clue, KnownLabels, LabelAttack
from simsplit.attacks.spectral import principal_components
from simsplit.data import Prepared
from simsplit.errors import ProtocolError, ScenarioError, counted
from simsplit.metrics.leaks import (
    Hits,
    Numbers,
    Told,
    chance_of,
    chance_of_auc,
    equal,
    majority_of,
    matched,
    pure,
    told_auc,
    told_share,
)
from simsplit.parties.calls import LabelsOf
from simsplit.results.directory import encode_csv
from simsplit.results.kept import COMPONENTS
from simsplit.results.label_results import CHANCE, COLUMNS, MAJORITY, PURITY
from simsplit.scenario import Scenario
from simsplit.seeds import numpy_rng_for


class LabelJudge(AttackJudge[LabelAttack]):
    """Holds the targets' labels, tells attacks what they may know, and scores them."""

    def __init__(self, scenario: Scenario, data: Prepared, parts: Assembly | None = None) -> None:
        """Without `parts`, attacks that followed training cannot be scored."""
        self.seed, self.client, self._parts = scenario.seed, scenario.targets.client, parts
        given = scenario.aims.labels(data)
        classes, places = np.unique(given.numpy(), return_inverse=True)
        if len(classes) < 2:
            raise ScenarioError(
                "targets.count",
                f"{counted(len(given), 'target')} of one class alone have no labels to tell apart; "
                "attacks on labels need targets of two classes. Use data that have two, then raise "
                "targets.count, or set targets.per_class, targets.split or targets.client",
            )
        self.given = given
        """As the data number them."""
        self.labels: Numbers = places
        """By the classes that the targets have."""
        self.classes = len(classes)

    @staticmethod
    def columns(scenario: Scenario) -> tuple[str, ...]:
        """Return the same for every scenario."""
        del scenario
        return COLUMNS

    def inform(self, attack: LabelAttack) -> None:
        """Tell an attack the labels that it may know."""
        attack.tell(self.known(attack.options.known_share))

    def known(self, share: float) -> KnownLabels:
        """What an attack may know that is told this share of the labels of each class."""
        rng = numpy_rng_for(self.seed, "known labels")
        told: list[int] = []
        for label in range(self.classes):
            own = rng.permutation(np.flatnonzero(self.labels == label))
            # one of each class is told, and one is left to be scored
            count = min(max(1, round(share * len(own))), len(own) - 1) if share else 0
            told += own[:count].tolist()
        rows = torch.tensor(sorted(told), dtype=torch.int64)
        return KnownLabels(self.classes, rows, torch.from_numpy(self.labels)[rows])

    def score(self, number: int, attacks: Mapping[str, LabelAttack]) -> KindScores:
        """Score a row for each attack, view and adapter; then the floors."""
        found = KindScores()
        floors: dict[tuple[str, float, int], list[Row]] = {}
        for name, attack in attacks.items():
            share = attack.options.known_share
            for clue in attack.clues:
                labels = self._labels(clue)
                if len(np.unique(labels)) < 2:  # of a few batches there may be one class alone
                    continue
                seen = {"attack": name, "view": clue.view, "adapter": clue.adapter}
                for figure, told in self._told(clue, labels).items():
                    place = {"round": number, "figure": figure, "known": share}
                    found.rows.append({**place, **seen, **_cells(told, labels)})
                    if (key := (figure, share, len(labels))) not in floors:
                        made = self._floors(figure, clue, labels)
                        floors[key] = [{**place, **row} for row in made]
        found.rows += [row for rows in floors.values() for row in rows]
        if points := list(self._components(number, attacks)):
            found.files[COMPONENTS] = encode_csv(points, digits=6)  # enough to draw
        return found

    def _labels(self, clue: Clue) -> Numbers:
        rows = slice(None) if clue.rows is None else clue.rows.numpy()
        labels: Numbers = self.labels[rows]
        if clue.steps:
            assert self._parts is not None, "it followed training"
            calls = [LabelsOf(step) for step in clue.steps]
            trained = torch.cat([self._parts.pool.ask(self.client, call).cpu() for call in calls])
            labels = np.unique(trained.numpy(), return_inverse=True)[1]
        if len(labels) != len(clue.values):
            raise ProtocolError(
                f"what crosses for {len(labels)} targets has {len(clue.values)} rows; attacks on "
                "labels need one for each"
            )
        return labels

    def _told(self, clue: Clue, labels: Numbers) -> dict[str, Told]:
        """By figure; of clusters their purity too."""
        values = clue.values.numpy()
        if clue.figure == "auc":
            rng = numpy_rng_for(self.seed, "bootstrap", clue.view, clue.adapter)
            return {"auc": told_auc(values.astype(np.float64), labels == 1, rng)}
        if clue.named:
            return {"accuracy": told_share(equal(values, labels))}
        each: dict[str, Hits] = {"accuracy": matched, PURITY: pure}
        return {figure: told_share(hits(values, labels)) for figure, hits in each.items()}

    def _floors(self, figure: str, clue: Clue, labels: Numbers) -> Iterator[Row]:
        rng = numpy_rng_for(self.seed, "chance", figure, len(labels))
        if figure == "auc":
            chance = chance_of_auc(labels == 1, rng)
        else:
            hits = equal if clue.named else pure if figure == PURITY else matched
            chance = chance_of(labels, hits, rng)
            yield {"attack": MAJORITY, **_cells(majority_of(labels), labels)}
        yield {"attack": CHANCE, **_cells(chance, labels)}

    def _components(self, number: int, attacks: Mapping[str, LabelAttack]) -> Iterator[Row]:
        views: dict[tuple[str, int], SeenView] = {}
        for attack in attacks.values():
            views |= {(view.name, view.adapter): view for view in attack.views}
        for view in views.values():
            for target, (x, y) in enumerate(principal_components(view.rows, 2).tolist()):
                place = {"round": number, "view": view.name, "adapter": view.adapter}
                yield {**place, "target": target, "label": int(self.given[target]), "x": x, "y": y}


def _cells(told: Told, labels: Sequence[int] | Numbers) -> Row:
    return {"leak": told.value, "low": told.low, "high": told.high, "samples": len(labels)}
