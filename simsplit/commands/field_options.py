"""An option that is the name of a scenario's field is answered with how that field is set."""

import inspect
from collections.abc import Callable, Collection, Iterator
from difflib import get_close_matches
from typing import Any

import click
from typer.core import TyperCommand

_PLACES = {
    "clients": "clients.count",
    "lr": "train.client.lr",
    "batch_size": "train.batch_size",
}
"""Words that people use for a field of another name, or of several parts."""


class CommandOfFields(TyperCommand):
    """A command that knows the scenario's fields, and says how one is set."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments; say which field an unknown option may have meant."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            known = [word for each in self.params for word in each.opts]
            if (field := find_field(error.option_name, known)) is None:
                raise
            raise click.UsageError(
                f"No such option '{error.option_name}'. A field of the scenario is set by "
                f"--set {field}=VALUE.",
                ctx,
            ) from None


def takes_fields(command: Callable[..., None]) -> bool:
    """Return whether a command has the option --set."""
    return "set_" in inspect.signature(command).parameters


def find_field(option: str, known: Collection[str] | None = None) -> str | None:
    """Return the field of a scenario that an option's name may mean: the outermost of that name.

    A misspelt name means the nearest field, unless one of the `known` options is nearer.
    """
    from simsplit.scenario import Scenario

    name = option.lstrip("-").replace("-", "_")
    if name in _PLACES:
        return _PLACES[name]
    shipped = Scenario().model_dump(mode="json")
    found = [field for field in _list_fields(shipped, "") if field.rpartition(".")[2] == name]
    if not found and known is not None:
        own = [word.lstrip("-").replace("-", "_") for word in known]
        names = {*_PLACES, *(field.rpartition(".")[2] for field in _list_fields(shipped, ""))}
        # an option of the command's own comes first: a field is meant only if it is nearer
        nearest = get_close_matches(name, [*own, *sorted(names)], n=1)
        return find_field(nearest[0]) if nearest and nearest[0] not in own else None
    return min(found, key=lambda field: field.count("."), default=None)


def _list_fields(values: dict[str, Any], above: str) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _list_fields(value, f"{above}{name}.")
        else:
            yield above + name
