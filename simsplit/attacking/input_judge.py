"""The judge of attacks on inputs has a scorer for each kind of data, which knows the truth."""

from collections.abc import Mapping
from typing import ClassVar

from simsplit.assembly import Assembly
from simsplit.attacking.attack_judge import AttackJudge, KindScores
from simsplit.attacking.input_scorer import ImageScorer, InputScorer, RowScorer
from simsplit.attacking.text_scorer import TextScorer
from simsplit.attacks import Attack
from simsplit.data import Prepared
from simsplit.parties.calls import CountExposures, OwnTokens
from simsplit.parties.feed import TARGETS
from simsplit.scenario import Scenario

SCORERS: dict[str, type[InputScorer]] = {
    "texts": TextScorer,
    "tables": RowScorer,
    "images": ImageScorer,
}
"""The scorers by kind of data."""


class InputJudge(AttackJudge[Attack]):
    """The judge of attacks that recover images, texts, or rows of numbers."""

    converges: ClassVar[bool] = True

    def __init__(self, scenario: Scenario, data: Prepared, parts: Assembly) -> None:
        self.targets, self.pool = scenario.targets, parts.pool
        own = data.of_party(scenario.targets.client) if scenario.parties else data
        self.scorer = SCORERS[scenario.data.source.modality](scenario, own)

    def score(self, number: int, attacks: Mapping[str, Attack]) -> KindScores:
        recovered = {name: attack.guesses() for name, attack in attacks.items()}
        # Masks of the targets' own tokens in their packets, batch by batch.
        client, by_batch = self.targets.client, self.targets.statistics == "batch"
        batches = range(self.pool.ask(client, CountExposures(TARGETS)))
        calls = [OwnTokens(TARGETS, number, each, by_batch) for each in batches]
        return self.scorer.score(number, recovered, [self.pool.ask(client, each) for each in calls])
