"""Methods determine the form of a packet's tensors: their types, and the size of each axis.

The sending halves of methods that pack (casts, codes, indices) are tried on blank payloads of a few
sizes. What is equal in all trials is fixed; what grows with the payload's rows follows them. So the
form of any method's packets is known, a plugin's included, before a packet is unpacked.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from simsplit.errors import ProtocolError
from simsplit.methods.method import BACK, Method, MethodConfig, Shape, Step
from simsplit.methods.stack import Stack
from simsplit.packets import Leg

ROWS = (2, 3, 9, 27, 81)
"""The numbers of samples that are tried, until one makes more rows than the first."""
Message = tuple[Tensor, ...]


@dataclass(frozen=True)
class WireAxis:
    """The size that an axis of a tensor has."""

    size: int | None
    """None: it depends on the length of texts."""
    each_row: bool = False
    """Whether `size` counts for each row of the message's first tensor."""

    def fits(self, size: int, rows: int) -> bool:
        """Return whether the axis may have a size, in a message of `rows` rows."""
        wanted = self.size if self.size is None or not self.each_row else self.size * rows
        return size > 0 and wanted in (None, size)


@dataclass(frozen=True)
class TensorForm:
    """The form of one tensor of a message."""

    dtypes: frozenset[torch.dtype]
    axes: tuple[WireAxis, ...]

    def fits(self, tensor: Tensor, rows: int) -> bool:
        """Return whether a tensor has this form, in a message of `rows` rows."""
        if tensor.dtype not in self.dtypes or tensor.ndim != len(self.axes):
            return False
        return all(
            axis.fits(size, rows) for axis, size in zip(self.axes, tensor.shape, strict=True)
        )


class WireForms:
    """The forms of the messages on each leg whose packets methods pack."""

    def __init__(
        self,
        configs: Sequence[MethodConfig],
        stacks: tuple[Stack, Stack],
        shapes: tuple[Shape, Shape],
        dtypes: frozenset[torch.dtype],
        *,
        texts: bool,
    ) -> None:
        """Try the methods of both sides, client and server, on blank payloads.

        `shapes` are those of the cut and of the features before methods change them, and `dtypes`
        the types that the model's segments may put out.
        """
        self.forms: dict[Leg, tuple[TensorForm, ...]] = {}
        self.keeps_rows = True
        """Whether a message has one row for each sample, as far as is known."""
        self._stacks = client, server = tuple(map(_copy_packing, stacks))
        client.receive_announcements(server.announce())
        for leg, shape in zip(BACK, shapes, strict=True):
            acting = [config for config in configs if leg in config.acts_on]
            if not any(packs(each) for stack in stacks for each in _list_methods(stack, leg)):
                continue
            try:
                self._learn(leg, acting, shape, sorted(dtypes, key=str), texts=texts)
            except Exception:  # noqa: BLE001 - a method, perhaps a plugin's, needs more than blanks
                self.keeps_rows = False

    def check(self, leg: Leg, message: Message) -> None:
        """Raise ProtocolError unless a message has a form that methods make."""
        rows = len(message[0]) if message and message[0].ndim else 0
        forms = self.forms.get(leg)
        if forms is None:  # the methods cannot be tried alone; what they unpack is checked
            good = rows > 0 and all(0 not in tensor.shape for tensor in message)
        else:
            good = len(forms) == len(message) and all(
                form.fits(tensor, rows) for form, tensor in zip(forms, message, strict=True)
            )
        if not good:
            shapes = ", ".join(f"{tuple(each.shape)} of {each.dtype}" for each in message)
            raise ProtocolError(f"a payload on {leg} that its methods do not make: {shapes[:200]}")

    def _learn(
        self,
        leg: Leg,
        configs: Sequence[MethodConfig],
        shape: Shape,
        dtypes: Sequence[torch.dtype],
        *,
        texts: bool,
    ) -> None:
        """Learn the forms on a forward leg and on its gradient leg."""
        tried = [self._try(leg, configs, ROWS[0], shape, dtype) for dtype in dtypes]
        if texts:
            # A text longer by one token shows which axes follow the length.
            longer = (shape[0] + 1, *shape[1:])
            tried.append(self._try(leg, configs, ROWS[0], longer, dtypes[0]))
        self.keeps_rows &= all(_count_rows(each) == ROWS[0] for each in tried)
        for rows in ROWS[1:]:
            tried.append(self._try(leg, configs, rows, shape, dtypes[0]))
            self.keeps_rows &= _count_rows(tried[-1]) == rows
            if _count_rows(tried[-1]) != _count_rows(tried[0]):
                break
        for way, of_leg in enumerate((leg, BACK[leg])):
            messages = [each[way] for each in tried]
            places = range(len(messages[0]))
            self.forms[of_leg] = tuple(_compare(messages, place) for place in places)

    def _try(
        self,
        leg: Leg,
        configs: Sequence[MethodConfig],
        rows: int,
        shape: Shape,
        dtype: torch.dtype,
    ) -> tuple[Message, Message]:
        """Return the messages that a blank payload and its blank gradient become."""
        sender, receiver = self._stacks if leg is Leg.SMASHED else self._stacks[::-1]
        here, there = (Step(0, 1, 0, 0) for _ in range(2))
        x = torch.zeros(rows, *shape, dtype=dtype)
        with torch.no_grad():
            for method, config in zip(_list_methods(sender, leg), configs, strict=True):
                if packs(method):
                    x = method.encode(x, here).to(dtype)
                else:
                    x = x.new_zeros(
                        len(x), *config.compute_sent_shape(tuple(x.shape[1:]), "method")
                    )
            message = sender.pack(leg, x, here)
            arrived = receiver.unpack(leg, message, there)
            return message, receiver.pack(BACK[leg], torch.zeros_like(arrived), there)


def packs(method: Method) -> bool:
    """Return whether a method has a wire format of its own."""
    return type(method).pack is not Method.pack


def _list_methods(stack: Stack, leg: Leg) -> tuple[Method, ...]:
    return stack.smashed if leg is Leg.SMASHED else stack.features


def _copy_packing(stack: Stack) -> Stack:
    """Return a stack with copies of the methods that pack, and idle ones for the others."""
    smashed, features = (
        # Copies, since the trials must not move what the run's own methods remember.
        [copy.deepcopy(each) if packs(each) else Method() for each in methods]
        for methods in (stack.smashed, stack.features)
    )
    return Stack(smashed, features, stack.side)


def _count_rows(tried: tuple[Message, Message]) -> int:
    return len(tried[0][0])


def _compare(messages: Sequence[Message], place: int) -> TensorForm:
    """Return the form that the tensors at a place of all messages have in common."""
    tensors = [message[place] for message in messages]
    rows = [len(message[0]) for message in messages]
    axes = []
    for number, sizes in enumerate(zip(*(tensor.shape for tensor in tensors), strict=True)):
        if place == number == 0:
            axes.append(WireAxis(1, each_row=True))
        elif len(set(sizes)) == 1:
            axes.append(WireAxis(sizes[0]))
        # Exact: quotients of floats could differ in the last digit.
        elif len({Fraction(size, count) for size, count in zip(sizes, rows, strict=True)}) == 1:
            axes.append(WireAxis(sizes[0] // rows[0], each_row=True))
        else:
            axes.append(WireAxis(None))
    return TensorForm(frozenset(tensor.dtype for tensor in tensors), tuple(axes))
