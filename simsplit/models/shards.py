"""Segments are read from a saved model's own files, tensor by tensor, and nothing else of it.

The library loads a model whole. A client of a large model holds a few of its layers, so here the
model is laid out without weights, cut, and each segment's weights alone are read. Files that have
none of them are not opened, and of a model on the hub not even fetched.
"""

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from simsplit.errors import ScenarioError
from simsplit.models.families import PREFIX
from simsplit.models.hub import lies_here
from simsplit.models.quantised import QuantisedForm, hold_packed, list_weights
from simsplit.models.tokenizers import refuse_unloadable
from simsplit.models.whole import get_class, load_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"
READ: Counter[str] = Counter()
"""How often each tensor has been read in this process, by name."""


@dataclass(frozen=True, eq=False)
class WeightFiles:
    """The files of a saved model, by the names of its tensors."""

    files: Mapping[str, str]
    """The file that has a tensor."""
    fetch: Callable[[str], Path | None]
    """Finds a file in the folder, or fetches it from the hub."""

    @contextmanager
    def open(self) -> Iterator[Callable[[str], Any]]:
        """Open a context with a function that finds a tensor in its file, without reading it."""
        from safetensors import SafetensorError, safe_open

        with ExitStack() as stack:
            opened: dict[str, Any] = {}

            def find(name: str) -> Any:  # noqa: ANN401 - safetensors has no types
                file = self.files[name]
                try:
                    if file not in opened:
                        one = safe_open(self.fetch(file), framework="pt")
                        opened[file] = stack.enter_context(one)
                    return opened[file].get_slice(name)
                except (OSError, SafetensorError, TypeError) as error:
                    raise ScenarioError("model.name", f"{file} cannot be read ({error})") from None

            yield find


class Source(NamedTuple):
    """What a weight is made of."""

    names: tuple[str, ...]
    """Names of tensors in the files."""
    converter: Any = None
    """The library's converter of tensors into weights, such as experts into one; None: there is
    one tensor, which is the weight."""
    target: str = ""
    """The name of the converter's first weight."""
    patterns: tuple[str, ...] = ()
    """The converter's pattern that each of the names matches."""

    def read(
        self, full: str, dtype: torch.dtype, find: Callable[[str], Any], model: "PreTrainedModel"
    ) -> Tensor:
        """Read a weight into memory of its own; `full` is its name in the model."""

        def load(name: str) -> Tensor:
            READ[name] += 1
            return find(name)[...].to(dtype, copy=True)  # type: ignore[no-any-return]

        if self.converter is None:
            return load(self.names[0])
        converter = copy.deepcopy(self.converter)
        for name, pattern in zip(self.names, self.patterns, strict=True):
            converter.add_tensor(self.target, name, pattern, partial(load, name))
        made = converter.convert(self.target, model=model, config=model.config)[full]
        tensor: Tensor = made[0] if isinstance(made, list) else made
        return tensor.contiguous()


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
            name,
            file,
            revision=revision,
            local_files_only=lies_here(name),
            _raise_exceptions_for_missing_entries=False,
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


def has_weight_files(name: str, revision: str | None) -> bool:
    """Return whether a saved model's files are on this machine; nothing is fetched."""
    from transformers.utils.hub import cached_file

    if Path(name).is_dir():
        return find_weight_files(name, revision) is not None
    options = {"local_files_only": True, "_raise_exceptions_for_missing_entries": False}
    found = (cached_file(name, file, revision=revision, **options) for file in (_INDEX, _ONE))
    return any(each is not None for each in found)


@lru_cache(maxsize=2)
def lay_out_model(
    name: str, revision: str | None, dtype: torch.dtype, classes: int | None = None
) -> "PreTrainedModel":
    """Build a saved model without its weights; buffers, such as rotary angles, are computed.

    `classes` is set for encoders and image models.
    """
    with refuse_unloadable(name), leave_out_weights():
        config = copy.deepcopy(load_config(name, revision))
        if classes is not None:
            config.num_labels = classes
        kind = get_class(config.model_type, classes)
        build = getattr(kind, "from_config", None)
        model: PreTrainedModel = build(config, dtype=dtype) if build else kind(config)
    for prefix, module in model.named_modules():
        module.__dict__[PREFIX] = prefix
    model.train(False)  # as the library loads it
    return model


_WEIGHTLESS: ContextVar[bool] = ContextVar("weightless", default=False)


def is_weightless() -> bool:
    """Return whether segments are made without their weights."""
    return _WEIGHTLESS.get()


@contextmanager
def make_weightless(*, wanted: bool = True) -> Iterator[None]:
    """Open a context in which segments of language models are made without their weights.

    Only their forms are of use then: all tensors are on torch's device "meta".
    """
    token = _WEIGHTLESS.set(wanted)
    try:
        yield
    finally:
        _WEIGHTLESS.reset(token)


@contextmanager
def leave_out_weights() -> Iterator[None]:
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


def _find_source(full: str, model: "PreTrainedModel", saved: WeightFiles) -> Source | None:
    plain = next((each for each in _list_names(full, model) if each in saved.files), None)
    return _list_converted(model, saved).get(full) if plain is None else Source((plain,))


@lru_cache(maxsize=2)
def _list_converted(model: "PreTrainedModel", saved: WeightFiles) -> dict[str, Source]:
    """Return the sources of weights whose files have other names or shapes, by name.

    The library knows of these: it has tensors of single experts, and older names.
    """
    from transformers import core_model_loading as loading
    from transformers.conversion_mapping import get_model_conversion_mapping

    known = get_model_conversion_mapping(model)
    renamings = [each for each in known if isinstance(each, loading.WeightRenaming)]
    converters = [each for each in known if isinstance(each, loading.WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    weights, made = model.state_dict(), dict[str, Source]()
    for name in sorted(saved.files, key=loading.dot_natural_key):
        target, pattern = loading.rename_source_key(
            name, renamings, converters, model.base_model_prefix, weights
        )
        if pattern is None:
            made.setdefault(target, Source((name,)))
            continue
        first, *others = by_pattern[pattern].target_patterns
        old = made.get(target, Source((), by_pattern[pattern], target))
        new = old._replace(names=(*old.names, name), patterns=(*old.patterns, pattern))
        made |= {target.replace(first, each): new for each in (first, *others)}
    return made


def find_unsaved(model: "PreTrainedModel", saved: WeightFiles) -> frozenset[str]:
    """Return the weights of a laid out encoder's classification layers that no file has.

    Those of another number of classes have another size, and count as unsaved, too.
    """
    unsaved = set()
    with saved.open() as find:
        for _, full, tensor in _list_laid_out(model):
            if {"classifier", "pooler"}.isdisjoint(full.split(".")):
                continue
            source = _find_source(full, model, saved)
            if source is None or list(tensor.shape) != find(source.names[0]).get_shape():
                unsaved.add(full)
    return frozenset(unsaved)


class WeightReader(NamedTuple):
    """How weights are read from files."""

    model: "PreTrainedModel"
    saved: WeightFiles
    dtype: torch.dtype
    """The type of parameters."""
    form: QuantisedForm | None = None
    """The form in which layers are held; None: as they are read."""
    learning: tuple[str, ...] = ()
    """Names of a segment's parts that learn, and are read in float32 whatever the type."""

    def fill(self, segment: nn.Module, layers: nn.Module) -> nn.Module | None:
        """Read a laid out segment's weights, in place; None if the files lack one.

        `layers` are the parts of it that are quantised.
        """
        listed = [
            (own, full, tensor, _find_source(full, self.model, self.saved))
            for own, full, tensor in _list_laid_out(segment)
        ]
        if any(tensor.is_meta and source is None for _, _, tensor, source in listed):
            return None
        packed = {(id(owner), name) for owner, name, _ in list_weights(layers)}
        with self.saved.open() as find:
            for own, full, tensor, source in listed:
                if source is not None:
                    owner, _, name = own.rpartition(".")
                    learns = own.partition(".")[0] in self.learning
                    dtype = torch.float32 if learns else self.dtype
                    dtype = dtype if isinstance(tensor, nn.Parameter) else tensor.dtype
                    read = source.read(full, dtype, find, self.model)
                    if read.shape != tensor.shape:
                        raise _explain_sizes(source, read, tensor)
                    module = segment.get_submodule(owner)
                    self._put(module, name, read, packed=(id(module), name) in packed)
        for module in segment.modules():
            module.__dict__.pop(PREFIX, None)
        return segment

    def _put(self, module: nn.Module, name: str, read: Tensor, *, packed: bool) -> None:
        if packed and self.form is not None:  # at once, so that one weight is in memory as it was
            hold_packed(module, name, read, self.form)
        elif name in module._parameters:
            module._parameters[name] = nn.Parameter(read)
        else:
            module._buffers[name] = read


def _explain_sizes(source: Source, read: Tensor, tensor: Tensor) -> ScenarioError:
    sizes = " and ".join("x".join(map(str, each.shape)) for each in (read, tensor))
    return ScenarioError("model.name", f"has {source.names[0]} of two sizes: {sizes}")


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
