"""This room loads data sets, divides them among clients and makes mini-batches."""

from simsplit.data.batches import Batch
from simsplit.data.data_config import DataConfig
from simsplit.data.dealing import Dealing
from simsplit.data.partitions import PARTITIONS
from simsplit.data.preparing import Prepared, prepare
from simsplit.data.samples import DataInfo, DataSet, Samples
from simsplit.data.source_config import SourceConfig
from simsplit.data.sources import SOURCES

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "Batch",
    "DataConfig",
    "DataInfo",
    "DataSet",
    "Dealing",
    "Prepared",
    "Samples",
    "SourceConfig",
    "prepare",
]
