"""The models that are cut, as a page: the lists that tests hold against the whole models."""

import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from making.markup import plain, table

_LIST = Path(__file__).parents[2] / "tests" / "families.py"
_HEAD = """\
# Models that are cut

## Language models

Tests hold each of these families against the whole model: a small one with random weights, whose text is longer than its sliding window.
Logits are equal to the bit, in training and out of it, with padding on either side.

Other families that are built like these can be cut, too. When a model is loaded, a small copy of it with random weights is cut, and compared with
the whole copy. If the two differ, the model is refused, and the message says by how much.

"""
_IMAGES = """
## Image models

Tests hold each of these against the whole model, cut at every layer: logits, gradients and, for models of transformers, adapters (`model.lora`).
`image_classifier` reads a folder of transformers, `vit` a file of torchvision's weights (`model.weights`). Images have one size, so there is no
padding; nothing is written, so there are no caches.

"""


def page() -> str:
    """Return the tables of families, with their heads."""
    lists: Mapping[str, Any] = runpy.run_path(str(_LIST))
    rows = [
        [f"`{name}`", plain(family.examples), plain(family.has)]
        for name, family in sorted(lists["FAMILIES"].items())
    ]
    columns = ("Family", "Models", "Besides layers like Llama's")
    kinds = {"image_classifier": "IMAGE_FAMILIES", "vit": "TORCHVISION"}
    of_images = [
        [f"`{kind}`", f"`{name}`", plain(family.examples), plain(family.has), *_applies(kind)]
        for kind, listed in kinds.items()
        for name, family in lists[listed].items()
    ]
    heads = ("`model.kind`", "Family", "Models", "Besides layers like ViT's", *_APPLIES)
    return f"{_HEAD}{table(columns, rows)}\n{_IMAGES}{table(heads, of_images)}\n"


_APPLIES = ("LoRA", "Padded", "Cached", "Generating")


def _applies(kind: str) -> tuple[str, ...]:
    return ("yes" if kind == "image_classifier" else "no", *["does not apply"] * 3)
