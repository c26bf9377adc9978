"""This room loads data sets, divides them among clients and makes mini-batches."""

from simsplit.data.base import SourceConfig
from simsplit.data.batches import (
    Augmentation,
    Batch,
    Batcher,
    batch_indices,
    measure_channels,
)
from simsplit.data.config import DataConfig
from simsplit.data.partitions import PARTITIONS, Dealing, Partition
from simsplit.data.preparing import Prepared, prepare
from simsplit.data.samples import DataInfo, DataSet, Samples
from simsplit.data.sources import SOURCES, Source

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "Augmentation",
    "Batch",
    "Batcher",
    "DataConfig",
    "DataInfo",
    "DataSet",
    "Dealing",
    "Partition",
    "Prepared",
    "Samples",
    "Source",
    "SourceConfig",
    "batch_indices",
    "measure_channels",
    "prepare",
]
