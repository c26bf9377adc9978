"""This module divides a training set among clients.

Every partition permutes the rows first, so that it does not depend on their order in the source.
Clients with too few samples then get some of the largest clients': a skewed draw is repaired with
as few moves as possible, never retried until it fits.

The kinds are named and defined as in Flower, and the tests compare ours with Flower's; Dirichlet
draws the same rows. All are implemented here for these reasons: importing Flower's partitioners
imports its plots, in twice the time of torch; its Dirichlet draw retries and then fails where a
client gets too few samples; IID and the size-skewed ones take rows in the order of the source; the
size-skewed ones fail if a client's share rounds to 0 (1,000 clients on 60,000 samples, for the
exponential one already 10 on 1,437), and exp overflows at 710 clients; pathological leaves classes
without a client, and shards leave the remainder of the division, so that samples would be lost.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from simsplit.config import map_kinds
from simsplit.data.client_parts import draw_parts
from simsplit.data.dealing import Dealing
from simsplit.data.portions import ByColumns, ByParts
from simsplit.errors import ScenarioError, format_list
from simsplit.seeds import numpy_rng_for


class Iid(Dealing):
    """Every client gets the same number of samples, drawn at random."""

    kind: Literal["iid"] = "iid"

    def draw(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        return np.array_split(np.arange(len(labels)), num_clients)


class Dirichlet(Dealing):
    """Each class is divided among clients in proportions drawn from a Dirichlet distribution."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(default=0.5, gt=0)
    """Concentration: 0.1 gives a client few classes, 1e7 nearly equal shares, .inf equal shares."""
    min_samples: int = Field(default=2, ge=1)
    """Smallest number of samples of a client; batch normalisation needs more than one."""

    def draw(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        """Draw as Flower does; an infinite `alpha` deals each class to the clients in turn."""
        if np.isinf(self.alpha):
            by_class = np.argsort(labels, kind="stable")
            return [by_class[client::num_clients] for client in range(num_clients)]
        return _draw_proportions(labels, num_clients, self.alpha, seed)

    def get_fewest(self) -> int:
        return self.min_samples

    def check(self, labels: np.ndarray, num_clients: int) -> None:
        super().check(labels, num_clients)
        most = len(labels) // num_clients
        if self.min_samples > most:
            raise ScenarioError(
                "data.partition.min_samples",
                f"{num_clients} clients can have at most {most} of {len(labels)} training samples "
                f"each, got {self.min_samples}",
            )


class Pathological(Dealing):
    """Every client has a fixed number of classes; a class is divided evenly among its clients."""

    kind: Literal["pathological"] = "pathological"
    classes_per_client: int = Field(default=2, ge=1)
    """Number of classes of a client; each class is divided among about equally many clients."""

    def draw(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        classes = np.unique(labels)
        hands = _deal_classes(len(classes), self.classes_per_client, num_clients, seed)
        parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
        for number, label in enumerate(classes):
            holders = [client for client, hand in enumerate(hands) if number in hand]
            shares = np.array_split(np.flatnonzero(labels == label), len(holders))
            for client, share in zip(holders, shares, strict=True):
                parts[client].append(share)
        return [np.concatenate(shares) for shares in parts]

    def check(self, labels: np.ndarray, num_clients: int) -> None:
        super().check(labels, num_clients)
        classes = len(np.unique(labels))
        fewest = -(-classes // num_clients)
        if not fewest <= self.classes_per_client <= classes:
            raise ScenarioError(
                "data.partition.classes_per_client",
                f"must be {fewest} to {classes}, so that {num_clients} clients hold all "
                f"{classes} classes between them, got {self.classes_per_client}",
            )


class Shards(Dealing):
    """Samples sorted by class are cut into equal shards; every client gets as many of them."""

    kind: Literal["shards"] = "shards"
    shards_per_client: int = Field(default=2, ge=1)
    """Number of shards of a client; a shard has one class, or two or three at a class boundary."""

    def draw(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        """Cut the rows, sorted by class, into shards, and deal these at random."""
        by_class = np.argsort(labels, kind="stable")
        shards = np.array_split(by_class, num_clients * self.shards_per_client)
        dealt = numpy_rng_for(seed, "shards").permutation(len(shards))
        return [
            np.concatenate([shards[number] for number in hand])
            for hand in np.split(dealt, num_clients)
        ]

    def check(self, labels: np.ndarray, num_clients: int) -> None:
        super().check(labels, num_clients)
        most = len(labels) // num_clients
        if self.shards_per_client > most:
            raise ScenarioError(
                "data.partition.shards_per_client",
                f"{len(labels)} training samples make at most {most} shards for each of "
                f"{num_clients} clients, got {self.shards_per_client}",
            )


class MainLabel(Dealing):
    """All clients have equally many samples, most of them of one main class (as in SafeSplit)."""

    kind: Literal["main_label"] = "main_label"
    rate: float = Field(default=0.8, ge=0, le=1)
    """Share of a client's samples that are of its main class, if the class has enough; the others
    are drawn at random from what is left."""

    def draw(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        """Deal each client rows of its main class, then fill it up with the rest."""
        del seed  # the rows are shuffled already
        sizes = np.full(num_clients, len(labels) // num_clients)
        sizes[: len(labels) % num_clients] += 1
        classes = np.unique(labels)
        parts: list[np.ndarray] = [np.empty(0, dtype=np.int64)] * num_clients
        left = np.ones(len(labels), dtype=bool)
        for number, label in enumerate(classes):
            mains = np.arange(number, num_clients, len(classes))
            rows = np.flatnonzero(labels == label)
            # clients with the same main class must share its rows
            most = len(rows) // max(1, len(mains))
            for place, client in enumerate(mains):
                taken = min(round(self.rate * sizes[client]), most)
                parts[client] = rows[place * most : place * most + taken]
                left[parts[client]] = False
        bounds = np.cumsum(sizes - [len(part) for part in parts])[:-1]
        rests = np.split(np.flatnonzero(left), bounds)
        return [np.concatenate(pair) for pair in zip(parts, rests, strict=True)]


class Linear(Dealing):
    """Random samples; client i gets i + 1 times as many as client 0."""

    kind: Literal["linear"] = "linear"

    def draw(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        return _cut_by_weight(len(labels), np.arange(1, num_clients + 1, dtype=float))


class Exponential(Dealing):
    """Random samples; each client gets e times as many as the one before."""

    kind: Literal["exponential"] = "exponential"

    def draw(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        # exponents count down from 0 for the largest client, so exp cannot overflow
        return _cut_by_weight(len(labels), np.exp(np.arange(1 - num_clients, 1, dtype=float)))


class Natural(Dealing):
    """The clients that the data name: parts passed from Python, or a table's `client` column."""

    kind: Literal["natural"] = "natural"

    def draw(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        del seed  # `labels` are the owners' numbers here: nothing is drawn
        return [np.flatnonzero(labels == owner) for owner in range(num_clients)]

    def check(self, labels: np.ndarray, num_clients: int) -> None:
        super().check(labels, num_clients)
        if (owners := int(labels.max()) + 1) != num_clients:
            raise ScenarioError(
                "clients.count",
                f"the data have {owners} clients, got {num_clients}; use clients.count: {owners}",
            )
        if missing := np.flatnonzero(np.bincount(labels, minlength=num_clients) == 0).tolist():
            raise ScenarioError(
                "data.partition",
                f"client {format_list(missing)} of the data has no training sample, because all of "
                "its rows were held out (data.train_samples, validation, auxiliary); keep more, "
                "or leave that client out of the data",
            )


class Drawn(Dealing):
    """Each client draws samples of its own from all of them, so that two clients may hold the same.

    There may be any number of clients, and a client's samples do not depend on the others.
    """

    kind: Literal["drawn"] = "drawn"
    samples: int = Field(default=32, ge=1)
    """Number of samples of each client; a client holds a sample once, unless `alpha` asks for more
    samples of a class than there are."""
    alpha: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Concentration of the Dirichlet distribution from which each client draws its shares of the
    classes, around those of the data: 0.1 gives a client few classes. null: all samples are equally
    likely."""

    def deal(self, labels: np.ndarray, num_clients: int, seed: int) -> Sequence[np.ndarray]:
        self.check(labels, num_clients)
        return draw_parts(labels, num_clients, self.samples, self.alpha, seed)

    def draw(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        return [*self.deal(labels, num_clients, seed)]

    def check(self, labels: np.ndarray, num_clients: int) -> None:
        if self.alpha is None and self.samples > len(labels):
            raise ScenarioError(
                "data.partition.samples",
                f"must be at most the {len(labels)} training samples there are, got {self.samples}",
            )


Partition = Annotated[
    Iid
    | Dirichlet
    | Pathological
    | Shards
    | MainLabel
    | Linear
    | Exponential
    | Natural
    | Drawn
    | ByColumns
    | ByParts,
    Field(discriminator="kind"),
]
PARTITIONS: dict[str, type[Dealing]] = map_kinds(Partition)


def _draw_proportions(
    labels: np.ndarray, num_clients: int, alpha: float, seed: int
) -> list[np.ndarray]:
    """Draw as Flower's DirichletPartitioner does, without its minimum and its retries."""
    rng = np.random.default_rng(seed)
    parts: list[list[int]] = [[] for _ in range(num_clients)]
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        ends = np.cumsum(rng.dirichlet(np.full(num_clients, alpha))) * len(rows)
        for part, share in zip(parts, np.split(rows, ends.astype(int)[:-1]), strict=True):
            part.extend(share.tolist())
    for part in parts:
        rng.shuffle(part)
    return [np.array(part, dtype=np.int64) for part in parts]


def _deal_classes(classes: int, per_client: int, num_clients: int, seed: int) -> list[list[int]]:
    """Deal each client distinct classes, from shuffled decks of all classes used up in turn."""
    rng = numpy_rng_for(seed, "classes")
    deck: list[int] = []
    hands: list[list[int]] = []
    for _ in range(num_clients):
        hand: list[int] = []
        while len(hand) < per_client:
            fresh = next((card for card in deck if card not in hand), None)
            if fresh is None:
                deck += rng.permutation(classes).tolist()
                continue
            deck.remove(fresh)
            hand.append(fresh)
        hands.append(hand)
    return hands


def _cut_by_weight(count: int, weights: np.ndarray) -> list[np.ndarray]:
    """Cut `count` rows in proportion to `weights`; as in Flower, the last part gets the rest."""
    sizes = (weights / weights.sum() * count).astype(np.int64)
    return np.split(np.arange(count), np.cumsum(sizes)[:-1])
