"""Averaging of what several clients trained, by Flower's own strategies.

The strategies are called as they stand, on messages made by hand, with no server loop around them:
so a result is Flower's, while rounds, cohorts and checkpoints stay with the schedule. Flower
computes in numpy, on the CPU. Which strategies there are is in `strategies.py`.
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
from simsplit.packets import ClientId

Update = tuple[Mapping[str, Tensor], int]
"""What a client trained, and on how many samples."""
Memory = dict[str, dict[str, Tensor]]
"""What a strategy remembers from one round to the next: by slot, then by the weight's name."""


class StrategyConfig(Config, ABC):
    """One of Flower's strategies; its options have Flower's names and defaults."""

    flower: ClassVar[str]
    """The strategy's class in flwr.serverapp.strategy."""
    steps: ClassVar[bool] = False
    """Whether it takes a step from the current weights, and so has to know them."""
    doubles: ClassVar[bool] = False
    """Whether it is given double precision."""

    @property
    def needed(self) -> int:
        """The fewest updates of which it makes what it promises."""
        return 1

    @property
    def named(self) -> str:
        """The strategy and its options, as a user may write them."""
        options = self.model_dump()
        fields = {"kind": options["kind"], **options}
        return "{" + ", ".join(f"{name}: {value}" for name, value in fields.items()) + "}"

    def build(
        self, start: Mapping[str, Tensor], where: str, buffers: frozenset[str] = frozenset()
    ) -> "Averager":
        """An averager that begins at `start`; `where` names it in errors, `buffers` in `start`."""
        return Averager(self, start, where, buffers)

    def fresh(self) -> Any:  # noqa: ANN401 - Flower is not imported for its types
        """Flower's strategy, which remembers nothing yet."""
        from flwr.serverapp import strategy

        return getattr(strategy, self.flower)(**self.model_dump(exclude={"kind"}))

    def remind(self, strategy: Any, current: Any, memory: Memory) -> None:  # noqa: ANN401
        """Give a strategy that `steps` the current weights (an ArrayRecord) and its memory."""

    def recall(self, strategy: Any, names: Sequence[str]) -> Memory:  # noqa: ANN401
        """What a strategy that `steps` has to be reminded of in the next round."""
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
        self.config, self.where = config, where
        self.weights = {name: _own(tensor) for name, tensor in start.items()}
        # A step beyond the average could make a running variance negative. Robust strategies do
        # judge a client by its buffers too: a poisoned variance does as much harm as a weight, and
        # what is not compared would go in unseen. That a large variance may outweigh parameters in
        # Krum's distances is the lesser evil; the one picked brings buffers that fit its weights.
        spared = buffers if config.steps else frozenset()
        self._names = [
            name
            for name, tensor in start.items()
            if tensor.is_floating_point() and name not in spared
        ]
        self._memory: Memory = {}

    def average(self, round_number: int, updates: Mapping[ClientId, Update]) -> None:
        """Set `weights` to the clients' average; with no samples trained on, leave them alone.

        Integer tensors, and the buffers that a strategy spares, take the mean weighted by samples,
        rounded where they are integers.
        """
        heard = [updates[client] for client in sorted(updates) if updates[client][1] > 0]
        if not heard:
            return
        self._check(round_number, heard)
        averaged: dict[str, Tensor] = {}
        if self._names:
            with _contained():
                averaged = self._by_strategy(round_number, heard)
        for name in self.weights.keys() - averaged.keys():
            averaged[name] = _mean([(weights[name], samples) for weights, samples in heard])
        self.weights = {
            name: averaged[name].reshape(old.shape).to(old.device, old.dtype).contiguous()
            for name, old in self.weights.items()
        }

    def state(self) -> dict[str, Tensor]:
        """All that the next call depends on, as copies."""
        slots = {"weights": self.weights, **self._memory}
        return {
            f"{slot}.{name}": _own(tensor)
            for slot, tensors in slots.items()
            for name, tensor in tensors.items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over a state that `state` gave; its order does not matter."""
        missing = {f"weights.{name}" for name in self.weights} - state.keys()
        if missing:
            raise ProtocolError(f"{self.where}: a state lacks {', '.join(sorted(missing))}")
        self.weights = {
            name: _own(state[f"weights.{name}"]).to(old.device)
            for name, old in self.weights.items()
        }
        slots = sorted({name.split(".", 1)[0] for name in state} - {"weights"})
        self._memory = {
            slot: {name: _own(state[f"{slot}.{name}"]).cpu() for name in self._names}
            for slot in slots
        }

    def _check(self, round_number: int, heard: Sequence[Update]) -> None:
        """Refuse what Flower would crash on, or make nonsense of without a word."""
        shapes = {name: tensor.shape for name, tensor in self.weights.items()}
        for weights, _ in heard:
            if shapes != {name: tensor.shape for name, tensor in weights.items()}:
                raise ProtocolError(f"{self.where}: an update has other names or shapes of weights")
        if len(heard) < self.config.needed:
            some = "1 update" if len(heard) == 1 else f"{len(heard)} updates"
            raise RunFailedError(
                f"round {round_number}: {self.where}: {some} arrived, and "
                f"{self.config.named} needs at least {self.config.needed}"
            )

    def _by_strategy(self, round_number: int, heard: Sequence[Update]) -> dict[str, Tensor]:
        # A strategy made anew each round cannot remember anything that `state` does not know.
        strategy = self.config.fresh()
        if self.config.steps:
            self.config.remind(strategy, self._record(self.weights), self._memory)
        replies = [_message(self._record(weights), samples) for weights, samples in heard]
        averaged, _ = strategy.aggregate_train(round_number, replies)
        if self.config.steps:
            self._memory = self.config.recall(strategy, self._names)
        return dict(averaged.to_torch_state_dict())

    def _record(self, weights: Mapping[str, Tensor]) -> Any:  # noqa: ANN401
        """What the strategy sees, as numpy can hold it: no bf16, and nothing without dimensions."""
        from flwr.app import ArrayRecord

        least = torch.float64 if self.config.doubles else torch.float32
        tensors = {name: torch.atleast_1d(weights[name].detach()) for name in self._names}
        return ArrayRecord(
            {name: t.to("cpu", torch.promote_types(t.dtype, least)) for name, t in tensors.items()}
        )


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _mean(parts: Sequence[tuple[Tensor, int]]) -> Tensor:
    """The mean weighted by samples, in double precision; rounded if it is to be integers."""
    total = sum(samples for _, samples in parts)
    first, *others = [tensor.detach().double() * (samples / total) for tensor, samples in parts]
    mean = sum(others, start=first)
    return mean if parts[0][0].is_floating_point() else mean.round()


def _message(arrays: Any, samples: int) -> Any:  # noqa: ANN401
    """A client's reply as Flower's server would get it."""
    from flwr.app import Message, MessageType, Metadata, MetricRecord, RecordDict

    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": samples})})
    metadata = Metadata(  # spelt out, as a Message otherwise asks which of Flower's runs this is
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
    make: Any = Message
    return make(metadata=metadata, content=content)


@contextmanager
def _contained() -> Iterator[None]:
    """Keep to itself what Flower logs, what numpy warns of in diverged weights, and their garbage.

    Flower's records hold each other in cycles, and with them a copy of every client's weights; so
    garbage is collected at the end (Bulyan does after each client). What is older is frozen until
    then, as searching all that torch has allocated takes a tenth of a second each time.
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
