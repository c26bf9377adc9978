"""The interface of an attack by the server or a client, honest but curious, or active.

An attack is given what its seat knows (see `knowledge`) and the packets that pass it. It never sees
the truth: what it recovers is compared with the truth only when the attack is scored.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from simsplit.attacks.epoch_averages import average_epochs, take_first_epoch
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.threat import Threat, When, complete_threat
from simsplit.config import Config
from simsplit.data import Prepared
from simsplit.legs import ClientId, Leg
from simsplit.machine import Precision, autocast_for
from simsplit.methods.method import IMAGES, TEXTS, Modality, needs_modality
from simsplit.needs import Given, Need, Needs
from simsplit.packets import Packet
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import OptimizerConfig
from simsplit.states import select_below

OWN_LEGS: dict[Leg | None, Leg] = {
    Leg.FEATURES: Leg.SMASHED,
    Leg.FEATURES_GRAD: Leg.SMASHED_GRAD,
}
"""What the server sees of each sample -> what a party without labels has in its place."""
Done = tuple[int, int]
"""(number of pieces of work done, number of pieces in all)."""


class AttackConfig(Config, ABC):
    """Base class of an attack's fields in a scenario."""

    name: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_]*$")
    """Name of the attack's rows in tables; null: its kind."""
    by: str = Field(default="server", pattern=r"^(server|(client|party) \S.*)$")
    """Where the attacker sits: `server`, `client 2` (a number, or a name of `clients.names`), or
    under topology: vertical `party bank` (a name or number). It sees what passes its seat alone."""
    tune: dict[str, tuple[Any, ...]] | None = None
    """Field -> values, of which the attacker chooses before training: it trains clients of its own
    on its auxiliary data behind the same method, attacks them with each combination, and takes the
    one that reads most. null: fields have their values."""
    threat: ClassVar[Threat] = Threat()
    """What it assumes of its attacker."""
    modalities: ClassVar[frozenset[Modality]] = IMAGES
    """The modalities of data that it can attack."""
    recovers: ClassVar[str] = "inputs"
    """What it recovers, a name of `results.recovered_kinds`: each has its own judge."""
    mixes_targets: ClassVar[bool] = False
    """Whether targets are encoded in a random order, unless `targets.order` says otherwise."""
    effort: ClassVar[tuple[str, ...]] = ("iterations",)
    """The fields that set how long it works; `targets.curve` scores it with smaller values."""
    watches_all: ClassVar[bool] = False
    """Whether it watches all clients, whatever heads they have; others watch the targets' head."""
    splits: ClassVar[tuple[str, ...]] = ()
    """The exams that clients sit for it beside the targets."""

    @property
    def title(self) -> str:
        """The name of the attack's rows in tables."""
        return self.name or self.kind_name

    @property
    def sitting(self) -> str:
        """The name or number of the client at which it sits; empty: it is the server."""
        return self.by.partition(" ")[2]

    @property
    def view_groups(self) -> tuple[str, ...]:
        """Groups of what crosses by which it is scored apart; (): it is scored as a whole."""
        return ()

    @property
    def whole_threat(self) -> Threat:
        """Its threat with all that its needs and queries say, for listings."""
        return complete_threat(self.threat, self.needs, self.queries)

    @property
    def tried(self) -> Sequence["AttackConfig"]:
        """The attacks among which `tune` has the attacker choose; empty without it.

        pydantic's ValidationError is raised for a value that its field refuses.
        """
        if not self.tune:
            return ()
        given = {name: getattr(self, name) for name in self.model_fields_set if name != "tune"}
        combined = itertools.product(*self.tune.values())
        return [
            type(self).model_validate({**given, **dict(zip(self.tune, values, strict=True))})
            for values in combined
        ]

    @property
    def needs(self) -> Needs:
        """The needs that the rest of the scenario must satisfy.

        Override this to add to `super().needs`.
        """
        tuned = (Need(Given.PUBLIC),) if self.tune else ()
        threat = self.threat.needs
        if self.by.startswith("party "):
            # What a party has of each sample is what it sends and what comes back to it.
            threat = tuple(replace(need, leg=OWN_LEGS.get(need.leg, need.leg)) for need in threat)
        return tuple(dict.fromkeys((*needs_modality(self.modalities), *threat, *tuned)))

    def change_optimizer(self, optimizer: OptimizerConfig) -> OptimizerConfig:
        """Return the optimizer of the client at which an active attack sits."""
        return optimizer

    @property
    def num_epochs(self) -> int:
        """Number of epochs in which it sees the targets' packets."""
        return 1

    @property
    def queries(self) -> int:
        """Number of auxiliary images that a client encodes for it; only for upper bounds."""
        return 0

    @property
    def audited(self) -> str:
        """Return what of a sample its bound of epsilon is of: input, label, sample; empty: none."""
        return ""

    def plant(self, data: Prepared, client: ClientId, seed: int, where: str) -> Prepared:
        """Return the data that are trained on; ScenarioError names a field below `where`.

        An audit plants samples of its own in a client's data, other attacks change nothing.
        """
        del client, seed, where
        return data

    @abstractmethod
    def build(self, known: Knowledge) -> "Attack":
        """Build the attack from what the server knows, before any packet is sent."""


class ImageAttackConfig(AttackConfig, ABC):
    """Base class of the fields of attacks on images."""

    exposures: int = Field(default=1, ge=1)
    """Number of epochs in which the attacker sees each target: it averages what is sent for it, so
    that fresh noise counts less. Pairs of upper bounds are averaged over as many epochs."""

    @property
    def num_epochs(self) -> int:
        return self.exposures


class OnlineConfig(ImageAttackConfig, ABC):
    """Base class of the fields of attacks that learn from each training step."""

    threat: ClassVar[Threat] = Threat(when=When.TRAINING)
    precision: Precision = "fp32"
    """bf16 trains the attack's networks under autocast, which is faster on some processors. What
    it recovers is computed in fp32."""
    channels_last: bool = False
    """Whether the attack's convolutions have channels-last layout, which is faster on some
    processors."""


class SimulatingConfig(OnlineConfig, ABC):
    """Base class of the fields of attacks that train a client of their own on the task."""

    method_losses: bool = False
    """Whether that client learns with the loss terms of methods at the cut too, such as wcc's, as a
    real one does. The published attacks know no such methods; without one it changes nothing."""


class TextAttackConfig(AttackConfig):
    """Base class of the fields of attacks on texts."""

    modalities: ClassVar[frozenset[Modality]] = TEXTS


@dataclass(frozen=True)
class Guesses:
    """An attack's results, as the judge gets them."""

    rows: Tensor
    """Pixels, or tokens."""
    sureness: Tensor | None = None
    """Confidence in each row; None: there is one guess a target, or no measure of confidence."""
    ahead: bool = False
    """Whether the token at position i is a guess at the text's token i + 1."""
    labels: Tensor | None = None
    """A class for each target, where the attack names one beside the image."""
    unordered: bool = False
    """Whether rows are candidates, of which the attack does not know which target each is."""


class Attack(ABC):
    """An attack on a run. The rows that it recovers are the targets, in order."""

    ahead: ClassVar[bool] = False
    """Whether it recovers next-token labels: at position i, the text's token i + 1."""

    def __init__(self, known: Knowledge) -> None:
        self.known = known
        self.learners: dict[str, Learner] = {}
        """The attack's networks with their optimizers, by name."""
        self.iteration = 0

    def show(self, client: ClientId, pixels: Tensor) -> None:
        """Receive the images of the step that a client begins, if its threat sees inputs."""
        del client, pixels

    def receive_head(self, weights: Mapping[str, Tensor]) -> None:
        """Receive the weights of the target's head (head/...) and of its methods (methods/...)."""
        del weights

    def receive_inputs(self, inputs: Tensor) -> None:
        """Receive the attacker's own columns of the targets, if its threat sees them."""
        del inputs

    def observe(self, packet: Packet) -> None:
        """Receive a packet of training."""
        del packet

    def answer(self, packet: Packet) -> Packet:
        """Return the packet to send in place of the server's; only active attacks change it."""
        return packet

    def study(self, queries: Sequence[tuple[Packet, Tensor]]) -> None:
        """Receive the auxiliary images that a client encoded (`queries`), with their packets."""
        del queries

    @abstractmethod
    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        """Recover the targets in pieces; the state can be saved between two pieces."""

    @property
    @abstractmethod
    def recovered(self) -> Tensor:
        """The pixels or tokens recovered so far."""

    @property
    def sureness(self) -> Tensor | None:
        """Confidence in each row, for attacks with several rows a target."""
        return None

    @property
    def labels(self) -> Tensor | None:
        """A class for each target, for attacks that name one beside the image."""
        return None

    @property
    def note(self) -> str:
        """A sentence about what it recovered that a reader of its figures should know, or none."""
        return ""

    def guesses(self) -> Guesses:
        """Return the results for the judge."""
        sure, labels = self.sureness, self.labels
        return Guesses(
            rows=self.recovered.cpu(),
            sureness=None if sure is None else sure.cpu(),
            ahead=self.ahead,
            labels=None if labels is None else labels.cpu(),
        )

    def state(self) -> dict[str, Tensor]:
        """Return everything that the next iteration depends on, as tensors."""
        held = {
            f"{name}/{key}": tensor
            for name, learner in self.learners.items()
            for key, tensor in learner.state().items()
        }
        return {**held, "iteration": torch.tensor(self.iteration)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.iteration = int(state["iteration"])
        for name, learner in self.learners.items():
            learner.load(select_below(state, f"{name}/"))


def payloads(targets: Sequence[Packet]) -> list[Packet]:
    """Return the packets of smashed data among the targets' packets."""
    return [packet for packet in targets if packet.leg is Leg.SMASHED]


class KeepingAttack(Attack):
    """An attack whose `work` sets `_recovered`; it stays empty where the results are no inputs."""

    def __init__(self, config: AttackConfig, known: Knowledge) -> None:
        super().__init__(known)
        self.config = config
        self._recovered = torch.empty(0)

    @property
    def recovered(self) -> Tensor:
        return self._recovered


class Following(KeepingAttack):
    """An attack that takes one iteration for each training step of a client."""

    def __init__(self, config: OnlineConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self._autocast = autocast_for(config.precision, known.device)
        self._channels_last = config.channels_last
        self._smashed: dict[ClientId, Tensor] = {}
        self._labels: dict[ClientId, Tensor] = {}
        self._named: Tensor | None = None

    def add_learner(
        self, name: str, modules: Mapping[str, nn.Module], optimizer: OptimizerConfig
    ) -> None:
        """Add networks and their optimizer, in the layout that the config asks for."""
        if self._channels_last:
            for module in modules.values():
                module.to(memory_format=torch.channels_last)
        self.learners[name] = Learner(modules, optimizer)

    def observe(self, packet: Packet) -> None:
        """Keep a step's smashed data until the server answers them, then iterate on them."""
        # Only an answered step counts: packets of an abandoned step train nothing.
        if packet.leg is Leg.SMASHED:
            self._smashed[packet.client] = self.known.lift_smashed(packet)
        elif packet.leg is Leg.LABELS:
            self._labels[packet.client] = packet.tensors[0].clone()
        elif packet.leg is Leg.SMASHED_GRAD and packet.client in self._smashed:
            smashed = self._smashed.pop(packet.client)
            for learner in self.learners.values():
                learner.train(True)
            with self._autocast():
                self.iterate(smashed, self._labels.pop(packet.client, None))
            self.iteration += 1

    @abstractmethod
    def iterate(self, smashed: Tensor, labels: Tensor | None) -> None:
        """Learn from the smashed data of one training step."""

    @abstractmethod
    def invert(self, smashed: Tensor, labels: Tensor | None) -> Tensor:
        """Reconstruct inputs from smashed data: pixels, N x C x H x W."""

    def name_classes(self, smashed: Tensor) -> Tensor | None:
        """Return a class for each row of smashed data, if the attack has a tail of its own."""
        del smashed
        return None

    @property
    def labels(self) -> Tensor | None:
        return self._named

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        labels = take_first_epoch([packet for packet in targets if packet.leg is Leg.LABELS])
        sent_labels = torch.cat([packet.tensors[0] for packet in labels]) if labels else None
        smashed = torch.cat([*average_epochs(payloads(targets), self.known.lift_smashed)])
        with torch.no_grad():
            self._recovered = self.invert(smashed, sent_labels)
            self._named = self.name_classes(smashed)
        yield 1, 1


class Decoding(Following):
    """An attack whose decoder, trained step by step, has images between -1 and 1."""

    decoder: nn.Module

    def draw_images(self) -> Tensor:
        """Return this iteration's public images, between -1 and 1."""
        return 2 * self.known.pixels(self.known.public(self.iteration).inputs) - 1

    def invert(self, smashed: Tensor, labels: Tensor | None) -> Tensor:
        del labels
        self.decoder.eval()
        out: Tensor = self.decoder(smashed)
        return (out + 1) / 2


def descend(learner: Learner, loss: Tensor) -> None:
    """Take one optimizer step on a loss, without changing the gradients of other weights."""
    descend_both((learner, loss))


def descend_both(*pairs: tuple[Learner, Tensor]) -> None:
    """Take one step of each learner on its loss; the losses may share a graph.

    All gradients are of the weights before the steps.
    """
    last = len(pairs) - 1
    for index, (learner, loss) in enumerate(pairs):
        # The graph may run through the live trunk, whose own gradients belong to the run.
        loss.backward(inputs=learner.parameters, retain_graph=index < last)
    for learner, _ in pairs:
        learner.step()
        learner.clear()
