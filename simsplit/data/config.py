"""What a scenario's `data:` may say."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from simsplit.config import Config
from simsplit.data.batches import Augmentation
from simsplit.data.partitions import Iid, Partition
from simsplit.data.samples import DataInfo
from simsplit.data.sources import DigitsSource, Source
from simsplit.data.texts import PythonDocs, TextHub, TextParquet, TextTable

Normalisation = Literal["dataset", "unit", "symmetric"]
TextSource = Annotated[PythonDocs | TextParquet | TextHub, Field(discriminator="kind")]


class EvenConfig(Config):
    """Clients whose parts have all classes in the shares that the whole has."""

    clients: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(0,), min_length=1)
    """Their numbers."""
    samples: int = Field(default=300, ge=1)
    """How many samples each gets."""


class DataConfig(Config):
    """The data set, what part of it is used or held out, and how it is divided among clients."""

    source: Source = DigitsSource()
    """Where samples come from; a bare word such as `cifar10` stands for `{kind: cifar10}`."""
    classes: tuple[str, ...] | None = Field(default=None, min_length=2)
    """Of images and tables: the classes to use, by name, such as `[cat, dog]`, numbered from 0 on
    in this order; null: all."""
    train_samples: int | None = Field(default=None, ge=1)
    """How many training samples to use at most, stratified by class."""
    test_samples: int | None = Field(default=None, ge=1)
    """How many test samples to use at most, stratified by class."""
    validation: float = Field(default=0.0, ge=0, lt=1)
    """Share of the training samples held out for validation, before they are divided among
    clients."""
    auxiliary: float = Field(default=0.0, ge=0, lt=1)
    """Share of the training samples held out as public data, for attacks and for methods that learn
    from public data; of texts, half of it where clients mix with public texts and no `support` is
    named."""
    public: TextSource | None = None
    """Public texts from another source, in place of `auxiliary`."""
    support: TextSource | None = None
    """Texts that clients mix their own with (mixguard, cover), and attackers have not; null: a half
    of the public ones, which then are public no more."""
    augment: tuple[Augmentation, ...] = ()
    """Random changes to every image, drawn anew each epoch: `crop` (padded with black by an
    eighth) or `shift` (by two pixels, the edges reflected), and `flip` (half of the images) or
    `alternate` (each image in every second epoch)."""
    normalise: Normalisation = "dataset"
    """Of images: `dataset`: each channel to mean 0 and standard deviation 1 over the clients'
    samples; `unit`: to [0, 1]; `symmetric`: to [-1, 1]."""
    partition: Partition = Iid()
    """How samples are divided among clients; a bare word such as `iid` stands for `{kind: iid}`."""
    even: EvenConfig | None = None
    """Clients that get samples of all classes alike before the others divide the rest, as a client
    that detectors trust would; null: none."""

    @field_validator("source", "public", "support", "partition", mode="before")
    @classmethod
    def _from_word(cls, value: object) -> object:
        return {"kind": value} if isinstance(value, str) else value

    @field_validator("classes", mode="before")
    @classmethod
    def _from_numbers(cls, value: object) -> object:
        return [str(each) for each in value] if isinstance(value, list) else value

    @field_validator("classes")
    @classmethod
    def _classes_of_its_own(
        cls, value: tuple[str, ...] | None, others: ValidationInfo
    ) -> tuple[str, ...] | None:
        if value is not None and len(set(value)) < len(value):
            raise ValueError(f"got {', '.join(value)}; name each class once")
        if value is not None and isinstance(others.data.get("source"), TextTable):
            raise ValueError("picks classes of images or tables, not of texts; leave it out")
        return value

    @field_validator("augment")
    @classmethod
    def _one_of_each(cls, value: tuple[Augmentation, ...]) -> tuple[Augmentation, ...]:
        for pair in (("crop", "shift"), ("flip", "alternate")):
            if set(pair) <= set(value):
                raise ValueError(f"{pair[0]} and {pair[1]} exclude each other; leave out one")
        return value

    @field_validator("auxiliary")
    @classmethod
    def _leaves_some(cls, value: float, others: ValidationInfo) -> float:
        validation = others.data.get("validation", 0.0)
        if value + validation >= 1:
            raise ValueError(
                f"must be below {1 - validation:g}, what a validation part of {validation:g} "
                f"leaves, got {value:g}"
            )
        return value

    def describe(self) -> DataInfo | None:
        """What a model needs to know before the data are read; None where that cannot be known."""
        info = self.source.describe()
        if info is None or self.classes is None:
            return info
        return replace(info, classes=len(self.classes))
