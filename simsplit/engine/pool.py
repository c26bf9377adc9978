"""Where clients live. A pool calls a method on several clients and gives back their answers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from simsplit.packets import ClientId
from simsplit.parties.client import Client


class Pool(ABC):
    """Clients, wherever they are."""

    @abstractmethod
    def call(self, method: str, args: Mapping[ClientId, tuple[Any, ...]]) -> dict[ClientId, Any]:
        """Call `method` on each client named in `args`; answers by client, in that order."""

    def ask(self, client: ClientId, method: str, *args: Any) -> Any:  # noqa: ANN401 - as `call`
        """Call a method on one client."""
        return self.call(method, {client: args})[client]


class InlinePool(Pool):
    """Every client in this process; the reference that other pools must equal bit for bit."""

    def __init__(self, clients: Mapping[ClientId, Client]) -> None:
        self.clients = dict(clients)

    def ask(self, client: ClientId, method: str, *args: Any) -> Any:  # noqa: ANN401 - as `call`
        """Without the detour through dictionaries: this is every step's path."""
        return getattr(self.clients[client], method)(*args)

    def call(self, method: str, args: Mapping[ClientId, tuple[Any, ...]]) -> dict[ClientId, Any]:
        """One after another."""
        return {
            client: getattr(self.clients[client], method)(*values)
            for client, values in args.items()
        }
