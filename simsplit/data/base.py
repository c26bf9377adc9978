"""What a source of images or numbers has to say: the base of those that ship and of a user's own.

Tables of images (`tables.TableConfig`) and of texts (`texts.TextTable`) are told more when they are
loaded, and have bases of their own.
"""

from abc import ABC, abstractmethod
from typing import Literal

from simsplit.config import Config
from simsplit.data.samples import DataInfo, DataSet


class SourceConfig(Config, ABC):
    """Where labelled images, or rows of numbers, come from. Which of them are test samples must not
    depend on a seed.
    """

    @property
    def modality(self) -> Literal["images", "tables"]:
        """What its samples are: images (bytes), or numbers that are taken as they are."""
        return "images"

    @abstractmethod
    def describe(self) -> DataInfo | None:
        """Shape and classes, without reading the data; None where that cannot be known."""

    @abstractmethod
    def load(self) -> DataSet:
        """Training and test samples."""
