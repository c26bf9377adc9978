"""This module defines the base class of sources of images or features, shipped or a user's own.

Tables of images (`image_tables.TableConfig`) and of texts (`texts.TextTable`) take more arguments
when they are loaded, so they have base classes of their own.
"""

from abc import ABC, abstractmethod
from typing import Literal

from simsplit.config import Config
from simsplit.data.samples import DataInfo, DataSet, SplitSizes


class SourceConfig(Config, ABC):
    """A source of labelled images or of rows of numbers.

    The choice of test samples must not depend on the scenario's seed.
    """

    @property
    def modality(self) -> Literal["images", "tables"]:
        """The kind of samples: `images` (uint8) or `tables` (numbers, not scaled)."""
        return "images"

    @property
    def is_quick(self) -> bool:
        """Whether the data are at hand and read in no time, so that a check may read them."""
        return False

    @abstractmethod
    def describe(self) -> DataInfo | None:
        """Return shape and classes without reading the data; None if they cannot be known yet."""

    def count_samples(self) -> SplitSizes | None:
        """Return the number of samples without reading them; None if it cannot be known yet."""
        return None

    @abstractmethod
    def load(self) -> DataSet:
        """Read the training and test samples."""
