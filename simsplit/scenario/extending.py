"""Configs are extended here so that they accept plugins' kinds.

A union of parts, such as the sources of `data`, is recognised by its members wherever it is used
in a scenario. Each config on the way to it is replaced by a subclass; a config that nothing joins
is kept. So types, defaults, the schema and errors are those of one model.
"""

import copy
from collections.abc import Mapping
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin

from pydantic import create_model
from pydantic.fields import FieldInfo

from simsplit.config import Config, join_configs
from simsplit.data.data_config import TextSource
from simsplit.data.texts import TextTable
from simsplit.plugins import PARTS, Plugins
from simsplit.plugins.parts import WORDS


class _Slot(NamedTuple):
    """A union that plugins can join."""

    members: frozenset[Any]
    name: str
    bases: tuple[type[Config], ...]
    """The base classes of parts that may join the union."""


_TEXTS = frozenset(get_args(get_args(TextSource)[0]))
_SLOTS = (
    *(_Slot(frozenset(part.shipped.values()), name, part.bases) for name, part in PARTS.items()),
    _Slot(_TEXTS, "SOURCES", (TextTable,)),
)


C = TypeVar("C", bound=Config)


def extend(model: type[C], plugins: Plugins) -> type[C]:
    """Return the model with plugins' kinds in its unions and in those of its parts."""
    return cast("type[C]", _get_extension(plugins).extend_config(model))


class _Extension:
    """The configs that are extended for one set of plugins, each once."""

    def __init__(self, plugins: Plugins) -> None:
        self.plugins = plugins
        self.made: dict[type[Config], type[Config]] = {}

    def extend_config(self, model: type[Config]) -> type[Config]:
        """Return the model, or a subclass of it if some of its fields accept plugins' kinds."""
        if model not in self.made:
            self.made[model] = model  # ends the recursion if the model contains itself
            fields = {
                name: (annotation, self._copy_field(field))
                for name, field in model.model_fields.items()
                if (annotation := self._extend_annotation(field.annotation)) is not field.annotation
            }
            if fields:
                self.made[model] = self._derive(model, fields)
        return self.made[model]

    def _derive(self, model: type[Config], fields: Mapping[str, Any]) -> type[Config]:
        """Create a subclass of the model with these fields, which other processes can unpickle."""
        made: Any = create_model(
            model.__name__,
            __base__=model,
            __doc__=model.__doc__,
            __module__=model.__module__,
            **cast("dict[str, Any]", fields),
        )
        plugins = self.plugins
        if hasattr(made, "plugins"):  # only the scenario's own config has them
            made.plugins = plugins

        def reduce_config(self: Config) -> tuple[Any, ...]:
            return _revive, (model, plugins, self.__getstate__())

        setattr(made, "__reduce__", reduce_config)  # noqa: B010 - no process can import the class
        return cast("type[Config]", made)

    def _copy_field(self, field: FieldInfo) -> FieldInfo:
        """Return a copy of the field whose default is an instance of the extended config."""
        made = copy.copy(field)
        made.default = self._convert_default(field.default)
        return made

    def _convert_default(self, value: Any) -> Any:  # noqa: ANN401 - any default
        """Return a default as an instance of the extended config, with the same values."""
        made = self.made.get(type(value))
        if made in (None, type(value)):
            return value
        fields = {name: self._convert_default(getattr(value, name)) for name in made.model_fields}
        # Constructed, since validation would mark every field as set by the user.
        return made.model_construct(value.model_fields_set, **fields)

    def _extend_annotation(self, given: Any) -> Any:  # noqa: ANN401 - any annotation
        """Return the annotation with plugins' configs in it; the same object if none joins it."""
        if isinstance(given, type) and issubclass(given, Config):
            joining = self._list_joining((given,))
            own = self.extend_config(given)
            return join_configs([own, *joining]) if joining else own
        args = get_args(given)
        if get_origin(given) is Literal:  # plugins add names to some, such as topologies'
            names = self.plugins.of(WORDS[args]) if args in WORDS else ()
            return Literal[(*args, *names)] if names else given
        inner = tuple(map(self._extend_annotation, args))
        joining = self._list_joining(args)
        if not joining and all(one is other for one, other in zip(inner, args, strict=True)):
            return given
        return _rebuild(given, (*inner, *joining))

    def _list_joining(self, members: tuple[Any, ...]) -> list[type[Config]]:
        """Return the plugins' configs that join a union of these members."""
        try:
            slot = next((slot for slot in _SLOTS if slot.members == frozenset(members)), None)
        except TypeError:  # an annotation's members need not be hashable
            return []
        if slot is None:
            return []
        own = self.plugins.of(slot.name).values()
        return [self.extend_config(each) for each in own if issubclass(each, slot.bases)]


_get_extension = lru_cache(maxsize=32)(_Extension)
"""Cached, since configs are only equal if they are of the same class."""


def _rebuild(given: Any, args: tuple[Any, ...]) -> Any:  # noqa: ANN401 - an annotation
    """Return an annotation of the same form with other arguments."""
    origin = get_origin(given)
    if hasattr(given, "__metadata__"):
        return Annotated[(args[0], *given.__metadata__)]
    if origin in (Union, UnionType):
        return Union[args]  # noqa: UP007 - of a tuple
    return cast("Any", origin)[args]


def _revive(model: type[Config], plugins: Plugins, state: dict[Any, Any]) -> Config:
    """Return the config that another process pickled."""
    made = extend(model, plugins)
    config = made.__new__(made)
    config.__setstate__(state)
    return config
