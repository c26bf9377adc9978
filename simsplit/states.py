"""Named tensors inside named tensors: how parts of a state share one flat dict of names."""

from collections.abc import Mapping

from torch import Tensor


def below(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The part of a state whose names start with a prefix, under the rest of their names."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }
