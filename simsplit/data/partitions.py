"""Who holds which samples: the ways of dealing a training set out to clients.

Every partition deals a permutation of the rows, so that no order of the source survives in it, and
then tops up the clients left short by moving as few samples as can be: a skewed draw is repaired,
never retried until luck serves.

Flower's partitioners define these words, and the tests hold ours to them. Only Dirichlet draws
through Flower itself. The others are a few lines here because theirs cannot be used as they are:
IID and the size skews take rows in the order of the source; the size skews refuse to run where any
client's share rounds to nothing (1,000 clients on 60,000 samples, already 10 on 1,437 for the
exponential one) and exp overflows at 710 clients; pathological leaves classes without a client and
shards the remainder of the division, so that samples would be lost.
"""

import warnings
from abc import ABC, abstractmethod
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from simsplit.config import Config
from simsplit.errors import ScenarioError
from simsplit.seeds import numpy_rng_for, seed_for


class Dealing(Config, ABC):
    """A partition: `deal` is what callers use; a kind defines `draw`, and `fewest` or `check`."""

    def deal(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        """Each client's rows of `labels` (sorted int64): every row with exactly one client."""
        self.check(labels, num_clients)
        order = numpy_rng_for(seed, "partition").permutation(len(labels))
        drawn = self.draw(labels[order], num_clients, seed_for(seed, "partition", "draw"))
        parts = [np.sort(order[part]) for part in topped_up(drawn, self.fewest())]
        dealt = np.sort(np.concatenate(parts))
        assert np.array_equal(dealt, np.arange(len(labels))), "a row is lost or dealt twice"
        return parts

    @abstractmethod
    def draw(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        """Each client's rows of the shuffled `labels`; a client may come out short, or empty."""

    def fewest(self) -> int:
        """The samples that every client must end with."""
        return 1

    def check(self, labels: np.ndarray, num_clients: int) -> None:
        """Blame the field that asks for what this many labels cannot give."""
        if not 1 <= num_clients <= len(labels):
            raise ScenarioError(
                "clients.count",
                f"must be 1 to the {len(labels)} training samples there are, got {num_clients}",
            )


class Iid(Dealing):
    """Every client gets the same number of samples, drawn at random."""

    kind: Literal["iid"] = "iid"

    def draw(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        """Equal runs of the shuffled rows."""
        return np.array_split(np.arange(len(labels)), num_clients)


class Dirichlet(Dealing):
    """Each class is divided among clients in proportions drawn from a Dirichlet distribution."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(default=0.5, gt=0)
    """Concentration: 0.1 gives a client few classes, 1e7 nearly equal shares, .inf equal ones."""
    min_samples: int = Field(default=2, ge=1)
    """Smallest number of samples per client; batch normalisation needs more than one."""

    def draw(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        """By Flower; without end, class by class in turn."""
        if np.isinf(self.alpha):
            by_class = np.argsort(labels, kind="stable")
            return [by_class[client::num_clients] for client in range(num_clients)]
        return _drawn_by_flower(labels, num_clients, self.alpha, seed)

    def fewest(self) -> int:
        """As many as the scenario asks for."""
        return self.min_samples

    def check(self, labels: np.ndarray, num_clients: int) -> None:
        """Nor may the clients need more samples than there are."""
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
    """How many classes a client has; each class has about as many clients."""

    def draw(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        """A class in equal parts among the clients that were dealt it."""
        classes = np.unique(labels)
        hands = _hands(len(classes), self.classes_per_client, num_clients, seed)
        parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
        for number, label in enumerate(classes):
            holders = [client for client, hand in enumerate(hands) if number in hand]
            shares = np.array_split(np.flatnonzero(labels == label), len(holders))
            for client, share in zip(holders, shares, strict=True):
                parts[client].append(share)
        return [np.concatenate(shares) for shares in parts]

    def check(self, labels: np.ndarray, num_clients: int) -> None:
        """Hands must cover all classes, and hold none twice."""
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
    """How many shards a client gets; a shard has one class, or two or three at boundaries."""

    def draw(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        """Shards of the rows sorted by class, shuffled and dealt."""
        by_class = np.argsort(labels, kind="stable")
        shards = np.array_split(by_class, num_clients * self.shards_per_client)
        dealt = numpy_rng_for(seed, "shards").permutation(len(shards))
        return [
            np.concatenate([shards[number] for number in hand])
            for hand in np.split(dealt, num_clients)
        ]

    def check(self, labels: np.ndarray, num_clients: int) -> None:
        """A shard must hold a row."""
        super().check(labels, num_clients)
        most = len(labels) // num_clients
        if self.shards_per_client > most:
            raise ScenarioError(
                "data.partition.shards_per_client",
                f"{len(labels)} training samples make at most {most} shards for each of "
                f"{num_clients} clients, got {self.shards_per_client}",
            )


class MainLabel(Dealing):
    """Every client has as many samples, most of them of one main class (as in SafeSplit)."""

    kind: Literal["main_label"] = "main_label"
    rate: float = Field(default=0.8, ge=0, le=1)
    """Share of a client's samples from its main class, as far as there are enough; the others are
    drawn at random."""

    def draw(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        """Main classes first, then the rest as it comes."""
        del seed  # rows come shuffled
        sizes = np.full(num_clients, len(labels) // num_clients)
        sizes[: len(labels) % num_clients] += 1
        classes = np.unique(labels)
        parts: list[np.ndarray] = [np.empty(0, dtype=np.int64)] * num_clients
        left = np.ones(len(labels), dtype=bool)
        for number, label in enumerate(classes):
            mains = np.arange(number, num_clients, len(classes))
            rows = np.flatnonzero(labels == label)
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
        """In proportion to 1, 2, 3, ..."""
        return _sized(len(labels), np.arange(1, num_clients + 1, dtype=float))


class Exponential(Dealing):
    """Random samples; each client gets e times as many as the one before."""

    kind: Literal["exponential"] = "exponential"

    def draw(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        """In proportion to powers of e."""
        # counted down from the largest client, whose exp(0) cannot overflow
        return _sized(len(labels), np.exp(np.arange(1 - num_clients, 1, dtype=float)))


class Natural(Dealing):
    """As the data say: a client's part as passed from Python, or a table's `client` column."""

    kind: Literal["natural"] = "natural"

    def draw(self, labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
        """By the owners' numbers, which stand in place of labels."""
        del seed
        return [np.flatnonzero(labels == owner) for owner in range(num_clients)]

    def check(self, labels: np.ndarray, num_clients: int) -> None:
        """One client for each owner."""
        super().check(labels, num_clients)
        if (owners := int(labels.max()) + 1) != num_clients:
            raise ScenarioError(
                "clients.count",
                f"the data are of {owners} clients, got {num_clients}; use clients.count: {owners}",
            )


Partition = Annotated[
    Iid | Dirichlet | Pathological | Shards | MainLabel | Linear | Exponential | Natural,
    Field(discriminator="kind"),
]

PARTITIONS: dict[str, type[Dealing]] = {
    "iid": Iid,
    "dirichlet": Dirichlet,
    "pathological": Pathological,
    "shards": Shards,
    "main_label": MainLabel,
    "linear": Linear,
    "exponential": Exponential,
    "natural": Natural,
}


def topped_up(parts: list[np.ndarray], fewest: int) -> list[np.ndarray]:
    """`parts` with the fewest moves after which none is shorter than `fewest`.

    Each missing sample comes off the end of whichever part is the largest at that moment.
    """
    sizes = np.array([len(part) for part in parts])
    gained: dict[int, list[int]] = {int(short): [] for short in np.flatnonzero(sizes < fewest)}
    for short, gains in gained.items():
        while sizes[short] < fewest:
            largest = int(sizes.argmax())
            sizes[largest] -= 1
            sizes[short] += 1
            gains.append(int(parts[largest][sizes[largest]]))
    return [
        np.concatenate([part, np.array(gained[client], dtype=np.int64)])
        if client in gained
        else part[: sizes[client]]
        for client, part in enumerate(parts)
    ]


def _drawn_by_flower(
    labels: np.ndarray, num_clients: int, alpha: float, seed: int
) -> list[np.ndarray]:
    """Flower's own draw, with its minimum off: it would retry ten times and then raise."""
    with warnings.catch_warnings():  # in a notebook, of a progress bar that nobody asked for
        warnings.filterwarnings("ignore", message="IProgress not found")
        import datasets
        from flwr_datasets.partitioner import DirichletPartitioner

    partitioner = DirichletPartitioner(
        num_partitions=num_clients,
        partition_by="label",
        alpha=alpha,
        min_partition_size=0,
        self_balancing=False,
        seed=seed,
    )
    # the column of rows tells which samples a partition selected
    columns = {"label": labels, "row": np.arange(len(labels))}
    partitioner.dataset = datasets.Dataset.from_dict(columns)
    return [
        np.array(partitioner.load_partition(client)["row"][:], dtype=np.int64)
        for client in range(num_clients)
    ]


def _hands(classes: int, per_client: int, num_clients: int, seed: int) -> list[list[int]]:
    """Distinct classes for every client, off decks of all classes shuffled one after another."""
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


def _sized(count: int, weights: np.ndarray) -> list[np.ndarray]:
    """`count` rows cut in proportion to `weights`; as in Flower, the last gets what rounds off."""
    sizes = (weights / weights.sum() * count).astype(np.int64)
    return np.split(np.arange(count), np.cumsum(sizes)[:-1])
