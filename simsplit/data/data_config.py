"""This module defines the fields of a scenario's `data:`."""

from dataclasses import replace
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from simsplit.config import Config, expand_kind
from simsplit.data.batches import Augmentation
from simsplit.data.joined_tables import JoinedSource
from simsplit.data.partitions import Iid, Partition
from simsplit.data.portions import ByColumns, Joint
from simsplit.data.samples import DataInfo
from simsplit.data.sources import DigitsSource, Source
from simsplit.data.texts import PythonDocs, TextHub, TextParquet, TextTable

Normalisation = Literal["dataset", "unit", "symmetric"]
TextSource = Annotated[PythonDocs | TextParquet | TextHub, Field(discriminator="kind")]


class EvenConfig(Config):
    """Clients whose samples have all classes in the same shares as the whole training data."""

    clients: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(0,), min_length=1)
    """Numbers of these clients."""
    samples: int = Field(default=300, ge=1)
    """Number of samples that each of them gets."""


class DataConfig(Config):
    """The data set, the part of it to use, and how it is held out and divided among clients."""

    source: Source = DigitsSource()
    """Source of the samples; a bare word such as `cifar10` stands for `{kind: cifar10}`."""
    classes: tuple[str, ...] | None = Field(default=None, min_length=2)
    """Classes to use, by name, such as `[cat, dog]`; they are numbered from 0 in this order. Only
    for images and tables. null: all classes."""
    train_samples: int | None = Field(default=None, ge=1)
    """Largest number of training samples to use, chosen with the classes' shares; null: all."""
    test_samples: int | None = Field(default=None, ge=1)
    """Largest number of test samples to use, chosen with the classes' shares; null: all."""
    validation: float = Field(default=0.0, ge=0, lt=1)
    """Share of the training samples that is held out for validation, before the rest is divided
    among clients."""
    auxiliary: float = Field(default=0.0, ge=0, lt=1)
    """Share of the training samples that is held out as public data, for attacks and for methods
    that learn from public data. If clients mix their texts with others and `support` is null, half
    of it becomes their support."""
    public: TextSource | None = None
    """Source of public texts to use instead of `auxiliary`; null: `auxiliary` is used."""
    support: TextSource | None = None
    """Source of texts that clients mix with their own (mixguard, cover) and that attackers do not
    have; null: half of the public texts, which attackers then do not have either."""
    augment: tuple[Augmentation, ...] = ()
    """Random changes to every image, drawn again each epoch: `crop` (out of a black border, an
    eighth of the height wide) or `shift` (by up to two pixels, reflected at the edges), and `flip`
    (each image with probability one half) or `alternate` (each image in every second epoch)."""
    normalise: Normalisation = "dataset"
    """Scale of images: `dataset` (each channel has mean 0 and standard deviation 1 over the
    clients' samples), `unit` (from 0 to 1) or `symmetric` (from -1 to 1)."""
    partition: Partition = Iid()
    """How samples are divided among clients; a bare word such as `iid` stands for `{kind: iid}`."""
    even: EvenConfig | None = None
    """Clients that get samples of all classes before the partition divides the rest among the
    others, such as a client that detectors trust; null: none."""

    shadow: int | None = Field(default=None, ge=0)
    """Seed of a run whose attacker this run's clients belong to: they divide its auxiliary data, as
    the shadow runs of lira do. `seed` must differ from it. null: clients have their own data."""

    _expand_kind = field_validator("source", "public", "support", "partition", mode="before")(
        expand_kind
    )

    @field_validator("classes", mode="before")
    @classmethod
    def _name_classes(cls, value: object) -> object:
        # YAML reads a class named 3 as a number
        return [str(each) for each in value] if isinstance(value, list) else value

    @field_validator("classes")
    @classmethod
    def _check_classes(
        cls, value: tuple[str, ...] | None, others: ValidationInfo
    ) -> tuple[str, ...] | None:
        if value is not None and len(set(value)) < len(value):
            raise ValueError(f"got {', '.join(value)}; name each class once")
        if value is not None and isinstance(others.data.get("source"), TextTable):
            raise ValueError("is for images and tables, not for texts; leave it out")
        return value

    @field_validator("augment")
    @classmethod
    def _check_augment(cls, value: tuple[Augmentation, ...]) -> tuple[Augmentation, ...]:
        for pair in (("crop", "shift"), ("flip", "alternate")):
            if set(pair) <= set(value):
                raise ValueError(f"{pair[0]} and {pair[1]} exclude each other; leave out one")
        return value

    @field_validator("auxiliary")
    @classmethod
    def _check_auxiliary(cls, value: float, others: ValidationInfo) -> float:
        validation = others.data.get("validation", 0.0)
        if value + validation >= 1:
            raise ValueError(
                f"must be below {1 - validation:g}, the share that data.validation: {validation:g} "
                f"leaves, got {value:g}"
            )
        return value

    @model_validator(mode="after")
    def _check_shadow(self) -> Self:
        if self.shadow is not None and not (self.auxiliary or self.public):
            raise ValueError("shadow: needs the run's auxiliary data, which its clients divide")
        return self

    @property
    def party_names(self) -> tuple[str, ...]:
        """The names of the parties whose portions the partition makes; empty: there are none."""
        return self.partition.names if isinstance(self.partition, Joint) else ()

    @property
    def label_party(self) -> int | None:
        """The number of the party whose file has the labels; None if the data do not say it."""
        return self.source.label_party if isinstance(self.source, JoinedSource) else None

    @property
    def aligns(self) -> bool:
        """Whether parties on machines of their own find their common ids before a run."""
        return isinstance(self.source, JoinedSource) and self.source.align is not None

    def list_fields(self) -> list[tuple[str, ...]]:
        """Return the columns of each party's text; none where clients have whole texts."""
        if not isinstance(self.source, TextTable) or not isinstance(self.partition, ByColumns):
            return []
        return self.partition.list_fields(self.source.prompt_columns)

    def describe(self) -> DataInfo | None:
        """Return what a model must know before data are read; None if it cannot be known yet."""
        info = self.source.describe()
        if info is not None and self.classes is not None:
            info = replace(info, classes=len(self.classes))
        if info is None or not isinstance(self.partition, Joint):
            return info
        columns = self.source.load().columns if self.source.modality == "tables" else ()
        if info.texts:
            info = replace(info, shape=(info.shape[0] * self.partition.count_parties(),))
            self.list_fields()
        portions = self.partition.cut(info, columns)
        return replace(info, parts=tuple(each.shape for each in portions))
