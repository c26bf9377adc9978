"""The composition of a scenario's methods: hooks run in order on the way out and reversed back.

Methods that cannot be combined, or not in the given order, are refused. On each leg a batch starts
with all traits. Every method requires some traits, and ends some for the methods after it. All
rules of composition follow from these two lists.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from simsplit.data.batches import Batch
from simsplit.errors import ProtocolError, ScenarioError
from simsplit.legs import ClientId, Leg
from simsplit.methods.method import (
    Labels,
    Loss,
    Method,
    MethodConfig,
    Shape,
    Share,
    Side,
    Site,
    Step,
    Trait,
)
from simsplit.methods.tokens import Tokens
from simsplit.packets import TensorForm
from simsplit.phases import SEGMENTS, TRAIN, Interleaved, Phase
from simsplit.seeds import derive_seed
from simsplit.states import select_below

_FEATURE_LEGS = frozenset({Leg.FEATURES, Leg.FEATURES_GRAD})
_UNKNOWN = Labels()
Found = TypeVar("Found")
_WHY = {
    Trait.SAMPLES: "{method} needs one row per sample, and {before} before it mixes rows",
    Trait.ALONE: "{method} adds texts, and {before} before it needs the batch's texts alone",
    Trait.SHAPE: "{method} needs the cut's shape, and {before} before it flattens the data",
    Trait.VALUES: "{method} changes values, and {before} before it selects the values to send",
    Trait.NUMBERS: "{method} needs values, and {before} before it packs them to bits",
    Trait.FORMAT: "{method} sets the number format, and {before} before it sets it too",
}


class Stack:
    """The methods of one side. `smashed` and `features` are the chains of the two legs."""

    def __init__(
        self,
        smashed: Sequence[Method],
        features: Sequence[Method],
        side: Side,
        sent: tuple[Shape, Shape] = ((1,), (1,)),
        places: Sequence[int] = (),
    ) -> None:
        """Compose two chains; `sent` are the shapes of a sample that they pack.

        `places` are those of the smashed chain in the scenario's list of methods.
        """
        self.side, self.places = side, tuple(places)
        self.smashed = tuple(smashed)
        self.features = tuple(features)
        self.sent = sent
        self._beside: dict[Leg, tuple[int, ...]] = {}
        methods = self.get_methods()
        self._remembers = any(find_declaring(each, "state") is not Method for each in methods)
        self._turn: ClientId | None = None
        """The client whose turn it is, where clients share these objects."""
        self._memories: dict[ClientId | None, dict[str, Tensor]] = {}
        """What methods remember of other clients, and of none: their state before training."""
        learned = {
            f"{leg}_{index}": (method, method.module)
            for leg, methods in (("smashed", self.smashed), ("features", self.features))
            for index, method in enumerate(methods)
            if method.module is not None
        }
        self.modules = nn.ModuleDict({name: module for name, (_, module) in learned.items()})
        self.optimizers = {name: method.make_optimizer for name, (method, _) in learned.items()}
        """For each module, the function that builds a separate optimizer or returns None."""
        self.joins_rows = all(
            type(each) is Method or (each.joins_rows and has_form(each)) for each in methods
        )
        """Whether rows of several clients may go through as one; packets are cut by their forms."""
        self._by_row: dict[Leg, tuple[bool, ...]] = {}
        self.reaches_head = any(method.reaches_head for method in self.smashed)

    def announce(self) -> list[tuple[Tensor, ...]]:
        """Return the announcements of all methods, in order."""
        return [method.announce() for method in self.get_methods()]

    def receive_announcements(self, announced: Sequence[tuple[Tensor, ...]]) -> None:
        """Pass each method the announcement of its counterpart."""
        for method, tensors in zip(self.get_methods(), announced, strict=True):
            method.receive_announcement(tensors)

    def state(self) -> dict[str, Tensor]:
        """Return what methods remember from step to step, beside their modules."""
        return {
            f"{index}.{name}": tensor
            for index, method in enumerate(self.get_methods())
            for name, tensor in method.state().items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        # Copies, since a method may change what it remembers in place.
        own = {name: tensor.detach().clone() for name, tensor in state.items()}
        for index, method in enumerate(self.get_methods()):
            method.load(select_below(own, f"{index}."))

    def turn_to(self, client: ClientId) -> None:
        """Let methods remember this client's steps: clients with one head share its methods."""
        if not self._remembers or client == self._turn:
            return
        self._memories[self._turn] = self.state()
        self.load(self._memories.get(client, self._memories[None]))
        self._turn = client

    def get_methods(self) -> tuple[Method, ...]:
        """Return the methods of both legs, in order."""
        return self.smashed + self.features

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Apply the client's transforms in order; the step then has the new batch's labels."""
        for method in self.smashed:
            batch = method.transform(batch, step)
        if step.labels is not None:
            step.labels = batch.labels
        return batch

    @contextmanager
    def embedding(self, head: nn.Module, step: Step) -> Iterator[None]:
        """Open a context in which methods change what the head embeds (client)."""
        changing = [method for method in self.smashed if method.changes_embeddings]
        tokens = getattr(head, "tokens", None)
        if not changing or not isinstance(tokens, nn.Module):
            yield
            return

        def change(module: nn.Module, ids: object, x: Tensor) -> Tensor:
            x = x.float()
            for method in changing:
                x = _restore_dtype(method.embed(x, step), x)
            return x

        handle = tokens.register_forward_hook(change)
        try:
            yield
        finally:
            handle.remove()

    def encode(self, x: Tensor, step: Step) -> Tensor:
        """Encode with the chain that this side sends on: smashed (client) or features (server)."""
        for method in self.smashed if self.side == "client" else self.features:
            x = _restore_dtype(method.encode(x, step), x)
        return x

    def lift(self, x: Tensor, step: Step) -> Tensor:
        """Lift with the other side's chain in reverse; on the client, `decode` follows."""
        if self.side == "server":
            for method in reversed(self.smashed):
                x = _restore_dtype(method.lift(x, step), x)
            return x
        for method in reversed(self.features):
            x = _restore_dtype(method.lift(x, step), x)
        for method in reversed(self.smashed):
            x = _restore_dtype(method.decode(x, step), x)
        return x

    def stand_in(self, z: Tensor, step: Step) -> Tensor | None:
        """Return the first substitute for the trunk's output that a method has, or None."""
        return _find_first(method.stand_in(z, step) for method in self.smashed)

    def compute_encode_loss(self, step: Step) -> Tensor | None:
        """Return the sum of the methods' terms on what was encoded, or None without any."""
        return _add_up([method.compute_encode_loss(step) for method in self.smashed])

    def compute_task_loss(self, outputs: Tensor, labels: Tensor, loss: Loss, step: Step) -> Tensor:
        """Return the first task loss that a method defines, or else the loss on the labels."""
        for method in self.smashed:
            if (own := method.compute_task_loss(outputs, labels, loss, step)) is not None:
                return own
        return loss(outputs, labels)

    def read_outputs(self, outputs: Tensor, step: Step) -> Tensor:
        """Let the methods turn the tail's outputs into those of predictions, in order."""
        for method in self.smashed:
            outputs = method.read_outputs(outputs, step)
        return outputs

    def compute_tail_loss(self, step: Step) -> Tensor | None:
        """Return the sum of the methods' terms on what was decoded, or None without any."""
        return _add_up([method.compute_tail_loss(step) for method in self.smashed])

    def accepts(self, head: nn.Module, step: Step) -> bool:
        """Return whether every method lets the client learn from the step."""
        # A list, not a generator: every method inspects the gradients, even after a refusal.
        accepted = [method.accept(head, step) for method in self.smashed]
        return all(accepted)

    def report(self) -> dict[str, float]:
        """Return the values that methods report, by column."""
        return {name: value for m in self.smashed for name, value in m.report().items()}

    def split_gradient(self, grad: Tensor, step: Step) -> list[Share]:
        """Split one gradient into messages; each method may split those of the method before."""
        shares = [Share(grad)]
        for method in self.smashed:
            shares = [
                Share(inner.grad, outer.weight * inner.weight)
                for outer in shares
                for inner in method.split_gradient(outer.grad, step)
            ]
        return shares

    @property
    def count_messages(self) -> int:
        """Number of messages that `outgoing` makes of one gradient."""
        return math.prod(method.num_messages for method in self.smashed)

    def pack(self, leg: Leg, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        """Turn x into the wire format: the payload, then each method's side tensors in order."""
        beside: list[Tensor] = []
        step.leg = leg
        for method, declared in zip(self.get_chain(leg), self._count_beside(leg), strict=True):
            x, *side = method.pack(x, step)
            if len(side) != declared:
                name = type(method).__name__
                raise ProtocolError(
                    f"{name}.pack: got {len(side)} side tensors on leg {leg}, but the class "
                    f"declares {declared} (pack_form or num_side)"
                )
            beside += side
        return tuple(_trim_storage(tensor) for tensor in (x, *beside))

    def unpack(self, leg: Leg, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        """Invert `pack`, the last method first; the context after the payload is ignored."""
        step.leg = leg
        x, *beside = tensors[: self.count_tensors(leg)]
        counts = reversed(self._count_beside(leg))
        for method, count in zip(reversed(self.get_chain(leg)), counts, strict=True):
            start = len(beside) - count
            x = method.unpack((x, *beside[start:]), step)
            del beside[start:]
        return x

    def pack_rows(
        self, leg: Leg, x: Tensor, sizes: Sequence[int], step: Step
    ) -> list[tuple[Tensor, ...]]:
        """Pack the rows of several clients at once; each client's tensors are views of the whole.

        All methods must join rows.
        """
        columns: list[Sequence[Tensor]] = [
            tensor.split([*sizes]) if by_row else [tensor] * len(sizes)
            for tensor, by_row in zip(self.pack(leg, x, step), self._mark_rows(leg), strict=True)
        ]
        return list(zip(*columns, strict=True))

    def unpack_rows(self, leg: Leg, sent: Sequence[tuple[Tensor, ...]], step: Step) -> Tensor:
        """Unpack what several clients packed; their rows then lie one after another."""
        marks = self._mark_rows(leg)
        columns = zip(marks, zip(*(each[: len(marks)] for each in sent), strict=True), strict=True)
        whole = (torch.cat(parts) if by_row else parts[0] for by_row, parts in columns)
        return self.unpack(leg, tuple(whole), step)

    def _mark_rows(self, leg: Leg) -> tuple[bool, ...]:
        """Mark the tensors of a message that have a row for each sample."""
        if leg not in self._by_row:
            forms = []
            for rows in (2, 3):
                x = TensorForm((rows, *self.sent[leg in _FEATURE_LEGS]), torch.float32)
                made = self.pack_form(leg, x)
                assert made is not None, "methods that join rows declare their forms"
                forms.append(made)
            self._by_row[leg] = tuple(a.shape != b.shape for a, b in zip(*forms, strict=True))
        return self._by_row[leg]

    def split_messages(self, leg: Leg, tensors: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        """Split a packet's tensors into messages; without `outgoing` there is one."""
        width = self.count_tensors(leg)
        return [tensors[start : start + width] for start in range(0, len(tensors), width)]

    def get_context(self, smashed: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the tensors after the payload of a smashed packet: further inputs of the trunk."""
        return smashed[self.count_tensors(Leg.SMASHED) :]

    def plan_phases(self, rounds: int) -> list[Phase]:
        """Return the phases that the methods run before training proper, in order."""
        return [phase for method in self.smashed for phase in method.plan_phases(rounds)]

    def make_training_phase(self) -> Phase:
        """Return the phase of training proper; its 0 rounds stand for the schedule's."""
        frozen = frozenset().union(*(method.freezes for method in self.smashed))
        learned = (each.module is not None for each in self.smashed if "head" not in each.freezes)
        # The smashed gradient has no use if neither the head nor a method before the cut learns.
        returns = "head" not in frozen or any(learned)
        return Phase(
            TRAIN,
            0,
            learns=SEGMENTS - frozen,
            returns=returns,
            interleaved=self.plan_interleaved_steps(),
        )

    def count_tensors(self, leg: Leg) -> int:
        """Return the number of tensors in one message."""
        return 1 + sum(self._count_beside(leg))

    def plan_interleaved_steps(self) -> Interleaved | None:
        """Return the phase between training steps that a method has; at most one method has one."""
        return _find_first(method.plan_interleaved_steps() for method in self.smashed)

    def get_own_tokens(self, step: Step) -> Tensor | None:
        """Return the mask of the private texts' own tokens among the sent ones; None: all."""
        return _find_first(method.get_own_tokens(step) for method in self.smashed)

    def pack_form(self, leg: Leg, x: TensorForm) -> tuple[TensorForm, ...] | None:
        """Return the forms of what `pack` makes; None if a method does not declare its own."""
        beside: list[TensorForm] = []
        for method in self.get_chain(leg):
            if not has_form(method):
                return None
            x, *side = method.pack_form(x, leg)
            beside += side
        return (x, *beside)

    def get_chain(self, leg: Leg) -> tuple[Method, ...]:
        """Return the methods that pack and unpack what crosses on a leg."""
        return self.features if leg in _FEATURE_LEGS else self.smashed

    def _count_beside(self, leg: Leg) -> tuple[int, ...]:
        """Return the number of tensors that each method adds to a payload on this leg."""
        if leg not in self._beside:
            x = TensorForm((1, *self.sent[leg in _FEATURE_LEGS]), torch.float32)
            counts: list[int] = []
            for method in self.get_chain(leg):
                x, *side = method.pack_form(x, leg)
                counts.append(len(side))
            self._beside[leg] = tuple(counts)
        return self._beside[leg]


def has_form(method: Method) -> bool:
    """Return whether the forms that a method packs are declared, not only those of its base."""
    return issubclass(find_declaring(method, "pack_form"), find_declaring(method, "pack"))


def find_declaring(method: Method, hook: str) -> type:
    """Return the class whose hook a method has."""
    # A guarded class of a plugin's has all hooks, those that it inherits too.
    classes = (each for each in type(method).__mro__ if "__guarded__" not in vars(each))
    return next(each for each in classes if hook in vars(each))


def _restore_dtype(made: Tensor, given: Tensor) -> Tensor:
    """Cast a method's output to the type of its input.

    An autocast narrows the layers that methods add. Without the cast a method's bytes, compared
    with a plain cut's, would depend on whether its last operation is such a layer.
    """
    return made.to(given.dtype) if made.is_floating_point() and given.is_floating_point() else made


def _trim_storage(tensor: Tensor) -> Tensor:
    """Return the tensor with a storage of its own size; a slice would send the whole storage."""
    if tensor.untyped_storage().nbytes() == tensor.nbytes:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _find_first(found: Iterable[Found | None]) -> Found | None:
    return next((each for each in found if each is not None), None)


def _add_up(terms: Sequence[Tensor | None]) -> Tensor | None:
    present = [term for term in terms if term is not None]
    return sum(present[1:], start=present[0]) if present else None


Listed = Sequence[MethodConfig] | Mapping[int, MethodConfig]
"""Methods in order; a mapping if some of a scenario's list are left out: by their places in it."""


def _list_places(methods: Listed) -> list[tuple[int, MethodConfig]]:
    return list(methods.items() if isinstance(methods, Mapping) else enumerate(methods))


def build_stack(
    configs: Listed,
    side: Side,
    shapes: tuple[Shape, Shape],
    seed: int,
    device: torch.device,
    *,
    labels: Labels = _UNKNOWN,
    adapters: bool = False,
    tokens: Tokens | None = None,
    tail: nn.Module | None = None,
) -> Stack:
    """Build one side's half of the listed methods; `shapes` are the cut's and the features'."""
    chains: dict[Leg, list[Method]] = {Leg.SMASHED: [], Leg.FEATURES: []}
    of_packed: list[Shape] = []
    listed = _list_places(configs)
    for leg, shape in zip(chains, shapes, strict=True):
        # A place in this chain: a party's draws are the same whatever other parties' methods are.
        for index, (place, config) in enumerate(listed):
            if leg not in config.acts_on:
                continue
            where = f"method.{place}"
            stream = derive_seed(seed, "method", str(leg), index)
            site = Site(
                *(side, leg, shape, stream, device),
                where=where,
                features=shapes[1],
                labels=labels,
                adapters=adapters,
                tokens=tokens,
                tail=tail,
            )
            sent = config.compute_sent_shape(shape, where)
            chains[leg].append(method := config.build(site))
            method.joins_rows = config.is_rowwise()
            shape = sent
        of_packed.append(shape)
    smashed, features = of_packed
    places = [place for place, config in listed if Leg.SMASHED in config.acts_on]
    return Stack(chains[Leg.SMASHED], chains[Leg.FEATURES], side, (smashed, features), places)


def compute_sent_shapes(configs: Listed, shapes: tuple[Shape, Shape]) -> tuple[Shape, Shape]:
    """Return the shapes that cross per sample on the two forward legs, and check every method."""
    sent = []
    for leg, shape in zip((Leg.SMASHED, Leg.FEATURES), shapes, strict=True):
        for place, config in _list_places(configs):
            if leg in config.acts_on:
                shape = config.compute_sent_shape(shape, f"method.{place}")
        sent.append(shape)
    return sent[0], sent[1]


def refuse_disorder(methods: Listed) -> None:
    """Raise ScenarioError if methods cannot be combined, or not in this order."""
    listed = _list_places(methods)
    configs = [config for _, config in listed]
    for leg in (Leg.SMASHED, Leg.FEATURES):
        chain = [index for index, each in enumerate(configs) if leg in each.acts_on]
        for count, index in enumerate(chain):
            for place in chain[:count]:
                if why := _find_conflict(configs[place], configs[index]):
                    fix = _suggest_fix(configs, place, index)
                    raise ScenarioError(f"method.{listed[index][0]}.kind", f"{why}; {fix}")


def _find_conflict(before: MethodConfig, method: MethodConfig) -> str | None:
    """Return why a method cannot follow another one on a leg, or None if it can."""
    if method.once and method.kind_name == before.kind_name:
        return f"{method.kind_name} may be listed only once per leg, and it is listed before"
    for trait in Trait:
        if trait in before.get_ended_traits() & method.get_required_traits():
            return _WHY[trait].format(before=before.kind_name, method=method.kind_name)
    return None


def _suggest_fix(methods: Sequence[MethodConfig], place: int, index: int) -> str:
    """Return an order that resolves the conflict, or the advice to leave one method out."""
    before, method = methods[place], methods[index]
    if _find_conflict(method, before):
        return "leave one of them out"
    kinds = [each.kind_name for each in methods]
    kinds.insert(place, kinds.pop(index))
    return f"{method.kind_name} must come before {before.kind_name}: method: [{', '.join(kinds)}]"
