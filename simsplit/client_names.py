"""Clients have names that people read: those of the scenario, or those that the data give.

Names are for tables, pictures and messages. Everything that computes knows clients by number, and
so does everything that crosses the cut, so neither a server nor an attack learns a name. Names come
from others' files: they are kept on one line, short, and without control characters.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from simsplit.errors import DataError, SimsplitError, format_list, suggest
from simsplit.foreign import strip_controls
from simsplit.legs import ClientId

LONGEST = 40
"""The most characters of a name."""
DEALT = "(client)"
"""The column of clients of data that were passed client by client; its values are no names."""


@dataclass(frozen=True)
class ClientNames:
    """The names of a run's clients, in their order; empty: clients have numbers alone."""

    names: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.names)

    def get(self, client: ClientId) -> str:
        """Return a client's name for a table, or its number.

        >>> ClientNames(("Bonn", "Graz")).get(1), ClientNames().get(1)
        ('Graz', '1')
        """
        return self.names[client] if 0 <= client < len(self.names) else str(client)

    def find(self, client: str) -> ClientId:
        """Return the number of a client that is given by name, or by its number.

        >>> ClientNames(("Bonn", "Graz")).find("Graz"), ClientNames().find("1")
        (1, 1)
        """
        if client in self.names:
            return self.names.index(client)
        if not (client.isdecimal() and client.isascii()):
            known = f" allowed: {format_list(self.names)}" if self.names else " give its number"
            raise SimsplitError(f"no client '{client}'{suggest(client, self.names) or ','}{known}")
        return int(client)

    def label(self, client: ClientId) -> str:
        """Return a client's name for a picture, or the word client and its number.

        >>> ClientNames(("Bonn", "Graz")).label(1), ClientNames().label(1)
        ('Graz', 'client 1')
        """
        return self.get(client) if self.names else f"client {client}"

    def describe(self, client: ClientId) -> str:
        """Return a client's number, and its name if it has one, for a message.

        >>> ClientNames(("Bonn", "Graz")).describe(1), ClientNames().describe(1)
        ('client 1 (Graz)', 'client 1')
        """
        return f"client {client}" + (f" ({self.get(client)})" if self.names else "")


NO_NAMES = ClientNames()


def clean_name(text: str) -> str:
    """Return a name on one line, without control characters, cut to its longest length.

    >>> clean_name(" St.  Mary ")
    'St. Mary'
    """
    words = " ".join(strip_controls(text.replace("\t", " ").replace("\n", " ")).split())
    return words if len(words) <= LONGEST else words[: LONGEST - 1] + "…"


def find_repeated(names: Sequence[str]) -> tuple[int, int] | None:
    """Return the places of a name that occurs twice; None if all differ."""
    first: dict[str, int] = {}
    for place, name in enumerate(names):
        if name in first:
            return first[name], place
        first[name] = place
    return None


def read_names(facts: Mapping[str, object]) -> ClientNames:
    """Return the names in a run's `data.json`, which may be another's: cleaned once more."""
    names = facts.get("clients")
    assert names is None or isinstance(names, list), "its shape was checked"
    return ClientNames(tuple(clean_name(str(each)) for each in names or ()))


def name_owners(column: str | None, values: Iterable[object]) -> tuple[str, ...]:
    """Return clients' names, from the sorted values of the column that names them.

    A value that is a number gets the column's name in front, so that it is not taken for a client's
    number. Values that are the clients' numbers are no names, and neither are those of DEALT. Raise
    DataError if two values are alike once they are cleaned.

    >>> name_owners("hospital", ["10", "Graz"])
    ('hospital 10', 'Graz')
    """
    if column is None or column == DEALT:
        return ()
    texts = [str(value) for value in values]
    if texts == [str(number) for number in range(len(texts))]:
        return ()
    names = tuple(clean_name(f"{column} {t}" if _is_number(t) else t) or "(blank)" for t in texts)
    if (twice := find_repeated(names)) is not None:
        raise DataError(
            f"data.source.client: column '{column}' has two clients called '{names[twice[0]]}', "
            f"once control characters and what is beyond {LONGEST} characters are left out; "
            "rename one"
        )
    return names


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
