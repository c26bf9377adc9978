"""A server plans a run by the form and the number of samples that its clients hold.

The samples themselves never leave the clients, so the server works with blank stand-ins.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from simsplit.client_names import NO_NAMES, ClientNames
from simsplit.data import DataInfo, Prepared, Samples
from simsplit.data.samples import TextInfo
from simsplit.errors import ProtocolError

MOST_SAMPLES = 2**31
"""Most samples that a client may claim to hold."""
MOST_VALUES = 2**26
"""Most values of one sample."""
MOST_CLASSES = 2**16
MOST_DIGEST = 64
"""Most characters of a digest of ids."""


def check_form(form: object) -> dict[str, Any]:
    """Return a client's description of its data; raise ProtocolError unless it is well formed.

    `terms.describe_data` makes it. The bounds keep a hostile client from sizing the server's
    tensors.
    """
    kinds: dict[str, type | tuple[type, ...]] = {
        "sample": list,
        "classes": list,
        "texts": bool,
        "images": bool,
        "mean": list,
        "std": list,
        "held_out": dict,
    }
    good = (
        isinstance(form, dict)
        and form.keys() - {"ids"} == kinds.keys()
        and isinstance(form.get("ids", ""), str)
        and len(form.get("ids", "")) <= MOST_DIGEST
        and all(isinstance(form[name], kind) for name, kind in kinds.items())
        and 0 < len(form["sample"]) <= 4
        and all(is_count(size) and 0 < size < 2**20 for size in form["sample"])
        and math.prod(form["sample"]) <= MOST_VALUES
        and 0 < len(form["classes"]) <= MOST_CLASSES
        and all(isinstance(name, str) for name in form["classes"])
        and all(isinstance(each, float) for each in (*form["mean"], *form["std"]))
        # JSON as Python reads it has NaN and Infinity.
        and all(math.isfinite(each) for each in (*form["mean"], *form["std"]))
        and form["held_out"].keys() <= {"test", "validation", "auxiliary"}
        and "test" in form["held_out"]
        and all(is_count(count) for count in form["held_out"].values())
    )
    if not good:
        raise ProtocolError("a description of its data that is not well formed")
    return dict(form)  # type: ignore[call-overload, no-any-return]


def make_remote_data(
    name: str,
    form: Mapping[str, Any],
    samples: Sequence[int],
    client_names: ClientNames = NO_NAMES,
) -> Prepared:
    """Make stand-ins for the clients' data: the right form and counts, without any sample.

    `samples` holds each client's number of training samples. The server's own scenario may name
    them; nothing that a client sends does.
    """
    shape, ends = tuple(form["sample"]), np.cumsum([0, *samples])
    held_out = {
        split: _make_blank_samples(form, count) for split, count in form["held_out"].items()
    }
    return Prepared(
        name=name,
        info=DataInfo(
            shape,
            len(form["classes"]),
            texts=form["texts"],
            parts=tuple(map(tuple, form.get("parts", ()))),
        ),
        train=_make_blank_samples(form, int(ends[-1])),
        validation=held_out.get("validation"),
        auxiliary=held_out.get("auxiliary"),
        test=held_out["test"],
        # A view of one number: what a client claims to hold must cost no memory.
        parts=[np.broadcast_to(np.int64(0), (count,)) for count in samples],
        mean=tuple(form["mean"]),
        std=tuple(form["std"]),
        class_names=tuple(form["classes"]),
        has_samples=False,
        client_names=client_names,
    )


def _make_blank_samples(form: Mapping[str, Any], count: int) -> Samples:
    """Make `count` blank samples, which share one zero in memory."""
    shape = tuple(form["sample"])
    kind = torch.uint8 if form["images"] else torch.float32
    inputs = torch.zeros((), dtype=torch.int64 if form["texts"] else kind).expand(count, *shape)
    nothing = torch.zeros((), dtype=torch.int64)
    if not form["texts"]:
        return Samples(inputs, nothing.expand(count))
    counts = nothing.expand(count)
    return Samples(inputs, nothing.expand(count, *shape), TextInfo(counts, counts, counts))


def is_count(value: object) -> bool:
    """Return whether a value is a number of samples that a client may claim to hold."""
    return type(value) is int and 0 <= value < MOST_SAMPLES
