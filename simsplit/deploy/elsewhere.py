"""What a server knows of data that lie with its clients: their form, and how many there are."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from simsplit.data import DataInfo, Prepared, Samples
from simsplit.data.samples import TextInfo
from simsplit.errors import ProtocolError

MOST_SAMPLES = 2**40


def form_checked(form: object) -> dict[str, Any]:
    """What `form_of` gave at a client; ProtocolError where it is anything else."""
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
        and form.keys() == kinds.keys()
        and all(isinstance(form[name], kind) for name, kind in kinds.items())
        and 0 < len(form["sample"]) <= 4
        and all(_is_count(size) and 0 < size < 2**20 for size in form["sample"])
        and 0 < len(form["classes"]) <= 2**20
        and all(isinstance(name, str) for name in form["classes"])
        and all(isinstance(each, float) for each in (*form["mean"], *form["std"]))
        and form["held_out"].keys() <= {"test", "validation", "auxiliary"}
        and "test" in form["held_out"]
        and all(_is_count(count) for count in form["held_out"].values())
    )
    if not good:
        raise ProtocolError("a client that tells its data in another form")
    return dict(form)  # type: ignore[call-overload, no-any-return]


def elsewhere(name: str, form: Mapping[str, Any], samples: Sequence[int]) -> Prepared:
    """Data of this form without a sample: `samples` are each client's number of them."""
    shape, ends = tuple(form["sample"]), np.cumsum([0, *samples])
    held_out = {split: _blank(form, count) for split, count in form["held_out"].items()}
    return Prepared(
        name=name,
        info=DataInfo(shape, len(form["classes"]), texts=form["texts"]),
        train=_blank(form, int(ends[-1])),
        validation=held_out.get("validation"),
        auxiliary=held_out.get("auxiliary"),
        test=held_out["test"],
        parts=[np.broadcast_to(np.int64(0), (count,)) for count in samples],
        mean=tuple(form["mean"]),
        std=tuple(form["std"]),
        class_names=tuple(form["classes"]),
        at_hand=False,
    )


def _blank(form: Mapping[str, Any], count: int) -> Samples:
    """So many samples, all of which are one zero in memory."""
    shape = tuple(form["sample"])
    kind = torch.uint8 if form["images"] else torch.float32
    inputs = torch.zeros((), dtype=torch.int64 if form["texts"] else kind).expand(count, *shape)
    nothing = torch.zeros((), dtype=torch.int64)
    if not form["texts"]:
        return Samples(inputs, nothing.expand(count))
    counts = nothing.expand(count)
    return Samples(inputs, nothing.expand(count, *shape), TextInfo(counts, counts, counts))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < MOST_SAMPLES
