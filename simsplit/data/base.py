"""What a source of images has to say: the base of those that ship and of a user's own.

Tables of images (`tables.TableConfig`) and of texts (`texts.TextTable`) are told more when they are
loaded, and have bases of their own.
"""

from abc import ABC, abstractmethod

from simsplit.config import Config
from simsplit.data.samples import DataInfo, DataSet


class SourceConfig(Config, ABC):
    """Where labelled images come from. Which of them are test images must not depend on a seed."""

    @abstractmethod
    def describe(self) -> DataInfo | None:
        """Shape and classes, without reading the data; None where that cannot be known."""

    @abstractmethod
    def load(self) -> DataSet:
        """Training and test images."""
