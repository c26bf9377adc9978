"""This room loads data sets, divides them among clients and makes mini-batches."""

from simsplit.data.batches import (
    Augmentation,
    Batch,
    Batcher,
    draw_batches,
    measure_channels,
)
from simsplit.data.data_config import DataConfig
from simsplit.data.partitions import PARTITIONS, Dealing, Partition
from simsplit.data.preparing import Prepared, prepare
from simsplit.data.samples import DataInfo, DataSet, Samples
from simsplit.data.source_config import SourceConfig
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
    "draw_batches",
    "measure_channels",
    "prepare",
]
