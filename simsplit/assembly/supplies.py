"""A run's data are supplied to clients as batches, exams, texts to mix in, and poisons."""

from collections.abc import Sequence
from functools import cached_property

import torch

from simsplit.data import Prepared
from simsplit.data.batches import Batches
from simsplit.data.samples import Samples
from simsplit.data.texts import TextBatcher, TextStock
from simsplit.errors import ScenarioError
from simsplit.evaluation.evaluator import TRIGGERED
from simsplit.packets import ClientId
from simsplit.parties.feed import Exam
from simsplit.poisons import Aim, Poison, Scene
from simsplit.scenario import Scenario

TARGETS, QUERIES = "targets", "queries"
"""Names of the exams for attacks: the samples to recover, and public ones that a client encodes."""


class Supplies:
    """The supplies of a scenario's clients on a device."""

    def __init__(self, scenario: Scenario, data: Prepared, device: torch.device) -> None:
        self.scenario, self.data, self.device = scenario, data, device

    def batcher(self, samples: Samples, *, augment: bool) -> Batches:
        """Return the batcher of some of the data."""
        return self.data.build_batcher(
            samples,
            self.device,
            self.scenario.data.augment if augment else (),
            channels_last=self.scenario.train.channels_last,
        )

    @property
    def public_batch_size(self) -> int | None:
        """Public samples per step, from the first method that sets a number; None if none does."""
        return next(filter(None, (each.public_batch_size for each in self.scenario.method)), None)

    @cached_property
    def stock(self) -> TextStock | None:
        """The texts that clients may mix with their own; None if there are none."""
        support, vocabulary = self.data.support, self.data.vocabulary
        if support is None or vocabulary is None:
            return None
        return TextStock(TextBatcher(support, self.device), len(support), vocabulary)

    def samples(self, split: str) -> Samples:
        """Return a held-out split that the scenario evaluates."""
        samples = self.data.test if split == "test" else self.data.validation
        assert samples is not None, "scenario.splits names only splits that exist"
        return samples

    def exams(self, numbers: Sequence[ClientId]) -> dict[str, Exam]:
        """Return the exams of these clients by name."""
        exams: dict[str, Exam] = {split: self._build_exam(split) for split in self.scenario.splits}
        if self.aim is not None:
            exams[TRIGGERED] = self._build_triggered_exam(self.aim)
        return exams | self._build_attack_exams(numbers)

    @cached_property
    def poisons(self) -> list[Poison]:
        """The poisons of malicious clients, not yet adapted to one of them."""
        malicious = self.scenario.clients.malicious
        if malicious is None:
            return []
        data = self.data
        return [
            config.build(
                Scene(
                    samples=data.train,
                    num_classes=data.info.classes,
                    mean=tuple(data.mean),
                    std=tuple(data.std),
                    seed=self.scenario.seed,
                    where=f"clients.malicious.poison.{index}",
                    colluders=tuple(self.scenario.malicious),
                )
            )
            for index, config in enumerate(malicious.poison)
        ]

    @cached_property
    def aim(self) -> Aim | None:
        """The malicious clients' aim for test samples; None if no poison has one."""
        aims = [
            aim for poison in self.poisons if (aim := poison.find_aim(self.data.test)) is not None
        ]
        if not aims:
            return None
        if not len(aims[0].rows):
            raise ScenarioError(
                "clients.malicious.poison", "no test sample can show whether it succeeds"
            )
        return aims[0]

    def _build_exam(self, split: str) -> Exam:
        samples = self.samples(split)
        batcher = self.batcher(samples, augment=False)
        rows, config = torch.arange(len(samples)), self.scenario.evaluate
        return Exam(batcher, rows, config.batch_size, views=config.views)

    def _build_triggered_exam(self, aim: Aim) -> Exam:
        batcher = self.batcher(self.data.test, augment=False)
        return Exam(batcher, aim.rows, self.scenario.evaluate.batch_size, aim.add_trigger)

    def _build_attack_exams(self, numbers: Sequence[ClientId]) -> dict[str, Exam]:
        """Return the exams for attacks if the attacked client is among these."""
        scenario, data = self.scenario, self.data
        if not scenario.attacks or scenario.targets.client not in numbers:
            return {}
        size = scenario.train.batch_size
        samples, rows = scenario.aims.choose(data)
        at_once = scenario.targets.choose_batch_size(size)
        exams = {TARGETS: Exam(self.batcher(samples, augment=False), rows, at_once)}
        if data.auxiliary is not None:
            public = self.batcher(data.auxiliary, augment=False)
            exams[QUERIES] = Exam(public, torch.arange(len(data.auxiliary)), size)
        return exams
