"""Inverting the optimizer (P3EFT, section 3.3): adapters around a step reveal its gradient.

This holds for any number of messages in which the gradient crossed.

A server that gets the adapters of step t and then those of step t + 1 undoes the client's optimizer
(see `undoing`). The optimizer's kind, learning rate and other options are taken to be known, since
papers print them. The result is the adapters' gradient, which is linear in the features' gradient:

- If all m messages went to this server, the adapters' gradient is the sum of its own replies with
  the client's secret weights: m unknowns, and one equation per adapter value. With these weights
  the messages add up to the true gradient, which `private_backprop` should hide.
- If it has fewer, it models each sample's gradient as a sum of a few directions, the leading ones
  of the rows that it has, and computes itself the adapters' gradient for each direction of each
  sample. Rows of mixed noise lie along the true ones, so this recovers the true gradient. Rows of
  gaussian noise do not, and then the attack recovers nothing. (Using all directions at once would
  invert the Jacobian, for which the small adapters tried here leave too few digits.)

Labels are read from the gradient like in `spectral` (two classes) and `kmeans`. They are the labels
of the last training batches before the attack is scored, not of the targets. If there are several
servers, the attacker is the first and has only the messages that go to it. With 2 m servers none
sees two steps in a row.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from simsplit.attacks.attack import Done
from simsplit.attacks.kmeans import find_clusters
from simsplit.attacks.knowledge import Knowledge, SeenView
from simsplit.attacks.label_attack import Clue, LabelAttack, LabelAttackConfig
from simsplit.attacks.spectral import principal_components
from simsplit.attacks.threat import Knows, Sees, Threat, When
from simsplit.attacks.undoing import Follower
from simsplit.legs import Leg
from simsplit.methods.method import TEXTS, Modality
from simsplit.packets import Packet
from simsplit.states import select_below

Inverted = Literal["gradient", "direction"]


class OptimizerInversionConfig(LabelAttackConfig):
    """An inversion of the client's optimizer, to get the gradients of the last training batches.

    It needs the `api` topology, and a server that gets two steps in a row.
    """

    kind: Literal["optimizer_inversion"] = "optimizer_inversion"
    threat: ClassVar[Threat] = Threat(
        (Sees.STEPS,), (Knows.CLASSES, Knows.OPTIMIZER), when=When.TRAINING
    )
    views: tuple[Inverted, ...] = Field(default=("gradient", "direction"), min_length=1)
    """The views from which labels are read: the recovered gradients, or these at unit length."""
    directions: int = Field(default=4, ge=1)
    """Number of directions that model each sample's gradient where the server lacks messages; each
    takes about as long as a training step."""
    samples: int = Field(default=256, ge=2)
    """Number of the last training samples whose labels are inferred, rounded up to whole batches.
    """
    starts: int = Field(default=10, ge=1)
    """Number of runs of k-means; the best one counts."""
    modalities: ClassVar[frozenset[Modality]] = TEXTS

    def build(self, known: Knowledge) -> "OptimizerInversion":
        return OptimizerInversion(self, known)


@dataclass
class SeenStep:
    """A training step as one server sees it."""

    place: Tensor
    """The step's number, its round, and whether this server got all messages."""
    ids: Tensor
    mask: Tensor
    adapters: Tensor
    """n x P."""
    messages: Tensor
    """M x B x n x D."""
    replies: Tensor
    """The server's reply to each message: M x n x P."""


class OptimizerInversion(LabelAttack):
    """An attack that recovers each step's gradient once the next step's adapters arrive."""

    config: OptimizerInversionConfig

    def __init__(self, config: OptimizerInversionConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self.followers: list[Follower] = []
        """The followed optimizers, one for each set of adapters."""
        self.lost = False
        """Whether a step was missed, after which an optimizer with moments cannot be followed."""
        self.gradients: deque[tuple[int, Tensor]] = deque()
        """Pairs of a step's number and its samples' gradients, B x n x D, the latest last."""
        self._arrived: dict[Leg, list[Tensor]] = {}
        self._before: SeenStep | None = None

    def observe(self, packet: Packet) -> None:
        """Keep the tensors of the present step; when it is complete, invert the one before it."""
        if packet.leg is Leg.INPUTS:
            self._arrived[packet.leg] = [each.clone() for each in packet.tensors[:2]]
        elif packet.leg in (Leg.ADAPTERS, Leg.FEATURES_GRAD):
            self._arrived[packet.leg] = self._read(packet)
        elif packet.leg is Leg.ADAPTERS_GRAD:
            self._end_step(packet)
            self.iteration += 1

    def _end_step(self, packet: Packet) -> None:
        """Keep the ended step, and invert the one before it if both went to this server."""
        messages, before = self._arrived[Leg.FEATURES_GRAD], self._before
        # Messages go to the servers in turn, and this is the first of them.
        first, servers = self.iteration * len(messages), self.known.servers
        own = [number for number in range(len(messages)) if (first + number) % servers == 0]
        adapters, self._before = self._arrived[Leg.ADAPTERS][0], None
        if before is not None and own and not self.lost:
            self._invert(before, adapters)
        # A missed step matters only if the optimizer keeps moments, which then stay unknown.
        elif self.iteration and self.known.optimizer is not None:
            self.lost |= self.known.optimizer.slots > 0
        if own:
            replies = self._read(packet)
            place = [packet.step, packet.round, len(own) == len(messages)]
            seen, given = (
                torch.stack([each[number] for number in own]) for each in (messages, replies)
            )
            ids, mask = self._arrived[Leg.INPUTS]
            self._before = SeenStep(torch.tensor(place), ids, mask, adapters, seen, given)

    def _read(self, packet: Packet) -> list[Tensor]:
        """Unpack and copy a packet's messages."""
        stack, step = self.known.stack, self.known.step(packet)
        return [
            stack.unpack(packet.leg, each, step).detach().clone()
            for each in stack.split_messages(packet.leg, packet.tensors)
        ]

    def _invert(self, before: SeenStep, after: Tensor) -> None:
        """Recover a step's gradient, set by set, and follow the optimizer through the step."""
        step, round_number, whole = before.place.tolist()
        replies, messages = before.replies.unbind(1), before.messages.unbind(2)
        sent = ((made.T, basis) for made, basis in zip(replies, messages, strict=True))
        bases = sent if whole else self._direction_bases(before)
        self.followers = self.followers or [self._build_follower() for _ in after]
        recovered = []
        for number, (made_PK, basis_KBD) in enumerate(bases):
            weights = before.adapters[number], after[number]
            shares = self.followers[number].shares(
                made_PK, *weights, self.known.factor(round_number)
            )
            # In double precision: the last digits of the weights show the gradient's size (see
            # `undoing`).
            self.followers[number].follow(made_PK.double().cpu() @ shares, weights[0])
            recovered.append(torch.tensordot(shares, basis_KBD.double().cpu(), 1))
        rows = torch.stack(recovered, dim=1)
        kept = self.gradients
        # The loss is a mean over the batch: times the batch size, gradients of batches compare.
        kept.append((step, (rows * len(rows)).float()))
        while sum(len(r) for _, r in kept) - len(kept[0][1]) >= self.config.samples:
            kept.popleft()

    def _build_follower(self) -> Follower:
        """Build a follower of the clients' optimizer."""
        assert self.known.optimizer is not None, "clients have one"
        return Follower(self.known.optimizer)

    def _direction_bases(self, seen: SeenStep) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the replies to each sample's directions, and the directions, for each set."""
        served = self.known.served
        assert served is not None, "where adapters cross, a server has all of the model"
        _, size, sets, width = seen.messages.shape
        rows = seen.messages.flatten(0, 1).transpose(0, 1)
        leading = torch.linalg.svd(rows, full_matrices=False)[2][:, : self.config.directions]
        # The reply is linear in the message: one call a direction is enough for any coefficients.
        made = torch.stack(
            [
                served.replies(seen.adapters, (seen.ids, seen.mask), each.expand(size, sets, width))
                for each in leading.unbind(1)
            ]
        )
        places = torch.eye(size).to(leading)
        for number in range(sets):
            basis = torch.einsum("kd,bc->kbcd", leading[number], places)
            yield made[:, :, number].flatten(0, 1).T, basis.flatten(0, 1)

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        del targets  # the gradients are those recovered in training
        self.clues = []
        if not self.gradients:
            return
        rows = torch.cat([rows for _, rows in self.gradients])
        if len(rows) < self.known_labels.classes:
            return  # fewer samples than clusters tell nothing
        views = [
            SeenView(name, adapter, each if name == "gradient" else normalize(each))
            for name in self.config.views
            for adapter, each in enumerate(rows.unbind(1))
        ]
        for number, view in enumerate(views, 1):
            self.clues += self.read(view)
            yield number, len(views)

    def read(self, view: SeenView) -> list[Clue]:
        """Infer labels from a view: scores of two classes if there are two, and clusters."""
        steps, classes = tuple(step for step, _ in self.gradients), self.known_labels.classes
        place, clues = (view.name, view.adapter), []
        if classes == 2:
            clues.append(Clue(*place, "auc", principal_components(view.rows, 1)[:, 0], steps=steps))
        grouped = find_clusters(view.rows, classes, self.config.starts, self.known.seed)
        return [*clues, Clue(*place, "accuracy", grouped, steps=steps)]

    def state(self) -> dict[str, Tensor]:
        held = {f"found/{step}": rows for step, rows in self.gradients}
        for number, follower in enumerate(self.followers):
            held |= {f"sets/{number}/{name}": value for name, value in follower.state().items()}
        if (before := self._before) is not None:
            held |= {f"before/{each.name}": getattr(before, each.name) for each in fields(SeenStep)}
        return {**super().state(), **held, "lost": torch.tensor(self.lost)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        super().load(state)
        self.lost = bool(state["lost"])
        rows, sets, kept = (select_below(state, f"{name}/") for name in ("found", "sets", "before"))
        # By number: as text, step 10 would come before step 9.
        self.gradients = deque((step, rows[str(step)]) for step in sorted(map(int, rows)))
        for number in range(sum(name.endswith("/steps") for name in sets)):
            self.followers.append(self._build_follower())
            self.followers[number].load(select_below(sets, f"{number}/"))
        self._before = SeenStep(**kept) if kept else None
