"""Segments are read from a saved model's own files, tensor by tensor, and nothing else of it.

The library loads a model whole. A client of a large model holds a few of its layers, so here the
model is laid out without weights, cut, and each segment's weights alone are read. Files that have
none of them are not opened, and of a model on the hub not even fetched.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from simsplit.errors import ScenarioError
from simsplit.models.families import PREFIX
from simsplit.models.tokenizers import refuse_unloadable
from simsplit.models.whole import load_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"
READ: Counter[str] = Counter()
"""How often each tensor has been read in this process, by name."""


class WeightFiles(NamedTuple):
    """The files of a saved model, by the names of its tensors."""

    files: Mapping[str, str]
    """The file that has a tensor."""
    fetch: Callable[[str], Path | None]
    """Finds a file in the folder, or fetches it from the hub."""

    def read(self, names: Mapping[str, torch.dtype]) -> dict[str, Tensor]:
        """Read tensors by name, each into memory of its own and as the given type."""
        from safetensors import SafetensorError, safe_open

        made: dict[str, Tensor] = {}
        for file in sorted({self.files[name] for name in names}):
            try:
                with safe_open(self.fetch(file), framework="pt") as opened:
                    for name, dtype in names.items():
                        if self.files[name] == file:
                            made[name] = opened.get_tensor(name).to(dtype, copy=True)
            except (OSError, SafetensorError, TypeError) as error:
                raise ScenarioError("model.name", f"{file} cannot be read ({error})") from None
        READ.update(list(names))
        return made


@lru_cache(maxsize=8)
def find_weight_files(name: str, revision: str | None) -> WeightFiles | None:
    """Return the files of a saved model; None if it has none of the format safetensors."""
    from safetensors import SafetensorError, safe_open
    from transformers.utils.hub import cached_file

    def fetch(file: str) -> Path | None:
        if Path(name).is_dir():
            found = Path(name, file)
            return found if found.is_file() else None
        cached: Any = cached_file(
            name, file, revision=revision, _raise_exceptions_for_missing_entries=False
        )
        return None if cached is None else Path(cached)

    with refuse_unloadable(name):
        if (index := fetch(_INDEX)) is not None:
            return WeightFiles(json.loads(index.read_text(encoding="utf-8"))["weight_map"], fetch)
        if (one := fetch(_ONE)) is None:
            return None
        try:
            with safe_open(one, framework="pt") as opened:
                return WeightFiles(dict.fromkeys(opened.keys(), _ONE), fetch)
        except SafetensorError:
            return None  # the library says what is wrong with it


@lru_cache(maxsize=2)
def lay_out_model(name: str, revision: str | None, dtype: torch.dtype) -> "PreTrainedModel":
    """Build a saved model without its weights; buffers, such as rotary angles, are computed."""
    from transformers import AutoModelForCausalLM

    factory: Any = AutoModelForCausalLM
    with refuse_unloadable(name), _leave_out_weights():
        model: PreTrainedModel = factory.from_config(load_config(name, revision), dtype=dtype)
    for prefix, module in model.named_modules():
        module.__dict__[PREFIX] = prefix
    model.train(False)  # as the library loads it
    return model


@contextmanager
def _leave_out_weights() -> Iterator[None]:
    """Open a context in which modules are built with parameters that take no memory.

    Buffers are computed as ever, unlike under torch's device "meta".
    """
    register = nn.Module.register_parameter

    def register_empty(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param)
        if param is not None:
            self._parameters[name] = nn.Parameter(param.to("meta"), param.requires_grad)

    nn.Module.register_parameter = register_empty  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def find_names(segment: nn.Module, model: "PreTrainedModel", saved: WeightFiles) -> dict[str, str]:
    """Return the names in the files of a laid out segment's weights; empty if one is missing."""
    names: dict[str, str] = {}
    for own, full, tensor in _list_laid_out(segment):
        found = next((each for each in _list_names(full, model) if each in saved.files), None)
        if found is not None:
            names[own] = found
        elif tensor.is_meta:
            return {}
    return names


def fill_segment(
    segment: nn.Module, names: Mapping[str, str], saved: WeightFiles, dtype: torch.dtype
) -> nn.Module:
    """Read a laid out segment's weights, in place; parameters become `dtype`."""
    wanted = {own: tensor for own, _, tensor in _list_laid_out(segment) if own in names}
    types = {
        names[own]: dtype if isinstance(tensor, nn.Parameter) else tensor.dtype
        for own, tensor in wanted.items()
    }
    stored = saved.read(types)
    for own, tensor in wanted.items():
        read, owner, _, name = stored[names[own]], *own.rpartition(".")
        if read.shape != tensor.shape:
            sizes = " and ".join("x".join(map(str, each.shape)) for each in (read, tensor))
            raise ScenarioError("model.name", f"has {names[own]} of two sizes: {sizes}")
        module = segment.get_submodule(owner)
        if isinstance(tensor, nn.Parameter):
            module._parameters[name] = nn.Parameter(read)
        else:
            module._buffers[name] = read
    for module in segment.modules():
        module.__dict__.pop(PREFIX, None)
    return segment


def _list_laid_out(segment: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Yield each weight of a laid out segment: its name there, its name in the model, and itself.

    Layers that were built otherwise, such as a fresh classification layer, are left out.
    """
    for prefix, module in segment.named_modules():
        place = module.__dict__.get(PREFIX)
        if place is None:
            continue
        kept = {
            name: buffer
            for name, buffer in module._buffers.items()
            if name not in module._non_persistent_buffers_set
        }
        for name, tensor in {**module._parameters, **kept}.items():
            if tensor is not None:
                own, full = (".".join(filter(None, (each, name))) for each in (prefix, place))
                yield own, full, tensor


def _list_names(full: str, model: "PreTrainedModel") -> Iterator[str]:
    """Yield the names that files may have for a weight: saved with its frame, without, or tied."""
    body = f"{model.base_model_prefix}."
    tied: Any = getattr(model, "_tied_weights_keys", None) or {}
    given = [full]
    if getattr(model.config, "tie_word_embeddings", False) and isinstance(tied, dict):
        given += [tied[full]] if full in tied else []
    for each in given:
        yield each
        yield each.removeprefix(body)
