"""Configs that take the kinds of plugins as well.

A union of parts (the sources of `data`, say) is found by its members, wherever in a scenario it
stands; every config on the way there is made anew as a subclass of itself, and what nothing joins
stays as it is. So types, defaults, the schema and the errors are those of one model.
"""

import copy
from collections.abc import Mapping
from functools import lru_cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from pydantic import Discriminator, create_model
from pydantic.fields import FieldInfo

from simsplit.config import Config
from simsplit.data.config import TextSource
from simsplit.data.texts import TextTable
from simsplit.plugins import PARTS, Plugins
from simsplit.plugins.parts import WORDS


class _Slot(NamedTuple):
    """A union that plugins can join."""

    members: frozenset[Any]
    name: str
    bases: tuple[type[Config], ...]
    """Of the parts that may join it."""


_TEXTS = frozenset(get_args(get_args(TextSource)[0]))
_SLOTS = (
    *(_Slot(frozenset(part.shipped.values()), name, part.bases) for name, part in PARTS.items()),
    _Slot(_TEXTS, "SOURCES", (TextTable,)),
)


C = TypeVar("C", bound=Config)


def extended(model: type[C], plugins: Plugins) -> type[C]:
    """The model with the kinds of plugins in its unions, and in those of its parts."""
    return cast("type[C]", _extension(plugins).config(model))


@lru_cache(maxsize=32)
def _extension(plugins: Plugins) -> "_Extension":
    return _Extension(plugins)


class _Extension:
    """All that is made anew for the same plugins: each config once."""

    def __init__(self, plugins: Plugins) -> None:
        self.plugins = plugins
        self.made: dict[type[Config], type[Config]] = {}

    def config(self, model: type[Config]) -> type[Config]:
        """The model, or a subclass of it where some of its fields take more."""
        if model not in self.made:
            self.made[model] = model  # should it hold itself
            fields = {
                name: (annotation, self._field(field))
                for name, field in model.model_fields.items()
                if (annotation := self._annotation(field.annotation)) is not field.annotation
            }
            if fields:
                self.made[model] = self._remade(model, fields)
        return self.made[model]

    def _remade(self, model: type[Config], fields: Mapping[str, Any]) -> type[Config]:
        made: Any = create_model(
            model.__name__,
            __base__=model,
            __doc__=model.__doc__,
            __module__=model.__module__,
            **cast("dict[str, Any]", fields),
        )
        plugins = self.plugins
        if hasattr(made, "plugins"):  # the scenario's, here and wherever it is revived
            made.plugins = plugins

        def reduced(self: Config) -> tuple[Any, ...]:
            return _revived, (model, plugins, self.__getstate__())

        setattr(made, "__reduce__", reduced)  # noqa: B010 - no other process could import the class
        return cast("type[Config]", made)

    def _field(self, field: FieldInfo) -> FieldInfo:
        """The same, its default one of the configs that are made here."""
        made = copy.copy(field)
        made.default = self._adopted(field.default)
        return made

    def _adopted(self, value: Any) -> Any:  # noqa: ANN401 - any default
        made = self.made.get(type(value))
        if made in (None, type(value)):
            return value
        fields = {name: self._adopted(getattr(value, name)) for name in made.model_fields}
        return made.model_construct(value.model_fields_set, **fields)

    def _annotation(self, given: Any) -> Any:  # noqa: ANN401 - any annotation
        """The annotation with what joins it; the very same one where nothing does."""
        if isinstance(given, type) and issubclass(given, Config):
            joining = self._joining((given,))
            return _union([self.config(given), *joining]) if joining else self.config(given)
        args = get_args(given)
        if get_origin(given) is Literal:
            return self._words(given, args)
        inner = tuple(map(self._annotation, args))
        joining = self._joining(args)
        if not joining and all(one is other for one, other in zip(inner, args, strict=True)):
            return given
        return _again(given, (*inner, *joining))

    def _words(self, given: Any, words: tuple[Any, ...]) -> Any:  # noqa: ANN401 - an annotation
        own = self.plugins.of(WORDS[words]) if words in WORDS else ()
        return Literal[(*words, *own)] if own else given

    def _joining(self, members: tuple[Any, ...]) -> list[type[Config]]:
        """The configs of plugins that belong among these."""
        try:
            slot = next((slot for slot in _SLOTS if slot.members == frozenset(members)), None)
        except TypeError:  # an annotation's members need not be hashable
            return []
        if slot is None:
            return []
        own = self.plugins.of(slot.name).values()
        return [self.config(each) for each in own if issubclass(each, slot.bases)]


def _again(given: Any, args: tuple[Any, ...]) -> Any:  # noqa: ANN401 - an annotation
    """An annotation of the same form, of other types."""
    origin = get_origin(given)
    if hasattr(given, "__metadata__"):
        return Annotated[(args[0], *given.__metadata__)]
    if origin in (Union, UnionType):
        return Union[args]  # noqa: UP007 - of a tuple
    return cast("Any", origin)[args]


def _union(configs: list[type[Config]]) -> Any:  # noqa: ANN401 - an annotation
    return Annotated[Union[tuple(configs)], Discriminator("kind")]  # noqa: UP007 - of a tuple


def _revived(model: type[Config], plugins: Plugins, state: dict[Any, Any]) -> Config:
    """A config as another process had it."""
    made = extended(model, plugins)
    config = made.__new__(made)
    config.__setstate__(state)
    return config
