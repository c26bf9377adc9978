"""From a scenario's `data:` to what a run trains and tests on, with no row in two places."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from simsplit.data.batches import (
    Augmentation,
    Batcher,
    Batches,
    NumberBatcher,
    channel_statistics,
)
from simsplit.data.blaming import blamed
from simsplit.data.config import DataConfig, EvenConfig, Normalisation
from simsplit.data.partitions import Natural, Partition
from simsplit.data.samples import Choices, DataInfo, DataSet, Samples, Vocabulary
from simsplit.data.sources import Source
from simsplit.data.splits import Limit, stratified
from simsplit.data.tables import TableConfig
from simsplit.data.tasks import Classification
from simsplit.data.texts import TextBatcher, TextTable
from simsplit.errors import ScenarioError
from simsplit.models.tokens import Reader
from simsplit.seeds import numpy_rng_for


@dataclass(frozen=True)
class Prepared:
    """Data as a run uses them; `parts` are rows of `train`, one array for each client."""

    name: str
    info: DataInfo
    train: Samples
    validation: Samples | None
    auxiliary: Samples | None
    test: Samples
    parts: list[np.ndarray]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    support: Samples | None = None
    """Texts to mix private ones with."""
    vocabulary: Vocabulary | None = None
    """Of texts."""
    class_names: tuple[str, ...] = ()
    fitted: str | None = None
    """On which rows scales and categories of a table were fitted."""
    at_hand: bool = True
    """Whether the samples are here; not with a server whose clients have them: it knows how many
    there are, and their form.
    """

    def batches(
        self,
        samples: Samples,
        device: torch.device,
        augment: Sequence[Augmentation] = (),
        *,
        channels_last: bool = False,
    ) -> Batches:
        """Some of its samples as batches on a device."""
        if samples.texts is not None:
            return TextBatcher(samples, device)
        if not samples.images:
            return NumberBatcher(samples, device)
        return Batcher(
            samples,
            mean=self.mean,
            std=self.std,
            augment=augment,
            device=device,
            channels_last=channels_last,
        )

    def told(self) -> dict[str, object]:
        """What a run says of its data: sizes, names of classes, and what a table was fitted on."""
        splits = {
            "train": self.train,
            "validation": self.validation,
            "auxiliary": self.auxiliary,
            "test": self.test,
        }
        return {
            "name": self.name,
            "sample": list(self.info.shape),
            "samples": {name: len(each) for name, each in splits.items() if each is not None},
            "classes": list(self.class_names),
            "fitted": self.fitted,
            "mean": list(self.mean),
            "std": list(self.std),
        }

    def holdings(self) -> str:
        """Who holds what, as CSV: each client's number of samples of each class, where known."""
        rows = ["client,class,samples"]
        if not self.at_hand:
            return "\n".join([*rows, *(f"{c},,{len(p)}" for c, p in enumerate(self.parts))]) + "\n"
        for client, part in enumerate(self.parts):
            numbers, counts = np.unique(self.train.groups[part], return_counts=True)
            rows += [f"{client},{n},{c}" for n, c in zip(numbers, counts, strict=True)]
        return "\n".join(rows) + "\n"

    @property
    def nbytes(self) -> int:
        """Bytes of all samples that are here."""
        if not self.at_hand:
            return 0
        held = (self.train, self.validation, self.auxiliary, self.support, self.test)
        return sum(samples.nbytes for samples in held if samples is not None)


def prepare(
    config: DataConfig,
    num_clients: int,
    seed: int,
    reader: Reader | None = None,
    *,
    mixes: bool = False,
) -> Prepared:
    """Load, limit, hold out, deal and measure, in that order; texts as the reader reads them.

    Where clients mix their texts with others (`mixes`), these are none that attackers have.

    Each choice has its own stream of draws, so that more auxiliary data leaves the validation part
    what it was.
    """
    limit = Limit(config.train_samples, config.test_samples, seed, config.classes)
    with blamed("source"):
        data = _loaded(config.source, limit, reader)
    if config.classes is not None:
        data, limit = data.of(config.classes), replace(limit, classes=None)
    train = _limited(data.train, limit, "train")
    kept, validation = _without(train, config.validation, len(train), seed, "validation")
    kept, auxiliary = _without(kept, config.auxiliary, len(train), seed, "auxiliary")
    if config.public is not None:
        with blamed("public"):
            auxiliary = _read(config.public, reader)
    support = auxiliary
    if config.support is not None:
        with blamed("support"):
            support = _read(config.support, reader)
    if config.support is None and mixes and auxiliary is not None:
        auxiliary, support = _halved(auxiliary, seed)
    mean, std = _statistics(kept, config.normalise)
    return Prepared(
        name=data.name,
        info=replace(data.info, shares=_shares(kept, data.info.classes)),
        train=kept,
        validation=validation,
        auxiliary=auxiliary,
        support=support,
        test=_limited(data.test, limit, "test"),
        parts=_parts(config, kept, num_clients, seed),
        mean=mean,
        std=std,
        class_names=data.class_names,
        fitted=data.fitted,
        vocabulary=None if reader is None else _vocabulary(config.source, reader),
    )


def _parts(config: DataConfig, samples: Samples, num_clients: int, seed: int) -> list[np.ndarray]:
    """Each client's rows: even ones first, the rest as the partition deals it to the others."""
    groups, left = _dealt_by(config.partition, samples), np.arange(len(samples))
    own = {}
    if config.even is not None:
        _refuse_uneven(config.even, config.partition, len(samples), num_clients)
        for client in sorted(config.even.clients):
            rng = numpy_rng_for(seed, "data", "even", client)
            own[client] = left[stratified(groups[left], config.even.samples, rng)]
            left = np.setdiff1d(left, own[client])
    dealt = iter(config.partition.deal(groups[left], num_clients - len(own), seed))
    return [own[client] if client in own else left[next(dealt)] for client in range(num_clients)]


def _refuse_uneven(
    even: EvenConfig, partition: Partition, num_samples: int, num_clients: int
) -> None:
    """ScenarioError for clients that there are not, or that leave the others too little."""
    own, last = set(even.clients), num_clients - 1
    taken = len(own) * even.samples
    if isinstance(partition, Natural):
        raise ScenarioError("data.even", "natural partitions say whose each sample is; use null")
    if max(own) > last:
        raise ScenarioError("data.even.clients", f"got {max(own)}; there are clients 0 to {last}")
    if len(own) == num_clients:
        raise ScenarioError("data.even.clients", "names every client; use partition: iid instead")
    if taken + num_clients - len(own) > num_samples:
        raise ScenarioError(
            "data.even.samples",
            f"takes {taken} of {num_samples} training samples, and leaves the others too few",
        )


def _shares(samples: Samples, classes: int) -> tuple[float, ...]:
    """The share of each class; none of texts that are told apart by something else."""
    counts = np.bincount(samples.groups, minlength=classes)
    known = len(samples) and len(counts) == classes
    return tuple((counts / counts.sum()).tolist()) if known else ()


def _dealt_by(partition: Partition, samples: Samples) -> np.ndarray:
    """What a partition divides by: classes, or whose the samples are."""
    if not isinstance(partition, Natural):
        return samples.groups
    if samples.owners is None:
        raise ScenarioError(
            "data.partition",
            "natural needs data that say whose each sample is: a table's `client` column, or a "
            "part for each client passed from Python; use another partition, such as iid",
        )
    return samples.owners


def _loaded(source: Source, limit: Limit, reader: Reader | None) -> DataSet:
    if isinstance(source, TextTable):
        assert reader is not None, "a model of images is refused"
        return source.load(reader, limit)
    return source.load(limit) if isinstance(source, TableConfig) else source.load()


def _halved(public: Samples, seed: int) -> tuple[Samples, Samples]:
    """Texts that are public, and texts that clients keep to themselves."""
    if len(public) < 2:
        raise ScenarioError(
            "data.support",
            "clients mix with texts that are not public, and there is but one text to divide; "
            "name a source of their own, or raise data.auxiliary",
        )
    order = numpy_rng_for(seed, "data", "support").permutation(len(public))
    half = len(public) // 2
    return public.take(np.sort(order[half:])), public.take(np.sort(order[:half]))


def _read(source: TextTable, reader: Reader | None) -> Samples:
    assert reader is not None, "a model of images is refused"
    return source.read("train", reader, public=True)


def _vocabulary(source: Source, reader: Reader) -> Vocabulary:
    return Vocabulary(reader.size, reader.pad, reader.special, _choices(source, reader))


def _choices(source: Source, reader: Reader) -> Choices | None:
    if reader.classifies or not isinstance(source, TextTable):
        return None
    if not isinstance(source.task, Classification):
        return Choices(0, ())
    names = reader.encode([f" {name}" for name in source.class_names])
    alike = [len(set(each)) == 1 for each in zip(*names, strict=False)]
    after = [*alike, False].index(False)
    tokens = [name[after] if after < len(name) else reader.end for name in names]
    if len(set(tokens)) < len(tokens):
        raise ScenarioError(
            "data.source.task.names",
            f"got {', '.join(source.class_names)}; the model tells classes apart by the first "
            "token at which their names differ, and two are alike there: choose other names",
        )
    return Choices(after, tuple(tokens))


def _limited(samples: Samples, limit: Limit, split: str) -> Samples:
    rows = limit.rows(samples.groups, split)
    return samples if rows is None else samples.take(rows)


def _without(
    samples: Samples, fraction: float, total: int, seed: int, field: str
) -> tuple[Samples, Samples | None]:
    """What is left of `samples`, and the part held out: `fraction` of `total` rows, stratified."""
    if fraction == 0:
        return samples, None
    count = round(fraction * total)
    if not 0 < count < len(samples):
        raise ScenarioError(
            f"data.{field}",
            f"must hold out 1 to {len(samples) - 1} of {total} training samples, "
            f"got {count} (a part of {fraction:g})",
        )
    out = stratified(samples.groups, count, numpy_rng_for(seed, "data", field))
    kept = np.setdiff1d(np.arange(len(samples)), out)
    return samples.take(kept), samples.take(out)


def _statistics(
    samples: Samples, normalise: Normalisation
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if not samples.images:
        return (), ()
    channels = samples.inputs.shape[1]
    if normalise == "unit":
        return (0.0,) * channels, (1.0,) * channels
    if normalise == "symmetric":
        return (0.5,) * channels, (0.5,) * channels
    mean, std = channel_statistics(samples)
    # a channel that is the same everywhere becomes 0, not a division by 0
    return mean, tuple(each or 1.0 for each in std)
