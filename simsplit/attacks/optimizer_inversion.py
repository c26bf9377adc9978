"""Inverting the optimizer (P3EFT, section 3.3): two consecutive sets of adapters tell the gradient
that lies between them, in however many messages it crossed.

A server that is sent the adapters of step t and then those of step t + 1 undoes the client's
optimizer (`undoing`; its kind, learning rate and other options are taken to be known, as papers
print them). The adapters' gradient is the sum of the server's own replies with the client's secret
weights: m unknowns, and as many equations as adapters have numbers. With the weights the messages
sum up to the true gradient of features, which `private_backprop` was to hide. From it labels are
read as the attacks `spectral` (two classes) and `kmeans` read them.

It is about batches of training, the last ones before it is judged, and not about targets. Of
several servers it is the first: it sees the messages that go to it alone, and with 2 m servers no
two steps in a row. With fewer than m messages what it sums up is the nearest gradient that they
have in their span, which is mostly noise.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from simsplit.attacks.base import Done, Knowledge
from simsplit.attacks.kmeans import clusters
from simsplit.attacks.labels import Clue, LabelAttack, LabelAttackConfig
from simsplit.attacks.spectral import components
from simsplit.attacks.undoing import Follower
from simsplit.attacks.views import View
from simsplit.needs import Given, Need, Needs
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
    samples: int = Field(default=256, ge=2)
    """Samples of training that labels are told of, the last ones, in whole batches."""
    starts: int = Field(default=10, ge=1)
    """Runs of k-means, the best of which counts."""
    online: ClassVar[bool] = True
    gradients: ClassVar[bool] = False  # of the targets, which it does not look at

    @property
    def needs(self) -> Needs:
        """Adapters that nothing but one client's optimizer changes, seen step by step."""
        return (*super().needs, Need(Given.OWN_ADAPTERS), Need(Given.IN_A_ROW))

    def build(self, known: Knowledge) -> "OptimizerInversion":
        return OptimizerInversion(self, known)


@dataclass
class Seen:
    """A step as one server sees it: its adapters, and the messages that went to it."""

    step: int
    factor: float
    adapters: Tensor
    messages: Tensor
    """M x B x n x D."""
    replies: Tensor = torch.empty(0)
    """What it gave back for each: M x n x P."""


class OptimizerInversion(LabelAttack):
    """Sums up each step's messages as soon as the next step's adapters are there."""

    options: OptimizerInversionConfig

    def __init__(self, config: OptimizerInversionConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        assert known.optimizer is not None, "clients have one"
        self.follower = Follower(known.optimizer)
        self.lost = False
        """Whether a step was missed that the optimizer remembers."""
        self.found: deque[tuple[int, Tensor]] = deque()
        """Steps, and each sample's gradient in them: B x n x D."""
        self._adapters = torch.empty(0)
        self._before: Seen | None = None

    def observe(self, packet: Packet) -> None:
        """Keep what belongs to a step; its gradient is found when the next step begins."""
        if packet.leg is Leg.ADAPTERS:
            (self._adapters,) = self._read(packet)[:1]
        elif packet.leg is Leg.FEATURES_GRAD:
            self._meet(packet)
        elif packet.leg is Leg.ADAPTERS_GRAD:
            own, before = self._own(self._read(packet)), self._before
            if own and before is not None:
                before.replies = torch.stack(own)
            self.iteration += 1

    def _meet(self, packet: Packet) -> None:
        """A step comes to its messages: end the one before it, if both went to this server."""
        own, before = self._own(self._read(packet)), self._before
        if before is not None and own and not self.lost:
            with torch.no_grad():
                self._invert(before, self._adapters)
        elif self.iteration:
            self.lost |= self.known.optimizer is not None and self.known.optimizer.slots > 0
        self._before = None
        if own:
            seen = torch.stack(own)
            factor = self.known.factor(packet.round)
            self._before = Seen(packet.step, factor, self._adapters, seen)

    def _invert(self, before: Seen, adapters: Tensor) -> None:
        made = before.replies.flatten(1).T
        places = before.adapters.flatten(), adapters.flatten()
        shares = self.follower.shares(made, *places, before.factor)
        self.follower.follow(made.double().cpu() @ shares, places[0])
        summed = torch.tensordot(shares, before.messages.double().cpu(), 1)
        self.found.append((before.step, (summed * len(summed)).float()))
        while sum(len(rows) for _, rows in self.found) - len(self.found[0][1]) >= self.options.samples:
            self.found.popleft()

    def _own(self, messages: Sequence[Tensor]) -> list[Tensor]:
        """Those of a step's messages that go to the first server, as they go round."""
        count, servers = len(messages), self.known.servers
        return [
            message
            for number, message in enumerate(messages)
            if (self.iteration * count + number) % servers == 0
        ]

    def _read(self, packet: Packet) -> list[Tensor]:
        """A packet's messages, copied."""
        stack, step = self.known.stack, self.known.step(packet)
        return [
            stack.unpack(packet.leg, each, step).detach().clone()
            for each in stack.messages(packet.leg, packet.tensors)
        ]

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        """Read labels off what was found in training."""
        del targets
        self.clues = []
        if not self.found:
            return
        rows = torch.cat([rows for _, rows in self.found])
        views = [
            View(name, adapter, normalize(each.flatten(1)) if name == "direction" else each.flatten(1))
            for name in self.options.views
            for adapter, each in enumerate(rows.unbind(1))
        ]
        for number, view in enumerate(views, 1):
            self.clues += self._clues(view)
            yield number, len(views)

    def read(self, view: View) -> Clue | None:
        """The last of its clues."""
        return self._clues(view)[-1]

    def _clues(self, view: View) -> list[Clue]:
        steps, seed = tuple(step for step, _ in self.found), self.known.seed
        place, classes = (view.name, view.adapter), self.told.classes
        clues = []
        if classes == 2:
            clues.append(Clue(*place, "auc", components(view.rows, 1)[:, 0], steps=steps))
        grouped = clusters(view.rows, classes, self.options.starts, seed)
        return [*clues, Clue(*place, "accuracy", grouped, steps=steps)]

    def state(self) -> dict[str, Tensor]:
        """The optimizer's as followed, the step under way, and what was found."""
        held = {f"optimizer/{name}": value for name, value in self.follower.state().items()}
        for step, rows in self.found:
            held[f"found/{step}"] = rows
        if (before := self._before) is not None:
            place = torch.tensor([before.step, before.factor], dtype=torch.float64)
            held |= {"before/place": place, "before/adapters": before.adapters}
            held |= {"before/messages": before.messages, "before/replies": before.replies}
        return {**super().state(), **held, "lost": torch.tensor(self.lost)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        super().load(state)
        self.lost = bool(state["lost"])
        self.follower.load(below(state, "optimizer/"))
        found = below(state, "found/")
        self.found = deque((step, found[str(step)]) for step in sorted(map(int, found)))
        if kept := below(state, "before/"):
            step, factor = kept.pop("place").tolist()
            self._before = Seen(int(step), factor, **kept)
