"""The judge of attacks on labels compares their scores and clusters with the labels and chance.

An attacker cannot name classes, so scores get the better sign, and clusters the best match with the
classes. AUCs have bootstrap intervals, accuracies have exact ones (Clopper and Pearson). Two floors
are rows of their own. `chance` permutes the labels under the same best sign or match: the mean of
1,000 permutations, and the interval that has 95 % of them. `majority` is the largest class. A floor
holds for all attacks with the same figure, number of samples and share of known labels.

If classes have very different sizes, k-means splits the large one, and a match of one cluster to
one class says little. So the clusters' `purity` is reported too (but not among the worst leaks).
"""

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from simsplit.assembly import Assembly
from simsplit.attacking.attack_judge import AttackJudge, KindScores, make_cells
from simsplit.attacks.knowledge import SeenView
from simsplit.attacks.label_attack import Clue, KnownLabels, LabelAttack, LabelAttackConfig
from simsplit.attacks.spectral import principal_components
from simsplit.data import Prepared
from simsplit.errors import ProtocolError, ScenarioError, format_count
from simsplit.metrics.leaks import (
    Hits,
    Interval,
    Numbers,
    match_clusters,
    match_equal,
    match_majority,
    measure_auc,
    measure_majority,
    measure_share,
    simulate_chance,
    simulate_chance_auc,
)
from simsplit.parties.calls import LabelsOf
from simsplit.results.directory import encode_csv
from simsplit.results.leak_table import ATTACK, FLOOR, Row
from simsplit.results.recovered_files import COMPONENTS
from simsplit.results.recovered_kinds import BEST_AUC, CHANCE, MAJORITY, PURITY
from simsplit.scenario import Scenario
from simsplit.seeds import numpy_rng_for

_MATCHES: dict[str, Hits] = {"accuracy": match_clusters, PURITY: match_majority}
"""What counts as right of clusters, by figure."""


class LabelJudge(AttackJudge[LabelAttack]):
    """The judge of attacks on labels; it also gives them the labels that they may know."""

    def __init__(self, scenario: Scenario, data: Prepared, parts: Assembly | None = None) -> None:
        """Take the targets' labels; attacks that followed training can be scored with `parts`."""
        self.seed, self.client, self._parts = scenario.seed, scenario.targets.client, parts
        given = scenario.aims.labels(data)
        classes, places = np.unique(given.numpy(), return_inverse=True)
        if len(classes) < 2:
            raise ScenarioError(
                "targets.count",
                f"{format_count(len(given), 'target')} of one class alone have no labels to "
                "tell apart; attacks on labels need targets of two classes. Use data that have "
                "two, then raise targets.count, or set targets.per_class, targets.split or "
                "targets.client",
            )
        self.given = given
        """The targets' labels as the data number them."""
        self.labels: Numbers = places
        """The targets' labels as indices of the classes that occur among them."""
        self.classes = len(classes)

    def inform(self, attack: LabelAttack) -> None:
        config = attack.config
        share = self._find_share(config)
        attack.known_labels = self.choose_known(share, config.known_of_each)

    def _find_share(self, config: LabelAttackConfig) -> float:
        """Return the share of the labels that an attack knows."""
        if not (count := config.known_of_each):
            return config.known_share
        smallest = int(np.bincount(self.labels).min())
        if count >= smallest:
            raise ScenarioError(
                "targets.count",
                f"leaves {format_count(smallest, 'target')} of the smallest class, and an attack "
                f"knows {count} of each; raise targets.count, or lower its known",
            )
        return count * self.classes / len(self.labels)

    def choose_known(self, share: float, each: int = 0) -> KnownLabels:
        """Choose labels for an attack to know: this share of each class, or so many of each."""
        rng = numpy_rng_for(self.seed, "known labels")
        chosen: list[int] = []
        for label in range(self.classes):
            own = rng.permutation(np.flatnonzero(self.labels == label))
            # at least one of each class is known, and at least one is left to be scored
            wanted = each or max(1, round(share * len(own)))
            count = min(wanted, len(own) - 1) if share else 0
            chosen += own[:count].tolist()
        rows = torch.tensor(sorted(chosen), dtype=torch.int64)
        return KnownLabels(self.classes, rows, torch.from_numpy(self.labels)[rows])

    def score(self, number: int, attacks: Mapping[str, LabelAttack]) -> KindScores:
        """Return a row for each attack, view and adapter, followed by the floors."""
        scores = KindScores()
        floors: dict[tuple[str, float, int], list[Row]] = {}
        for name, attack in attacks.items():
            share = self._find_share(attack.config)
            for clue in attack.clues:
                labels = self._find_labels(clue)
                if len(np.unique(labels)) < 2:  # a few batches may have samples of one class only
                    continue
                seen = {"attack": name, "role": ATTACK, "view": clue.view, "adapter": clue.adapter}
                for figure, leak in self._measure_leaks(clue, labels).items():
                    place = {"round": number, "kind": "labels", "known": share}
                    cells = make_cells(figure, leak, len(labels))
                    scores.rows.append({**place, **seen, **cells})
                    if (key := (figure, share, len(labels))) not in floors:
                        floors[key] = [
                            {**place, "attack": floor, "role": FLOOR, **cells}
                            for floor, cells in self._make_floors(figure, clue, labels)
                        ]
        scores.rows += [row for rows in floors.values() for row in rows]
        if points := list(self._list_components(number, attacks)):
            scores.files[COMPONENTS] = encode_csv(points, digits=6)  # enough to draw
        return scores

    def _find_labels(self, clue: Clue) -> Numbers:
        """Return the true labels of a clue's rows; those of trained batches come from the client.

        A batch may hold other classes than the targets, so its labels are numbered anew.
        """
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

    def _measure_leaks(self, clue: Clue, labels: Numbers) -> dict[str, Interval]:
        """Return what a clue leaks of the labels, by figure; clusters have a purity too."""
        values = clue.values.numpy()
        if clue.figure in ("auc", BEST_AUC):
            rng = numpy_rng_for(self.seed, "bootstrap", clue.view, clue.adapter)
            columns = values.astype(np.float64).reshape(len(values), -1)
            each = [measure_auc(scores, labels == 1, rng) for scores in columns.T]
            return {clue.figure: max(each)}
        if clue.named:
            return {"accuracy": measure_share(match_equal(values, labels))}
        return {figure: measure_share(hits(values, labels)) for figure, hits in _MATCHES.items()}

    def _make_floors(self, figure: str, clue: Clue, labels: Numbers) -> Iterator[tuple[str, Row]]:
        """Yield the name and the cells of each guess that needs no attack."""
        rng = numpy_rng_for(self.seed, "chance", figure, len(labels))
        if figure in ("auc", BEST_AUC):
            chance = simulate_chance_auc(labels == 1, rng, clue.values[0].numel())
        else:
            hits = match_equal if clue.named else _MATCHES[figure]
            chance = simulate_chance(labels, hits, rng)
            yield MAJORITY, make_cells(figure, measure_majority(labels), len(labels))
        yield CHANCE, make_cells(figure, chance, len(labels))

    def _list_components(self, number: int, attacks: Mapping[str, LabelAttack]) -> Iterator[Row]:
        views: dict[tuple[str, int], SeenView] = {}
        for attack in attacks.values():
            # All attacks share the values of a view, so each view is drawn once.
            views |= {(view.name, view.adapter): view for view in attack.views}
        for view in views.values():
            for target, (x, y) in enumerate(principal_components(view.rows, 2).tolist()):
                place = {"round": number, "view": view.name, "adapter": view.adapter}
                yield {**place, "target": target, "label": int(self.given[target]), "x": x, "y": y}
