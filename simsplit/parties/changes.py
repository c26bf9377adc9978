"""Weights handed over as changes in few bits: their differences from the last broadcast.

Both ends hold the weights of the last broadcast. Each end sends its present weights minus these,
each value on one of 2**bits even levels over its row's range, rounded at random without bias. The
averaging side computes its next change from the weights that clients have read, not from the exact
ones, so rounding errors do not add up over rounds.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from simsplit.errors import ProtocolError
from simsplit.methods.bits import dequantise_even, pack_bits, quantise_even, unpack_bits
from simsplit.packets import Packet, TensorForm
from simsplit.seeds import Scope, rng_for
from simsplit.states import select_below

CODES, RANGES, SINCE = "codes", "ranges", "since"
"""Names of the tensors that stand for all floating-point weights (codes, and ranges by row), and of
the round whose broadcast they are changes of.
"""


class Changes:
    """One end of hand-overs in few bits, which encodes its weights and reads the other end's."""

    def __init__(self, bits: int, seed: int, weights: Mapping[str, Tensor]) -> None:
        """Begin with `weights`, which both ends hold."""
        self.bits, self.seed = bits, seed
        self.held = {name: tensor.detach().clone() for name, tensor in weights.items()}
        """The weights that both ends hold."""
        self.since = torch.tensor(0)
        """The round of the broadcast that brought them."""
        self._rows = {
            # A range (64 bits) for each value of a vector would outweigh the value itself.
            name: (len(tensor) if tensor.ndim > 1 else 1, tensor.numel())
            for name, tensor in self.held.items()
            if tensor.is_floating_point() and tensor.numel()
        }

    def hold(self, weights: Mapping[str, Tensor], since: int) -> None:
        """Hold these weights, as both ends do from a round's broadcast on."""
        self.since = torch.tensor(since)
        self.held = {  # new tensors, since a state that was kept may still refer to the old ones
            name: weights[name].detach().to(old.device, copy=True)
            for name, old in self.held.items()
        }

    def encode(self, packet: Packet, *scope: Scope) -> Packet:
        """Encode a packet of whole weights as a packet of changes."""
        weights = dict(zip(packet.names, packet.tensors, strict=True))
        # Counters are exact integers, and empty tensors have no range: both cross whole.
        whole = {n: t for n, t in weights.items() if n not in self._rows}
        rng = rng_for(self.seed, "changes", *scope)
        codes, ranges = [], []
        for name, (rows, _) in self._rows.items():
            change = (weights[name].detach().float() - self.held[name].float()).reshape(rows, -1)
            # Drawn on the CPU, so that a device does not change what crosses.
            noise = torch.rand(change.shape, generator=rng).to(change.device)
            code, its_range = quantise_even(change, self.bits, noise)
            codes.append(code.flatten())
            ranges.append(its_range)
        packed = pack_bits(torch.cat(codes)[None], self.bits)[0]
        return packet.with_names(
            (CODES, RANGES, SINCE, *whole),
            (packed, torch.cat(ranges), self.since, *whole.values()),
        )

    def read(self, packet: Packet) -> dict[str, Tensor]:
        """Return the weights of a packet, which has them whole or as changes."""
        brought = dict(zip(packet.names, packet.tensors, strict=True))
        if CODES not in brought:
            return brought
        # Any weights can be added to changes, so a wrong base would go unnoticed.
        if int(brought[SINCE]) != int(self.since):
            raise ProtocolError(
                f"changes of the weights of round {int(brought[SINCE])} for one who has those of "
                f"round {int(self.since)}"
            )
        sizes = [size for _, size in self._rows.values()]
        codes = unpack_bits(brought[CODES][None], self.bits, sum(sizes))[0].float().split(sizes)
        ranges = brought[RANGES].split([rows for rows, _ in self._rows.values()])
        for (name, (rows, _)), code, its_range in zip(
            self._rows.items(), codes, ranges, strict=True
        ):
            held = self.held[name]
            change = dequantise_even(code.view(rows, -1), its_range).view(held.shape)
            brought[name] = (held.float() + change).to(held.dtype)
        return {name: brought[name] for name in self.held}

    def fits(self, packet: Packet) -> bool:
        """Tell whether a packet with codes has the tensors that these weights would have."""
        brought = dict(zip(packet.names, packet.tensors, strict=True))
        whole = self.held.keys() - self._rows.keys()
        if len(brought) != len(packet.names):
            return False
        size = sum(size for _, size in self._rows.values())
        rows = sum(rows for rows, _ in self._rows.values())
        wanted = {
            **{name: TensorForm.of(self.held[name]) for name in whole},
            CODES: TensorForm((-(-size * self.bits // 8),), torch.uint8),
            RANGES: TensorForm((rows, 2), torch.float32),
            SINCE: TensorForm((), torch.int64),
        }
        return wanted == {name: TensorForm.of(tensor) for name, tensor in brought.items()}

    def state(self) -> dict[str, Tensor]:
        """Return the weights that both ends hold, and since when."""
        return {
            **{f"held.{name}": tensor for name, tensor in self.held.items()},
            "since": self.since,
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.hold(select_below(state, "held."), int(state["since"]))
