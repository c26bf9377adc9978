"""The client's end of a step for several clients at once: one head, one tail, one backward pass.

Each client still claims its own batch, sends packets of its own (views of the stacked tensors) and
counts its own losses, so nothing beyond the clients' boundary can tell. Batches may have different
sizes: rows are filled up with copies of a client's first row, whose labels are ignored. Texts may
have different lengths: they are padded to the longest, and each client sends what it would alone.

Methods that treat each row alone (`rowwise`) take all clients' rows in one call, with each client's
own draws. Others are called client by client, each with its own step, on that client's rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import pad

from simsplit.data.batches import Batch
from simsplit.data.samples import IGNORED
from simsplit.legs import ClientId, Leg
from simsplit.methods.method import Step
from simsplit.packets import Packet, Packets
from simsplit.parties.client import Client
from simsplit.parties.stacked_adapters import reads_texts
from simsplit.parties.stacked_learner import StackedLearner, StackedStep
from simsplit.parties.tally import count_plain_bytes, mark_hits
from simsplit.phases import TRAIN

Messages = list[tuple[Tensor, ...]]


class RowLayout:
    """The sizes of clients' batches, and how rows of all clients are laid out as one tensor."""

    def __init__(
        self, sizes: Sequence[int], device: torch.device, lengths: Sequence[int] = ()
    ) -> None:
        """Lay out so many rows of each client; `lengths` are those of its texts, if it has any."""
        self.sizes, self.most, self.lengths = sizes, max(sizes), lengths
        self._fill: Tensor | None = None
        if min(sizes) < self.most:
            ends = torch.tensor(sizes).cumsum(0)
            starts, places = ends - torch.tensor(sizes), torch.arange(self.most)
            within = places < torch.tensor(sizes)[:, None]
            self._fill = torch.where(within, starts[:, None] + places, starts[:, None]).to(device)
            self.real = within.to(device)

    def stack(self, parts: Tensor | Sequence[Tensor]) -> Tensor:
        """Return rows of all clients, one after another, as [client, row, ...]."""
        if not isinstance(parts, Tensor):
            if len(set(self.lengths)) > 1:
                parts = [_lengthen(part, max(self.lengths)) for part in parts]
            parts = torch.cat(list(parts))
        flat = parts
        if self._fill is None:
            return flat.view(len(self.sizes), self.most, *flat.shape[1:])
        return flat[self._fill]

    def stack_labels(self, flat: Tensor) -> Tensor:
        """Return the labels of all clients, where those of rows that fill up are ignored."""
        stacked = self.stack(flat)
        if self._fill is None:
            return stacked
        real = self.real.view(*self.real.shape, *[1] * (stacked.ndim - 2))
        return stacked.where(real, IGNORED)

    def join(self, stacked: Tensor) -> Tensor:
        """Return the rows of all clients, one after another, without those that fill up."""
        return stacked.flatten(0, 1) if self._fill is None else stacked[self.real]

    def split(self, stacked: Tensor) -> Sequence[Tensor]:
        """Return each client's rows, as views."""
        every: Sequence[Tensor] = stacked.unbind()
        if len(set(self.lengths)) > 1:
            every = [rows[:, :long] for rows, long in zip(every, self.lengths, strict=True)]
        if self._fill is None:
            return every
        return [rows[:size] for rows, size in zip(every, self.sizes, strict=True)]

    @property
    def forms(self) -> Sequence[tuple[int, ...]]:
        """The leading sizes of each client's rows: their number, and the length of its texts."""
        return [*zip(self.sizes, *([self.lengths] if self.lengths else []), strict=True)]


@dataclass
class _StackedPending:
    """The state of a step of stacked clients between two turns."""

    members: list[Client]
    clients: Sequence[ClientId]
    """The members' numbers."""
    numbers: list[int]
    """The number of each one's batch."""
    round: int
    rows: RowLayout
    inputs: Tensor
    labels: Tensor
    learning: StackedStep
    steps: list[Step]
    """Each client's view of the step, for its methods; or one of all for those that join rows."""
    turn: int = 0
    sent: list[Tensor] = field(default_factory=list)
    """What was sent, with its graph: one tensor of all clients' rows, or one of each client."""
    arrived: list[Tensor] = field(default_factory=list)
    """The features likewise, as leaves."""
    plain: list[int] = field(default_factory=list)
    """Each client's bytes without methods."""

    @property
    def step(self) -> Step:
        """The step of all clients, if methods join their rows."""
        return self.steps[0]


class StackedEnd:
    """Clients whose steps are taken as one; all have equal modules, methods and optimizers."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self.places = {client.number: place for place, client in enumerate(clients)}
        self.clients = clients
        self.learner = StackedLearner([client.training.end.learners for client in clients])
        self.pattern = clients[0].training
        self.methods = self.pattern.end.stack
        """The methods of the first client, which act as others' do where they join rows."""
        # Texts of several lengths are no tensor without padding, which methods must not see.
        self.joins = self.methods.joins_rows and not reads_texts(self.pattern.end.head)
        self._score = vmap(self.pattern.end.loss)
        self._pending: list[_StackedPending] = []
        """The steps under way: one, or one for each size of batches."""
        for client in clients:
            client.training.is_stacked = True
            client.training.end.sessions.clear()  # computed with the weights before

    def settle(self) -> None:
        """Bring the clients themselves up to date, and let them go."""
        self.learner.settle()
        for client in self.clients:
            client.training.is_stacked = False

    def begin(self, numbers: Sequence[ClientId], round_number: int) -> dict[ClientId, Packets]:
        """Begin a step of these clients on their next batches."""
        members = [self.clients[self.places[number]] for number in numbers]
        claimed = [m.training.claim_batch(m.training.phase, round_number) for m in members]
        together = _group_alike(members, claimed) if self.learner.buffers else [range(len(members))]
        self._pending = [
            self._open([members[n] for n in some], [claimed[n] for n in some], round_number)
            for some in together
        ]
        made = {c: packets for each in self._pending for c, packets in self._make(each).items()}
        return {number: made[number] for number in numbers}

    def proceed(self, arrived: Mapping[ClientId, Packets]) -> dict[ClientId, Packets]:
        """Process the server's packets; send the next ones, or learn if the step is over."""
        made: dict[ClientId, Packets] = {}
        for pending in self._pending:
            made |= self._proceed(pending, arrived)
        return {number: made[number] for number in arrived}

    def _open(
        self, members: list[Client], claimed: list[int], round_number: int
    ) -> _StackedPending:
        clients = [member.number for member in members]
        rows, inputs, labels = _draw(members, claimed)
        learning = self.learner.open([self.places[client] for client in clients])
        at = members, clients, claimed, round_number
        pending = _StackedPending(*at, rows, inputs, labels, learning, steps=[])
        pending.steps = self._open_steps(pending)
        return pending

    def _proceed(
        self, pending: _StackedPending, arrived: Mapping[ClientId, Packets]
    ) -> dict[ClientId, Packets]:
        for leg in self.pattern.turns[pending.turn + 1].takes:
            packets = [_find_on(leg, arrived[client]) for client in pending.clients]
            self.takes[leg](self, pending, packets)
        pending.turn += 1
        if self.pattern.turns[pending.turn].sends:
            return self._make(pending)
        self._learn(pending)
        return dict.fromkeys(pending.clients, ())

    def _make(self, pending: _StackedPending) -> dict[ClientId, Packets]:
        """Make the packets of this turn, client by client."""
        by_leg = [
            [
                Packet(client, leg, pending.round, number, tensors)
                for client, number, tensors in zip(
                    pending.clients, pending.numbers, self.makes[leg](self, pending), strict=True
                )
            ]
            for leg in self.pattern.turns[pending.turn].sends
        ]
        return dict(zip(pending.clients, zip(*by_leg, strict=True), strict=True))

    def _learn(self, pending: _StackedPending) -> None:
        if self.pattern.phase.name == TRAIN:
            for member, plain in zip(pending.members, pending.plain, strict=True):
                member.training.end.tally.plain_bytes += plain
        if not self.joins:
            for member, step in zip(pending.members, pending.steps, strict=True):
                member.training.end.tally.add_reported(step.figures)
        pending.learning.end()

    def _open_steps(self, pending: _StackedPending) -> list[Step]:
        """Open each client's step, or one of all where methods join rows."""
        phase, at = self.pattern.phase.name, zip(pending.members, pending.numbers, strict=True)
        steps = (
            member.training.end.open_step(pending.round, number, phase, training=True)
            for member, number in at
        )
        if self.joins:
            first = next(steps)
            if self.methods.get_methods():
                # A stream is made of a step's place, so the first one's is there twice.
                every = [replace(first), *steps]
                first.parts = list(zip(every, pending.rows.sizes, strict=True))
            return [first]
        made = list(steps)
        for step, own in zip(made, pending.rows.split(pending.labels), strict=True):
            step.labels = own
        return made

    def _smash(self, pending: _StackedPending) -> Messages:
        made = pending.learning.run("head", pending.inputs)
        pending.plain = self._count_plain(pending, made)
        if self.joins:
            pending.sent = [self.methods.encode(pending.rows.join(made), pending.step)]
            return self._pack(Leg.SMASHED, pending.sent[0].detach(), pending)
        by_client = list(zip(pending.members, pending.steps, strict=True))
        pending.sent = [
            member.training.end.stack.encode(rows, step)
            for (member, step), rows in zip(by_client, pending.rows.split(made), strict=True)
        ]
        return [
            member.training.end.stack.pack(Leg.SMASHED, sent.detach(), step)
            for (member, step), sent in zip(by_client, pending.sent, strict=True)
        ]

    def _pack(self, leg: Leg, rows: Tensor, pending: _StackedPending) -> Messages:
        return self.methods.pack_rows(leg, rows, pending.rows.sizes, pending.step)

    def _unpack(self, packets: list[Packet], pending: _StackedPending) -> Tensor:
        sent = [packet.tensors for packet in packets]
        return self.methods.unpack_rows(packets[0].leg, sent, pending.step)

    def _count_plain(self, pending: _StackedPending, made: Tensor) -> list[int]:
        """Count the bytes of a plain cut by client; they depend on the batch's form alone."""
        known, legs = dict[tuple[int, ...], int](), self.pattern.protocol.legs
        for form in set(pending.rows.forms):
            kept = tuple(slice(size) for size in form)
            inputs, labels, outputs = pending.inputs[0], pending.labels[0], made[0]
            given = Batch(inputs[kept], labels[kept], torch.empty(0))
            plain = count_plain_bytes(given, outputs[kept], self.pattern.end.features)
            known[form] = sum(plain.get(leg, 0) for leg in legs)
        return [known[form] for form in pending.rows.forms]

    def _send_labels(self, pending: _StackedPending) -> Messages:
        return [(rows,) for rows in pending.rows.split(pending.labels)]

    def _judge(self, pending: _StackedPending, packets: list[Packet]) -> None:
        """Run all tails, and all their backward passes, on the features that arrived."""
        if self.joins:
            pending.arrived = [self._unpack(packets, pending).detach().requires_grad_()]
            x = pending.rows.stack(self.methods.lift(pending.arrived[0], pending.step))
        else:
            pending.arrived, lifted = [], []
            for member, step, packet in zip(pending.members, pending.steps, packets, strict=True):
                stack = member.training.end.stack
                features = stack.unpack(Leg.FEATURES, packet.tensors, step)
                pending.arrived.append(features.detach().requires_grad_())
                lifted.append(stack.lift(pending.arrived[-1], step))
            x = pending.rows.stack(lifted)
        outputs = pending.learning.run("tail", x)
        losses = self._score(outputs, pending.labels)
        losses.sum().backward()
        # Row by row: of labels in two dimensions each row would be a text.
        marked = mark_hits(outputs.detach().flatten(0, 1), pending.labels.flatten(0, 1))
        hits = marked.view_as(pending.labels).flatten(1).sum(1).unbind()
        sizes = pending.rows.sizes
        learned: Sequence[int | Tensor] = sizes
        if pending.rows.lengths:
            learned = (pending.labels != IGNORED).flatten(1).sum(1).unbind()
        counted = zip(sizes, learned, losses.detach().unbind(), hits, strict=True)
        for member, (size, labels, loss, hit) in zip(pending.members, counted, strict=True):
            member.training.end.tally.add_counted(size, labels, loss, hit)

    def _answer(self, pending: _StackedPending) -> Messages:
        """Return the gradients of the features, in as many messages as methods make of them."""
        grads = [leaf.grad for leaf in pending.arrived if leaf.grad is not None]
        assert len(grads) == len(pending.arrived), "every loss depends on its features"
        if self.joins:
            return self._pack(Leg.FEATURES_GRAD, grads[0], pending)
        parts = zip(pending.members, pending.steps, grads, strict=True)
        return [member.training.end.answer_with(grad, step) for member, step, grad in parts]

    def _carry_back(self, pending: _StackedPending, packets: list[Packet]) -> None:
        """Run the backward pass through all heads, of the returned gradients and loss terms."""
        grads: list[Tensor | None]
        if self.joins:
            roots, grads = list(pending.sent), [self._unpack(packets, pending)]
        else:
            roots, grads = list(pending.sent), []
            for member, step, packet in zip(pending.members, pending.steps, packets, strict=True):
                end = member.training.end
                grads.append(end.recombine_reply(packet, step))
                term = end.stack.compute_encode_loss(step)
                end.tally.add_method_loss(term, len(packet.tensors[0]))
                if term is not None:
                    roots.append(term)
            grads += [None] * (len(roots) - len(grads))
        if roots[0].requires_grad:
            torch.autograd.backward(roots, grads)

    makes: ClassVar[Mapping[Leg, Callable[["StackedEnd", _StackedPending], Messages]]] = {
        Leg.SMASHED: _smash,
        Leg.LABELS: _send_labels,
        Leg.FEATURES_GRAD: _answer,
    }
    takes: ClassVar[Mapping[Leg, Callable[["StackedEnd", _StackedPending, list[Packet]], None]]] = {
        Leg.FEATURES: _judge,
        Leg.SMASHED_GRAD: _carry_back,
    }


def _lengthen(x_BL: Tensor, length: int) -> Tensor:
    """Pad the tokens of texts, or what the model has made of each, on the right to a length."""
    return pad(x_BL, (*[0] * 2 * (x_BL.ndim - 2), 0, length - x_BL.shape[1]))


def _find_on(leg: Leg, packets: Packets) -> Packet:
    """Return the packet of a leg, mostly the only one."""
    return packets[0] if len(packets) == 1 else next(each for each in packets if each.leg is leg)


def _group_alike(members: Sequence[Client], numbers: Sequence[int]) -> list[list[int]]:
    """Group places in the cohort by the sizes of batches: a norm's statistics take no filling."""
    groups: dict[int, list[int]] = {}
    for place, (member, number) in enumerate(zip(members, numbers, strict=True)):
        feed = member.training.feeds[member.training.phase.source]
        groups.setdefault(len(feed.indices(number)), []).append(place)
    return list(groups.values())


def _draw(members: Sequence[Client], numbers: Sequence[int]) -> tuple[RowLayout, Tensor, Tensor]:
    """Draw every client's batch, of samples that lie in one tensor by one look-up."""
    feeds = [member.training.feeds[member.training.phase.source] for member in members]
    batcher = feeds[0].batcher
    pairs = list(zip(feeds, numbers, strict=True))
    if batcher.augments:
        batches = [feed.batch(number) for feed, number in pairs]
        rows = RowLayout([len(batch.labels) for batch in batches], batcher.device)
        inputs = torch.cat([batch.inputs for batch in batches])
        labels = torch.cat([batch.labels for batch in batches])
    else:
        chosen = [feed.indices(number) for feed, number in pairs]
        sizes, together = [len(each) for each in chosen], torch.cat(chosen)
        lengths = batcher.get_lengths(together)
        longest = [] if lengths is None else [int(part.max()) for part in lengths.split(sizes)]
        rows = RowLayout(sizes, batcher.device, longest)
        batch = batcher.batch(together)
        inputs, labels = batch.inputs, batch.labels
    return rows, rows.stack(inputs), rows.stack_labels(labels)
