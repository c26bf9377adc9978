"""Inverting the optimizer (P3EFT, section 3.3): two consecutive sets of adapters tell the gradient
that lies between them, in however many messages it crossed.

A server that is sent the adapters of step t and then those of step t + 1 undoes the client's
optimizer (`undoing`; its kind, learning rate and other options are taken to be known, as papers
print them). What it gets is the adapters' gradient, which is linear in that of features:

- If all m messages went to this server, the adapters' gradient is the sum of its own replies with
  the client's secret weights: m unknowns, as many equations as adapters have numbers. With these
  weights the messages sum up to the true gradient, which `private_backprop` was to hide.
- If it has fewer, it takes each sample's gradient for a sum of a few directions, the leading ones
  of the rows that it has, and works out itself what each direction of each sample comes to. Rows of
  mixed noise lie along the true ones, so the true gradient is found again. Rows of gaussian noise
  do not, and then it finds nothing. (All directions at once would be the Jacobian's inverse, for
  which adapters as small as those tried here leave too few digits.)

From the gradient labels are read as `spectral` (two classes) and `kmeans` read them. It is about
batches of training, the last ones before it is judged, and not about targets. Of several servers it
is the first, with the messages that go to it alone; of 2 m servers none sees two steps in a row.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from simsplit.attacks.base import Done
from simsplit.attacks.kmeans import clusters
from simsplit.attacks.knowledge import Knowledge, SeenView
from simsplit.attacks.label_attack import Clue, LabelAttack, LabelAttackConfig
from simsplit.attacks.spectral import components
from simsplit.attacks.undoing import Follower
from simsplit.methods.base import TEXTS, Modality
from simsplit.needs import Given, Need, Needs, needs_leg
from simsplit.packets import Leg, Packet
from simsplit.states import below

Inverted = Literal["gradient", "direction"]


class OptimizerInversionConfig(LabelAttackConfig):
    """Follows the client's optimizer back to its gradients; looks at the last batches trained on.

    Over an API, at a server that is asked two steps in a row.
    """

    kind: Literal["optimizer_inversion"] = "optimizer_inversion"
    views: tuple[Inverted, ...] = Field(default=("gradient", "direction"), min_length=1)
    """What it looks at of the gradients that it finds: these, or these at unit length."""
    directions: int = Field(default=4, ge=1)
    """Where a message lacks, in how many directions each sample's gradient is sought; each of them
    takes about as long as a step of training."""
    samples: int = Field(default=256, ge=2)
    """Samples of training that labels are told of, the last ones, in whole batches."""
    starts: int = Field(default=10, ge=1)
    """Runs of k-means, the best of which counts."""
    suits: ClassVar[frozenset[Modality]] = TEXTS
    online: ClassVar[bool] = True
    gradients: ClassVar[bool] = False  # of the targets, which it does not look at

    @property
    def needs(self) -> Needs:
        """Adapters that nothing but one client's optimizer changes, seen step by step."""
        own = (needs_leg(Leg.ADAPTERS), Need(Given.OWN_ADAPTERS), Need(Given.IN_A_ROW))
        return (*super().needs, *own)

    def build(self, known: Knowledge) -> "OptimizerInversion":
        return OptimizerInversion(self, known)


@dataclass
class SeenStep:
    """A step as one server sees it."""

    place: Tensor
    """Its number, its round, and whether all messages are here."""
    ids: Tensor
    mask: Tensor
    adapters: Tensor
    """n x P."""
    messages: Tensor
    """M x B x n x D."""
    replies: Tensor
    """What it gave back for each: M x n x P."""


class OptimizerInversion(LabelAttack):
    """Finds each step's gradient as soon as the next step's adapters are there."""

    options: OptimizerInversionConfig

    def __init__(self, config: OptimizerInversionConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self.followers: list[Follower] = []
        """One for each set of adapters."""
        self.lost = False
        """Whether a step was missed that the optimizer remembers."""
        self.found: deque[tuple[int, Tensor]] = deque()
        """Steps, and each sample's gradient in them: B x n x D."""
        self._arrived: dict[Leg, list[Tensor]] = {}
        self._before: SeenStep | None = None

    def observe(self, packet: Packet) -> None:
        """Keep what belongs to a step; when its messages have come, end the one before it."""
        if packet.leg is Leg.INPUTS:
            self._arrived[packet.leg] = [each.clone() for each in packet.tensors[:2]]
        elif packet.leg in (Leg.ADAPTERS, Leg.FEATURES_GRAD):
            self._arrived[packet.leg] = self._read(packet)
        elif packet.leg is Leg.ADAPTERS_GRAD:
            self._end(packet)
            self.iteration += 1

    def _end(self, packet: Packet) -> None:
        """A step is over: find the gradient of the one before, if both went to this server."""
        messages = self._arrived[Leg.FEATURES_GRAD]
        own, before = self._own(len(messages)), self._before
        adapters, self._before = self._arrived[Leg.ADAPTERS][0], None
        if before is not None and own and not self.lost:
            self._invert(before, adapters)
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

    def _own(self, count: int) -> list[int]:
        """Which of a step's messages go to the first server, as they go round."""
        first, servers = self.iteration * count, self.known.servers
        return [number for number in range(count) if (first + number) % servers == 0]

    def _read(self, packet: Packet) -> list[Tensor]:
        """A packet's messages, copied."""
        stack, step = self.known.stack, self.known.step(packet)
        return [
            stack.unpack(packet.leg, each, step).detach().clone()
            for each in stack.messages(packet.leg, packet.tensors)
        ]

    def _invert(self, before: SeenStep, after: Tensor) -> None:
        """Find a step's gradient, set by set, and follow the optimizer through the step."""
        step, round_number, whole = before.place.tolist()
        bases = self._summed(before) if whole else self._directed(before)
        self.followers = self.followers or [self._follower() for _ in after]
        found = []
        for number, (made_PK, basis_KBD) in enumerate(bases):
            weights = before.adapters[number], after[number]
            shares = self.followers[number].shares(
                made_PK, *weights, self.known.factor(round_number)
            )
            self.followers[number].follow(made_PK.double().cpu() @ shares, weights[0])
            found.append(torch.tensordot(shares, basis_KBD.double().cpu(), 1))
        rows = torch.stack(found, dim=1)
        self.found.append((step, (rows * len(rows)).float()))
        while sum(len(r) for _, r in self.found) - len(self.found[0][1]) >= self.options.samples:
            self.found.popleft()

    def _follower(self) -> Follower:
        assert self.known.optimizer is not None, "clients have one"
        return Follower(self.known.optimizer)

    def _summed(self, seen: SeenStep) -> Iterator[tuple[Tensor, Tensor]]:
        """For each set of adapters the replies, and the messages that they are to."""
        for number in range(len(seen.adapters)):
            yield seen.replies[:, number].T, seen.messages[:, :, number]

    def _directed(self, seen: SeenStep) -> Iterator[tuple[Tensor, Tensor]]:
        """For each set of adapters what each direction of each sample comes to, and these."""
        served = self.known.served
        assert served is not None, "where adapters cross, a server has all of the model"
        _, size, sets, width = seen.messages.shape
        rows = seen.messages.flatten(0, 1).transpose(0, 1)
        leading = torch.linalg.svd(rows, full_matrices=False)[2][:, : self.options.directions]
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
        """Read labels off what was found in training."""
        del targets
        self.clues = []
        if not self.found:
            return
        rows = torch.cat([rows for _, rows in self.found])
        views = [
            SeenView(name, adapter, each if name == "gradient" else normalize(each))
            for name in self.options.views
            for adapter, each in enumerate(rows.unbind(1))
        ]
        for number, view in enumerate(views, 1):
            self.clues += self._clues(view)
            yield number, len(views)

    def read(self, view: SeenView) -> Clue | None:
        """The last of its clues."""
        return self._clues(view)[-1]

    def _clues(self, view: SeenView) -> list[Clue]:
        steps, classes = tuple(step for step, _ in self.found), self.known_labels.classes
        place, clues = (view.name, view.adapter), []
        if classes == 2:
            clues.append(Clue(*place, "auc", components(view.rows, 1)[:, 0], steps=steps))
        grouped = clusters(view.rows, classes, self.options.starts, self.known.seed)
        return [*clues, Clue(*place, "accuracy", grouped, steps=steps)]

    def state(self) -> dict[str, Tensor]:
        """The optimizer's as followed, the step under way, and what was found."""
        held = {f"found/{step}": rows for step, rows in self.found}
        for number, follower in enumerate(self.followers):
            held |= {f"sets/{number}/{name}": value for name, value in follower.state().items()}
        if (before := self._before) is not None:
            held |= {f"before/{each.name}": getattr(before, each.name) for each in fields(SeenStep)}
        return {**super().state(), **held, "lost": torch.tensor(self.lost)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        super().load(state)
        self.lost = bool(state["lost"])
        found, sets, kept = (below(state, f"{name}/") for name in ("found", "sets", "before"))
        self.found = deque((step, found[str(step)]) for step in sorted(map(int, found)))
        for number in range(sum(name.endswith("/steps") for name in sets)):
            self.followers.append(self._follower())
            self.followers[number].load(below(sets, f"{number}/"))
        self._before = SeenStep(**kept) if kept else None
