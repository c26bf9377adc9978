"""Data and networks of one's own in a scenario: overrides that name them by their digests."""

from typing import Any

import numpy as np

from simsplit.data.given import GivenSource, given_source
from simsplit.data.samples import DataSet
from simsplit.held import held
from simsplit.models.own import GivenModel, given_model


def own(data: Any = None, model: Any = None, **columns: Any) -> dict[str, Any]:  # noqa: ANN401
    """Overrides for `load_scenario` or `load_sweep`, and for `run` of a dict.

    Args:
        data: Arrays, tensors, a Dataset, a frame; two splits of it; or a list, one for each client.
        model: A `SplitModel`, or three modules.
        columns: Of a frame: target, categories, drop, client; see `simsplit list data`.

    >>> load_sweep("scenarios/quickstart.yaml", own(data=(x, y)))  # doctest: +SKIP
    """
    changes: dict[str, Any] = {}
    if data is not None:
        source = given_source(data, **columns)
        changes["data.source"] = source.model_dump(mode="json")
        made = held(source.digest)
        assert isinstance(made, DataSet)
        if made.train.owners is not None:
            changes["data.partition"] = {"kind": "natural"}
            changes["clients.count"] = len(np.unique(made.train.owners))
    if model is not None:
        changes["model"] = given_model(model).model_dump(mode="json")
    return changes


def held_by(*parts: object) -> dict[str, object]:
    """What a scenario's data source or model was passed, by digest: for other processes."""
    digests = [part.digest for part in parts if isinstance(part, GivenSource | GivenModel)]
    return {digest: thing for digest in digests if (thing := held(digest)) is not None}
