"""The forms of what a run's methods pack: declared by the methods, or else measured on blanks.

Both are exact: they are computed for one payload, with its number of rows and its length.
"""

import copy
from collections.abc import Sequence
from contextlib import suppress

import torch

from simsplit.legs import Leg
from simsplit.methods.method import BACK, Method, MethodConfig, Step
from simsplit.methods.stack import Stack
from simsplit.packets import TensorForm

Forms = tuple[TensorForm, ...]
_FORTH = {back: leg for leg, back in BACK.items()}


class PackedForms:
    """The forms of messages on the legs whose packets methods pack."""

    def __init__(self, configs: Sequence[MethodConfig], stacks: tuple[Stack, Stack]) -> None:
        """Take the stacks of a client and of the server; neither is changed."""
        self._stacks = stacks
        self._configs = {leg: [each for each in configs if leg in each.acts_on] for leg in BACK}
        self._measured: dict[tuple[Leg, TensorForm], tuple[Forms, Forms] | None] = {}

    def compute(self, leg: Leg, x: TensorForm, before: TensorForm) -> Forms | None:
        """Return the forms of the message that a payload x becomes; None if they are not known.

        `before` is the form of the segment's output of which `encode` made the payload.
        """
        declared = self._stacks[not leg.up].pack_form(leg, x)
        if declared is not None:
            return declared
        forth = _FORTH.get(leg, leg)
        if (forth, before) not in self._measured:
            self._measured[forth, before] = None
            # a plugin's method may need more than blanks
            with suppress(Exception):
                self._measured[forth, before] = self._measure(forth, before)
        both = self._measured[forth, before]
        return None if both is None else both[leg != forth]

    def _measure(self, leg: Leg, before: TensorForm) -> tuple[Forms, Forms] | None:
        """Return the forms of a blank payload's message and of its gradient's.

        None if `encode` changes the rows: then those of a message do not say how many there were.
        """
        # Idle methods in place of those that do not pack, and copies of the others, since what is
        # measured must not move what the run's own methods remember.
        sides = client, server = [
            Stack(
                [copy.deepcopy(each) if packs(each) else Method() for each in stack.smashed],
                [copy.deepcopy(each) if packs(each) else Method() for each in stack.features],
                stack.side,
                stack.sent,
            )
            for stack in self._stacks
        ]
        client.receive_announcements(server.announce())
        sender, receiver = sides[not leg.up], sides[leg.up]
        here, there = (Step(0, 1, 0, 0) for _ in range(2))
        x = torch.zeros(before.shape, dtype=before.dtype)
        with torch.no_grad():
            for method, config in zip(sender.get_chain(leg), self._configs[leg], strict=True):
                if packs(method):
                    x = method.encode(x, here).to(before.dtype)
                else:
                    shape = config.compute_sent_shape(tuple(x.shape[1:]), "method")
                    x = x.new_zeros(len(x), *shape)
            if len(x) != before.shape[0]:
                return None
            message = sender.pack(leg, x, here)
            grad = torch.zeros_like(receiver.unpack(leg, message, there))
            back = receiver.pack(BACK[leg], grad, there)
        return tuple(map(TensorForm.of, message)), tuple(map(TensorForm.of, back))

    def keeps_rows(self, blanks: Sequence[TensorForm]) -> bool:
        """Return whether a message has one row for each sample, as far as is known.

        `blanks` are the outputs of the head and of the trunk for a few samples.
        """
        for leg, before in zip(BACK, blanks, strict=True):
            sent = self._stacks[0].sent[leg is Leg.FEATURES]
            x = before._replace(shape=(before.shape[0], *sent))
            forms = self.compute(leg, x, before)
            mixed = any(leg in config.superposes for config in self._configs[leg])
            if mixed or forms is None or forms[0].shape[0] != before.shape[0]:
                return False
        return True


def packs(method: Method) -> bool:
    """Return whether a method has a wire format of its own."""
    return type(method).pack is not Method.pack
