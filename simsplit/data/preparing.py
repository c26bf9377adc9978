"""This module prepares a run's data: it loads, limits, holds out and divides them.

No sample is in two of the parts train, validation, auxiliary and test.
"""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from simsplit.client_names import NO_NAMES, ClientNames
from simsplit.data.batches import Augmentation, Batcher, Batches, measure_channels
from simsplit.data.data_config import DataConfig, EvenConfig, Normalisation
from simsplit.data.image_tables import TableConfig
from simsplit.data.partitions import Natural, Partition
from simsplit.data.portions import Joint, Portion
from simsplit.data.samples import Canaries, Choices, DataInfo, DataSet, Samples, Vocabulary
from simsplit.data.sources import Source
from simsplit.data.splits import Limit, draw_stratified
from simsplit.data.tasks import Classification
from simsplit.data.texts import TextBatcher, TextTable
from simsplit.errors import ScenarioError, blame
from simsplit.legs import ClientId
from simsplit.models.tokenizers import Reader
from simsplit.seeds import numpy_rng_for


@dataclass(frozen=True)
class Prepared:
    """Data as a run uses them; `parts` are rows of `train`, one array per client."""

    name: str
    info: DataInfo
    train: Samples
    validation: Samples | None
    auxiliary: Samples | None
    test: Samples
    parts: Sequence[np.ndarray]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    support: Samples | None = None
    """Samples with which clients may mix their private texts; None: there are none."""
    vocabulary: Vocabulary | None = None
    """What is known of the tokenizer; None unless samples are texts."""
    class_names: tuple[str, ...] = ()
    fitted: str | None = None
    """The rows on which scales and categories of a table were fitted; None of other data."""
    columns: tuple[str, ...] = ()
    """The column of the source that each number of a row comes from; empty: they have no names."""
    ids: str = ""
    """A digest of the rows' ids, on which parties must agree; empty: rows have none."""
    warnings: tuple[str, ...] = ()
    """What a user should know of how the data were read, a line each."""
    has_samples: bool = True
    """Whether the samples are in this process. A deployed server knows only their number and
    form."""
    client_names: ClientNames = NO_NAMES
    """The names of the clients, for tables and messages alone."""
    canaries: Canaries | None = None
    """The samples that coins chose, for an audit; None: there are none."""
    portions: tuple[Portion, ...] = ()
    """What each party has of a sample; empty: clients have whole samples."""

    def cut(self, partition: Joint, party: ClientId) -> "Prepared":
        """Return the data with a portion for each party, of which one has the labels."""
        portions = tuple(
            replace(each, has_labels=number == party)
            for number, each in enumerate(partition.cut(self.info, self.columns))
        )
        shapes = tuple(each.shape for each in portions)
        return replace(self, info=replace(self.info, parts=shapes), portions=portions)

    def of_party(self, client: ClientId) -> "Prepared":
        """Return what one party has of the data."""
        take = self.portions[client].take
        return replace(
            self,
            info=self.info.of_party(client),
            train=take(self.train),
            validation=self.validation and take(self.validation),
            auxiliary=self.auxiliary and take(self.auxiliary),
            test=take(self.test),
            portions=(),
        )

    def build_batcher(
        self,
        samples: Samples,
        device: torch.device,
        augment: Sequence[Augmentation] = (),
        *,
        channels_last: bool = False,
    ) -> Batches:
        """Return the batcher that fits these samples, on a device."""
        if samples.texts is not None:
            return TextBatcher(samples, device)
        if not samples.images:
            return Batches(samples, device)
        return Batcher(
            samples,
            mean=self.mean,
            std=self.std,
            augment=augment,
            device=device,
            channels_last=channels_last,
        )

    def to_dict(self) -> dict[str, object]:
        """Return the content of `data.json`: sizes, classes, and what a table was fitted on."""
        splits = {
            "train": self.train,
            "validation": self.validation,
            "auxiliary": self.auxiliary,
            "test": self.test,
        }
        named: dict[str, object] = {}
        if self.client_names:
            named["clients"] = [*self.client_names.names]
        if self.portions:
            named["portions"] = [each.to_dict() for each in self.portions]
        return {
            "name": self.name,
            "sample": list(self.info.shape),
            "samples": {name: len(each) for name, each in splits.items() if each is not None},
            "classes": list(self.class_names),
            "fitted": self.fitted,
            "mean": list(self.mean),
            "std": list(self.std),
            **named,
        }

    def format_holdings(self, clients: Iterable[ClientId] | None = None) -> str:
        """Return a CSV with each client's number of samples per class; `clients`: None for all.

        A deployed server knows no classes: it lists each client's number of samples.
        """
        groups, names = self.train.groups if self.has_samples else None, self.client_names
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["client", *(["name"] if names else []), "class", "samples"])
        for client in range(len(self.parts)) if clients is None else clients:
            part = self.parts[client]
            who = [client, *([names.get(client)] if names else [])]
            if groups is None:
                writer.writerow([*who, "", len(part)])
                continue
            numbers, counts = np.unique(groups[part], return_counts=True)
            writer.writerows([*who, n, c] for n, c in zip(numbers, counts, strict=True))
        return text.getvalue()

    @property
    def nbytes(self) -> int:
        """Bytes of all samples in this process."""
        if not self.has_samples:
            return 0
        splits = (self.train, self.validation, self.auxiliary, self.support, self.test)
        return sum(samples.nbytes for samples in splits if samples is not None)


ReadPublic = Callable[[TextTable, Reader | None], Samples]
"""Reads the texts of a source that are public."""


def prepare(
    config: DataConfig,
    num_clients: int,
    seed: int,
    reader: Reader | None = None,
    *,
    mixes: bool = False,
) -> Prepared:
    """Load, limit, hold out, divide and measure the data, in that order.

    Texts are tokenized by `reader`. If clients mix their texts with others (`mixes`), those texts
    are kept from attackers. Each choice draws from its own random stream, so that asking for more
    auxiliary data does not change the validation part.
    """
    limit = Limit(config.train_samples, config.test_samples, seed, config.classes)
    with blame("source"):
        data = _load(config, limit, reader)
    return divide(config, data, num_clients, seed, reader, mixes=mixes, read_public=_read_public)


def divide(
    config: DataConfig,
    data: DataSet,
    num_clients: int,
    seed: int,
    reader: Reader | None,
    *,
    mixes: bool,
    read_public: ReadPublic,
) -> Prepared:
    """Limit, hold out, divide and measure data that are loaded."""
    limit = Limit(config.train_samples, config.test_samples, seed, config.classes)
    if config.classes is not None:
        data, limit = data.select_classes(config.classes), replace(limit, classes=None)
    train = _apply_limit(data.train, limit, "train")
    # both fractions are of all training samples, so that neither depends on the other
    kept, validation = _hold_out(train, config.validation, len(train), seed, "validation")
    kept, auxiliary = _hold_out(kept, config.auxiliary, len(train), seed, "auxiliary")
    if config.public is not None:
        with blame("public"):
            auxiliary = read_public(config.public, reader)
    support = auxiliary
    if config.support is not None:
        with blame("support"):
            support = read_public(config.support, reader)
    if config.support is None and mixes and auxiliary is not None:
        auxiliary, support = _halve(auxiliary, seed)
    mean, std = _measure_scale(kept, config.normalise)
    return Prepared(
        name=data.name,
        info=replace(data.info, shares=measure_shares(kept, data.info.classes)),
        train=kept,
        validation=validation,
        auxiliary=auxiliary,
        support=support,
        test=_apply_limit(data.test, limit, "test"),
        parts=_divide(config, kept, num_clients, seed),
        mean=mean,
        std=std,
        class_names=data.class_names,
        client_names=_choose_names(config.partition, data),
        fitted=data.fitted,
        columns=data.columns,
        warnings=data.warnings,
        vocabulary=None if reader is None else build_vocabulary(config.source, reader),
        ids=data.ids,
    )


def _divide(
    config: DataConfig, samples: Samples, num_clients: int, seed: int
) -> Sequence[np.ndarray]:
    """Return each client's rows: even clients choose first, the partition divides the rest."""
    groups, left = _choose_groups(config.partition, samples), np.arange(len(samples))
    if config.even is None:
        return config.partition.deal(groups, num_clients, seed)
    own = {}
    _refuse_uneven(config.even, config.partition, len(samples), num_clients)
    for client in sorted(config.even.clients):
        rng = numpy_rng_for(seed, "data", "even", client)
        own[client] = left[draw_stratified(groups[left], config.even.samples, rng)]
        left = np.setdiff1d(left, own[client])
    dealt = iter(config.partition.deal(groups[left], num_clients - len(own), seed))
    return [own[client] if client in own else left[next(dealt)] for client in range(num_clients)]


def _choose_names(partition: Partition, data: DataSet) -> ClientNames:
    """Return the names that the data give to clients, if clients are those that the data name."""
    if isinstance(partition, Joint):
        return ClientNames(partition.names)
    return ClientNames(data.owner_names if isinstance(partition, Natural) else ())


def _refuse_uneven(
    even: EvenConfig, partition: Partition, num_samples: int, num_clients: int
) -> None:
    """Raise ScenarioError if even clients do not exist, or leave too few samples to the others."""
    own, last = set(even.clients), num_clients - 1
    taken = len(own) * even.samples
    if isinstance(partition, Natural):
        raise ScenarioError(
            "data.even", "must be null with a natural partition, which names each sample's client"
        )
    if max(own) > last:
        raise ScenarioError("data.even.clients", f"must be 0 to {last}, got {max(own)}")
    if len(own) == num_clients:
        raise ScenarioError(
            "data.even.clients", "must not name all clients; use partition: iid instead"
        )
    if taken + num_clients - len(own) > num_samples:
        raise ScenarioError(
            "data.even.samples",
            f"takes {taken} of {num_samples} training samples and leaves too few to the others",
        )


def measure_shares(samples: Samples, classes: int) -> tuple[float, ...]:
    """Return the share of each class; empty if the samples' groups are not their classes."""
    counts = np.bincount(samples.groups, minlength=classes)
    known = len(samples) and len(counts) == classes
    return tuple((counts / counts.sum()).tolist()) if known else ()


def _choose_groups(partition: Partition, samples: Samples) -> np.ndarray:
    """Return the numbers by which a partition divides samples: of classes, or of owners."""
    if not isinstance(partition, Natural):
        return samples.groups
    if samples.owners is None:
        raise ScenarioError(
            "data.partition",
            "natural needs data that name each sample's client: a table's `client` column, or a "
            "part for each client passed from Python; use another partition, such as iid",
        )
    return samples.owners


def _load(config: DataConfig, limit: Limit, reader: Reader | None) -> DataSet:
    source = config.source
    if isinstance(source, TextTable):
        assert reader is not None, "a model of images is refused"
        return source.load(reader, limit, config.list_fields())
    return source.load(limit) if isinstance(source, TableConfig) else source.load()


def _halve(public: Samples, seed: int) -> tuple[Samples, Samples]:
    """Split public texts at random into texts that stay public and texts for clients only."""
    if len(public) < 2:
        raise ScenarioError(
            "data.support",
            f"needs half of the public texts, which must be 2 or more, got {len(public)}; "
            "set data.support, or raise data.auxiliary",
        )
    order = numpy_rng_for(seed, "data", "support").permutation(len(public))
    half = len(public) // 2
    return public.take(np.sort(order[half:])), public.take(np.sort(order[:half]))


def _read_public(source: TextTable, reader: Reader | None) -> Samples:
    assert reader is not None, "a model of images is refused"
    return source.read_public(reader)


def build_vocabulary(source: Source, reader: Reader) -> Vocabulary:
    """Return what a run knows of its model's tokenizer."""
    return Vocabulary(reader.size, reader.pad, reader.special, _build_choices(source, reader))


def _build_choices(source: Source, reader: Reader) -> Choices | None:
    """Return the token that tells the classes apart; None of classifiers and of other data."""
    if reader.classifies or not isinstance(source, TextTable):
        return None
    if not isinstance(source.task, Classification):
        return Choices(0, ())
    names = reader.encode([f" {name}" for name in source.class_names])
    # names such as " very good" and " very bad" share their first tokens: compare the next one
    alike = [len(set(each)) == 1 for each in zip(*names, strict=False)]
    after = [*alike, False].index(False)
    tokens = [name[after] if after < len(name) else reader.end for name in names]
    if len(set(tokens)) < len(tokens):
        raise ScenarioError(
            "data.source.task.names",
            f"must differ at the first token that not all names share, got "
            f"{', '.join(source.class_names)}; choose other names",
        )
    return Choices(after, tuple(tokens))


def _apply_limit(samples: Samples, limit: Limit, split: str) -> Samples:
    rows = limit.choose_rows(samples.groups, split)
    return samples if rows is None else samples.take(rows)


def _hold_out(
    samples: Samples, fraction: float, total: int, seed: int, field: str
) -> tuple[Samples, Samples | None]:
    """Hold out `fraction` of `total` rows, stratified; return the rows left and those held out."""
    if fraction == 0:
        return samples, None
    count = round(fraction * total)
    if not 0 < count < len(samples):
        raise ScenarioError(
            f"data.{field}",
            f"must hold out 1 to {len(samples) - 1} of {total} training samples, "
            f"got {count} (a fraction of {fraction:g})",
        )
    out = draw_stratified(samples.groups, count, numpy_rng_for(seed, "data", field))
    kept = np.setdiff1d(np.arange(len(samples)), out)
    return samples.take(kept), samples.take(out)


def _measure_scale(
    samples: Samples, normalise: Normalisation
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if not samples.images:
        return (), ()
    channels = samples.inputs.shape[1]
    if normalise == "unit":
        return (0.0,) * channels, (1.0,) * channels
    if normalise == "symmetric":
        return (0.5,) * channels, (0.5,) * channels
    mean, std = measure_channels(samples)
    # a constant channel has a standard deviation of 0: divide by 1, so that it becomes 0
    return mean, tuple(each or 1.0 for each in std)
