"""Averaging of the weights of several clients, by Flower's own strategies.

The strategies are called unchanged, on messages made here, without Flower's server loop. So a
result is Flower's, while rounds, cohorts and checkpoints stay with the schedule. Flower computes in
numpy, on the CPU. `strategies.py` lists the strategies.
"""

import gc
import logging
from abc import ABC
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from simsplit.config import Config
from simsplit.errors import ProtocolError, RunFailedError
from simsplit.legs import ClientId

Update = tuple[Mapping[str, Tensor], int]
"""A client's weights, and the number of samples that it trained on."""
Memory = dict[str, dict[str, Tensor]]
"""What a strategy remembers between rounds: tensors by slot, then by the weight's name."""


class StrategyConfig(Config, ABC):
    """One of Flower's strategies; its options have Flower's names and defaults."""

    flower: ClassVar[str]
    """The strategy's class in flwr.serverapp.strategy."""
    steps: ClassVar[bool] = False
    """Whether it steps from the current weights, and so must be given them."""
    doubles: ClassVar[bool] = False
    """Whether it computes in double precision."""

    @property
    def needed(self) -> int:
        """The fewest updates that the strategy can average."""
        return 1

    @property
    def yaml(self) -> str:
        """The strategy and its options, as YAML."""
        options = self.model_dump()
        fields = {"kind": options["kind"], **options}
        return "{" + ", ".join(f"{name}: {value}" for name, value in fields.items()) + "}"

    def make_strategy(self) -> Any:  # noqa: ANN401 - Flower is not imported for its types
        """Make Flower's strategy, which remembers nothing yet; plugins override it."""
        # Imported here, since Flower is slow to import and only averaging needs it.
        from flwr.serverapp import strategy

        return getattr(strategy, self.flower)(**self.model_dump(exclude={"kind"}))

    def remind(self, strategy: Any, current: Any, memory: Memory) -> None:  # noqa: ANN401
        """Give a strategy that `steps` the current weights (an ArrayRecord) and its memory."""

    def recall(self, strategy: Any, names: Sequence[str]) -> Memory:  # noqa: ANN401
        """Return what a strategy that `steps` must be given again in the next round."""
        return {}


class Averager:
    """The averaged weights, and the strategy (with its memory) that averages them."""

    def __init__(
        self,
        config: StrategyConfig,
        start: Mapping[str, Tensor],
        where: str,
        buffers: frozenset[str] = frozenset(),
    ) -> None:
        """Begin at the weights `start`.

        `where` names the average in errors; `buffers` are the names of buffers among the weights.
        """
        self.config, self.where = config, where
        self.weights = {name: _copy(tensor) for name, tensor in start.items()}
        # A step beyond the average could make a running variance negative, so strategies that step
        # spare buffers. Robust strategies compare clients by their buffers too: a poisoned variance
        # does as much harm as a poisoned weight. A large variance may then outweigh parameters in
        # Krum's distances, which is the lesser evil.
        spared = buffers if config.steps else frozenset()
        self._names = [
            name
            for name, tensor in start.items()
            if tensor.is_floating_point() and name not in spared
        ]
        self._memory: Memory = {}

    def average(self, round_number: int, updates: Mapping[ClientId, Update]) -> None:
        """Set `weights` to the clients' average; do nothing if nobody trained on a sample.

        Integer tensors, and the buffers that a strategy spares, get the mean weighted by samples,
        which is rounded for integers.
        """
        # Sorted, since a float sum depends on its order, and a round's order may be random.
        trained = [updates[client] for client in sorted(updates) if updates[client][1] > 0]
        if not trained:
            return
        self._check(round_number, trained)
        averaged: dict[str, Tensor] = {}
        if self._names:
            with _hush_flower():
                averaged = self._apply_strategy(round_number, trained)
        for name in self.weights.keys() - averaged.keys():
            averaged[name] = _mean([(weights[name], samples) for weights, samples in trained])
        self.weights = {
            name: averaged[name].reshape(old.shape).to(old.device, old.dtype).contiguous()
            for name, old in self.weights.items()
        }

    def state(self) -> dict[str, Tensor]:
        """Return everything that the next call depends on, as copies."""
        slots = {"weights": self.weights, **self._memory}
        return {
            f"{slot}.{name}": _copy(tensor)
            for slot, tensors in slots.items()
            for name, tensor in tensors.items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state that `state` returned; its order does not matter."""
        missing = {f"weights.{name}" for name in self.weights} - state.keys()
        if missing:
            raise ProtocolError(f"{self.where}: a state lacks {', '.join(sorted(missing))}")
        self.weights = {
            name: _copy(state[f"weights.{name}"]).to(old.device)
            for name, old in self.weights.items()
        }
        slots = sorted({name.split(".", 1)[0] for name in state} - {"weights"})
        self._memory = {
            # FedAvgM's momentum is a list, so the names must be in the strategy's order.
            slot: {name: _copy(state[f"{slot}.{name}"]).cpu() for name in self._names}
            for slot in slots
        }

    def _check(self, round_number: int, updates: Sequence[Update]) -> None:
        """Raise for updates on which Flower would crash, or silently compute nonsense."""
        shapes = {name: tensor.shape for name, tensor in self.weights.items()}
        for weights, _ in updates:
            if shapes != {name: tensor.shape for name, tensor in weights.items()}:
                raise ProtocolError(f"{self.where}: an update has other names or shapes of weights")
        if len(updates) < self.config.needed:
            some = "1 update" if len(updates) == 1 else f"{len(updates)} updates"
            raise RunFailedError(
                f"round {round_number}: {self.where}: {some} arrived, and "
                f"{self.config.yaml} needs at least {self.config.needed}"
            )

    def _apply_strategy(self, round_number: int, updates: Sequence[Update]) -> dict[str, Tensor]:
        # A strategy that is made anew each round cannot remember what `state` does not have.
        strategy = self.config.make_strategy()
        if self.config.steps:
            self.config.remind(strategy, self._record(self.weights), self._memory)
        replies = [_make_message(self._record(weights), samples) for weights, samples in updates]
        averaged, _ = strategy.aggregate_train(round_number, replies)
        if self.config.steps:
            self._memory = self.config.recall(strategy, self._names)
        return dict(averaged.to_torch_state_dict())

    def _record(self, weights: Mapping[str, Tensor]) -> Any:  # noqa: ANN401
        """Build the record that the strategy gets; numpy has no bf16, Flower no scalars."""
        from flwr.app import ArrayRecord

        least = torch.float64 if self.config.doubles else torch.float32
        tensors = {name: torch.atleast_1d(weights[name].detach()) for name in self._names}
        return ArrayRecord(
            {name: t.to("cpu", torch.promote_types(t.dtype, least)) for name, t in tensors.items()}
        )


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _mean(parts: Sequence[tuple[Tensor, int]]) -> Tensor:
    """Return the mean weighted by samples, in double precision; round it for integers."""
    total = sum(samples for _, samples in parts)
    first, *others = [tensor.detach().double() * (samples / total) for tensor, samples in parts]
    mean = sum(others, start=first)
    return mean if parts[0][0].is_floating_point() else mean.round()


def _make_message(arrays: Any, samples: int) -> Any:  # noqa: ANN401
    """Make a client's reply as Flower's server would get it."""
    from flwr.app import Message, MessageType, Metadata, MetricRecord, RecordDict

    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": samples})})
    metadata = (
        Metadata(  # given in full, since a Message would otherwise look for a run of Flower's
            run_id=0,
            message_id="",
            src_node_id=0,
            dst_node_id=0,
            reply_to_message_id="",
            group_id="",
            created_at=0.0,
            ttl=0.0,
            message_type=MessageType.TRAIN,
        )
    )
    make: Any = Message
    return make(metadata=metadata, content=content)


@contextmanager
def _hush_flower() -> Iterator[None]:
    """Open a context that hushes Flower's log and numpy's warnings, and then collects garbage.

    Flower's records refer to each other in cycles, and hold a copy of every client's weights; so
    garbage is collected at the end (Bulyan itself collects after each client). Older objects are
    frozen until then, since searching all that torch has allocated takes a tenth of a second.
    """
    logger = logging.getLogger("flwr")
    before, logger.disabled = logger.disabled, True
    ours = gc.get_freeze_count() == 0
    if ours:
        gc.freeze()
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        gc.collect()
        if ours:
            gc.unfreeze()
        logger.disabled = before
