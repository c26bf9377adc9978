"""The forms in which a Python call may pass data, told apart."""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import ValidationError

from simsplit.config import Config
from simsplit.errors import DataError

_Config = TypeVar("_Config", bound=Config)

FORMS = (
    "(inputs, labels); a pair of such pairs, or {'train': ..., 'test': ...}; a torch Dataset; a "
    "pandas DataFrame; a datasets.Dataset or DatasetDict; a list of texts; or a list of any of "
    "these, one for each client"
)


def splits_of(data: Any) -> tuple[Any, Any]:  # noqa: ANN401
    """What was passed to train on, and to test on or None."""
    if isinstance(data, Mapping):
        if "train" not in data:
            raise DataError(f"data: a mapping needs 'train', got {', '.join(map(str, data))}")
        other = next((name for name in ("test", "validation") if name in data), None)
        return data["train"], data[other] if other else None
    if isinstance(data, tuple) and len(data) == 2 and all(map(is_pair, data)):
        return data
    return data, None


def is_pair(data: object) -> bool:
    """Whether it is inputs and labels, or two splits."""
    return isinstance(data, tuple) and len(data) == 2


def is_frame(data: object) -> bool:
    """Whether it is a pandas frame."""
    return type(data).__module__.split(".")[0] == "pandas" and hasattr(data, "columns")


def is_hub(data: object) -> bool:
    """Whether it is a Dataset of the hub's library."""
    return type(data).__module__.split(".")[0] == "datasets"


def as_labels(labels: Any) -> np.ndarray:  # noqa: ANN401
    """Labels as an array, be they a tensor or a list."""
    return labels.cpu().numpy() if isinstance(labels, torch.Tensor) else np.asarray(labels)


def arrow(dataset: Any) -> Any:  # noqa: ANN401
    """A hub's Dataset as a table of arrow's."""
    schema = dataset.features.arrow_schema
    return dataset.with_format("arrow")[:].replace_schema_metadata(schema.metadata)


def checked(config: type[_Config], options: Mapping[str, Any]) -> _Config:
    """A config of the keywords beside `data`; DataError where one will not do."""
    try:
        return config(**options)
    except ValidationError as error:
        first = error.errors()[0]
        known = config.model_fields.keys() - {"kind", "digest"}
        raise DataError(
            f"data: {first['loc'][0]}: {first['msg'].removeprefix('Value error, ')}; "
            f"options beside data: {', '.join(sorted(known))}"
        ) from None


def not_passed(digest: str) -> DataError:
    """What to do about a scenario whose data this process was not given."""
    return DataError(
        f"data.source: these data were passed from Python (digest {digest}); do so again: "
        "run('RUN/scenario.yaml', 'RUN', resume=True, data=...)"
    )
