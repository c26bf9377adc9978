"""A run's data are supplied to clients as batches, exams, texts to mix in, and poisons."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from simsplit.attacks.canaries import CANARIES
from simsplit.attacks.member_attack import CANDIDATES
from simsplit.data import Prepared
from simsplit.data.batches import Batches, draw_batches
from simsplit.data.candidates import Candidates, choose_candidates
from simsplit.data.images import PLAIN, Views
from simsplit.data.samples import Samples
from simsplit.data.texts import TextBatcher, TextStock
from simsplit.errors import ScenarioError
from simsplit.evaluation.evaluator import TRIGGERED
from simsplit.legs import ClientId
from simsplit.parties.feed import QUERIES, TARGETS, Exam, count_batches
from simsplit.parties.joined import Memory
from simsplit.poisons import Aim, Poison, Scene
from simsplit.scenario import Scenario


class Supplies:
    """The supplies of a scenario's clients on a device."""

    def __init__(
        self,
        scenario: Scenario,
        data: Prepared,
        device: torch.device,
        whole: Prepared | None = None,
    ) -> None:
        """Supply from `data`; of a party's, `whole` has the labels that only poisons may know."""
        self.scenario, self.data, self.device = scenario, data, device
        self.whole = whole or data

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

    def build_memory(self, shapes: Mapping[ClientId, tuple[int, ...]]) -> Memory:
        """Build the server's memory of what parties sent, which knows the order of samples."""
        count, seed, train = len(self.data.parts[0]), self.scenario.seed, self.scenario.train
        steps = count_batches(count, train.batch_size, drop_last=train.drop_last)

        @lru_cache(maxsize=1)
        def draw(epoch: int) -> tuple[Tensor, ...]:
            rows = torch.arange(count)
            return draw_batches(rows, train.batch_size, seed, 0, epoch, drop_last=train.drop_last)

        return Memory(lambda number: draw(number // steps)[number % steps], count, shapes)

    def samples(self, split: str) -> Samples:
        """Return a held-out split that the scenario evaluates."""
        samples = self.data.test if split == "test" else self.data.validation
        assert samples is not None, "scenario.splits names only splits that exist"
        return samples

    def exams(self, numbers: Sequence[ClientId]) -> dict[str, Exam]:
        """Return the exams of these clients by name."""
        evaluate = self.scenario.evaluate
        exams: dict[str, Exam] = {
            split: self._build_exam(self.samples(split), evaluate.batch_size, evaluate.views)
            for split in self.scenario.splits
        }
        if (aim := self.aim) is not None:
            batcher = self.batcher(self.data.test, augment=False)
            size, trigger = evaluate.batch_size, aim.add_trigger
            exams[TRIGGERED] = Exam(batcher, aim.rows, size, trigger, marked=True)
        return exams | self._build_attack_exams(numbers) | self.build_further_exams()

    @cached_property
    def poisons(self) -> list[Poison]:
        """The poisons of malicious clients, not yet adapted to one of them."""
        malicious = self.scenario.clients.malicious
        if malicious is None:
            return []
        data, labels = self.data, self.whole.train.labels
        return [
            config.build(
                Scene(
                    samples=replace(data.train, labels=labels),
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
        held_out = self.whole.test
        aims = [aim for poison in self.poisons if (aim := poison.find_aim(held_out)) is not None]
        if not aims:
            return None
        if not len(aims[0].rows):
            raise ScenarioError(
                "clients.malicious.poison", "no test sample can show whether it succeeds"
            )
        return aims[0]

    def _build_exam(self, samples: Samples, size: int, views: Views = PLAIN) -> Exam:
        batcher = self.batcher(samples, augment=False)
        return Exam(batcher, torch.arange(len(samples)), size, views=views)

    def _build_attack_exams(self, numbers: Sequence[ClientId]) -> dict[str, Exam]:
        """Return the exams for attacks if the attacked client, or a party, is among these."""
        scenario, data = self.scenario, self.data
        exposed = bool(scenario.parties) or scenario.targets.client in numbers
        if not scenario.attacks or not exposed:
            return {}
        size = scenario.train.batch_size
        samples, rows = scenario.aims.choose(data)
        at_once = scenario.targets.choose_batch_size(size)
        exams = {TARGETS: Exam(self.batcher(samples, augment=False), rows, at_once)}
        if data.auxiliary is not None:
            exams[QUERIES] = self._build_exam(data.auxiliary, size)
        return exams

    def build_further_exams(self) -> dict[str, Exam]:
        """Return the exams that attacks ask for beside the targets, which any client may sit."""
        makers: dict[str, Callable[[], Samples]] = {
            CANDIDATES: lambda: self.candidates.samples,
            CANARIES: self._list_canaries,
        }
        wanted = dict.fromkeys(split for each in self.scenario.attacks for split in each.splits)
        size = self.scenario.targets.choose_batch_size(self.scenario.train.batch_size)
        return {split: self._build_exam(makers[split](), size) for split in wanted}

    @cached_property
    def candidates(self) -> Candidates:
        """The samples of which attacks ask whether they were trained on."""
        targets = self.scenario.targets
        return choose_candidates(self.data, targets.client, targets.count)

    def _list_canaries(self) -> Samples:
        assert self.data.canaries is not None, "the attack has planted them"
        return self.data.canaries.samples
