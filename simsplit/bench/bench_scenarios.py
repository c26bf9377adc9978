"""Benches use these scenarios and random data, since time does not depend on the content."""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from simsplit.assembly import Assembler, HostRecipe
from simsplit.data import DataInfo, Prepared, Samples
from simsplit.data.client_parts import count_rows
from simsplit.data.samples import IGNORED, Choices, TextInfo, Vocabulary
from simsplit.engine.pool import Places
from simsplit.parties.calls import Enter
from simsplit.parties.seats import SEATS
from simsplit.phases import Phase
from simsplit.plugins import NO_PLUGINS, Plugins
from simsplit.scenario import Scenario, parse
from simsplit.schedules.cohort import Lineup
from simsplit.seeds import rng_for

COLOUR = ("resnet18", "airbench", "resnet20", "mobilenet")
"""Models for colour images of 32 x 32 pixels; all others get grey images of 28 x 28."""
TEXTS = 640
PHASE = Phase("train", rounds=1)


def scenario(
    model: Mapping[str, object] | str,
    batch_size: int,
    clients: Mapping[str, object],
    *,
    plugins: Plugins = NO_PLUGINS,
    **more: Any,  # noqa: ANN401 - a scenario's fields
) -> Scenario:
    """Parse a scenario whose images are made here; `data` and `train` add to these fields."""
    fields = {
        "data": {"source": {"kind": "folder", "path": "random"}, **more.pop("data", {})},
        "model": {"kind": model} if isinstance(model, str) else model,
        "clients": clients,
        "train": {"batch_size": batch_size, **more.pop("train", {})},
    }
    return parse({**fields, **more}, plugins)


def random_images(given: Scenario, total: int) -> Prepared:
    """Make noise with labels, dealt evenly among a scenario's clients."""
    shape = (3, 32, 32) if given.model.kind_name in COLOUR else (1, 28, 28)
    rng, clients = np.random.default_rng(0), given.clients.count
    inputs = torch.from_numpy(rng.integers(0, 256, (total, *shape), dtype=np.uint8))
    samples = Samples(inputs, torch.from_numpy(rng.integers(0, 10, total)))
    parts = [np.arange(client, total, clients) for client in range(clients)]
    mean, std = (0.5,) * shape[0], (0.25,) * shape[0]
    held = (samples, None, None, samples.take(np.arange(10)), parts, mean, std)
    return Prepared("random", DataInfo(shape, 10), *held, class_names=tuple("0123456789"))


def random_texts(given: Scenario, length: int, count: int = TEXTS) -> Prepared:
    """Make random texts of one length, to be classified or continued as the model does."""
    reader, rng = given.text_reader(), rng_for(0, "bench", "texts")
    ids = torch.randint(reader.size, (count, length), generator=rng)
    whole, none = torch.full((count,), length), torch.zeros(count, dtype=torch.int64)
    if reader.classifies:
        labels = torch.full_like(ids, IGNORED)
        labels[:, -1] = torch.randint(2, (count,), generator=rng)
        samples = Samples(ids, labels, TextInfo(whole, whole, labels[:, -1]))
        return Prepared("random", DataInfo((length,), 2, texts=True), **_give_all_to_one(samples))
    labels = ids.roll(-1, 1)
    labels[:, -1] = IGNORED
    samples = Samples(ids, labels, TextInfo(whole, none, none))
    vocabulary = Vocabulary(reader.size, reader.pad, reader.special, Choices(0, ()))
    info, held = DataInfo((length,), 1, texts=True), _give_all_to_one(samples)
    return Prepared("random", info, **held, support=samples, vocabulary=vocabulary)


def _give_all_to_one(samples: Samples) -> dict[str, Any]:
    """Give one client all samples, as fields of `Prepared`."""
    splits = {"train": samples, "auxiliary": samples, "test": samples.take(np.arange(4))}
    parts = [np.arange(len(samples))]
    return {**splits, "validation": None, "parts": parts, "mean": (), "std": ()}


class Rounds:
    """One side of a comparison: the same round over and over."""

    def __init__(
        self,
        given: Scenario,
        data: Prepared,
        steps: int,
        places: Places | None = None,
        *,
        seats: int = SEATS,
    ) -> None:
        """Assemble the scenario.

        Each client takes `steps` steps in a round. `places` hold the clients; without them, clients
        are in this process. Clients beyond `seats` rest, if the scenario allows it.
        """
        cpu = torch.device("cpu")
        pool = None
        if places is not None:
            samples = count_rows(data.parts).tolist()
            pool = places.pool(partial(HostRecipe.of, given, data), samples, cpu)
        assembler = Assembler(given, data, cpu)
        assembler.seats = seats
        self.parts = assembler.assemble(pool)
        self.parts.exchange.announce(self.parts.clients, counted=False)
        self.phase = replace(PHASE, rounds=given.schedule.rounds or PHASE.rounds)
        self.enter()
        self.steps = dict.fromkeys(self.parts.clients, steps)
        self.number = 0

    def seconds(self) -> float:
        """Time the next round."""
        self.number += 1
        self.before()
        lineup = Lineup(self.number, self.phase, 1.0, self.steps)
        started = time.perf_counter()
        with self.parts.exchange.moment.enter_round(self.number, self.phase, lineup.clients):
            self.parts.course.run(lineup, lambda done, total: None)
        self.after()
        return time.perf_counter() - started

    def enter(self) -> None:
        """Have all enter the phase."""
        self.parts.server.enter(self.phase, 1.0)
        self.parts.pool.ask_all(self.parts.clients, Enter(self.phase, 1.0))

    def before(self) -> None:
        """Prepare a round, untimed."""

    def after(self) -> None:
        """End a round within its time; by default nothing is left to do."""
