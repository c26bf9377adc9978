"""This module chooses the malicious clients and defines the fields that describe them."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from simsplit.config import MOST_PARTS, Config, join_configs
from simsplit.errors import ScenarioError
from simsplit.legs import ClientId
from simsplit.poisons import POISONS, PoisonConfig
from simsplit.seeds import numpy_rng_for

if TYPE_CHECKING:
    AnyPoison = PoisonConfig
else:
    AnyPoison = join_configs(POISONS.values())

FIELD = "clients.malicious"
TENTH = 0.1


class MaliciousConfig(Config):
    """Which clients are malicious, and what they do."""

    fraction: float | None = Field(default=None, ge=0, lt=1)
    """Share of all clients that are malicious, at least one, drawn by the seed; 0: none, but attack
    success is measured; null: 0.1, unless `ids` names them."""
    ids: tuple[ClientId, ...] | None = None
    """Numbers of the malicious clients, instead of `fraction`."""
    poison: tuple[AnyPoison, ...] = Field(min_length=1, max_length=MOST_PARTS)
    """Poisons of every malicious client, applied in this order."""

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        if self.fraction is not None and self.ids is not None:
            raise ValueError("fraction: excludes ids; leave out one of them")
        return self

    @property
    def has_aim(self) -> bool:
        """Whether a poison has an aim, so that attack success is measured."""
        return any(poison.aims for poison in self.poison)

    def choose(self, count: int, seed: int, trusted: Collection[ClientId] = ()) -> list[ClientId]:
        """Choose the malicious clients among `count`; trusted clients are never drawn."""
        if self.ids is not None:
            self._refuse_wrong_ids(count, trusted)
            return sorted(self.ids)
        fraction = TENTH if self.fraction is None else self.fraction
        wanted = max(1, round(fraction * count)) if fraction else 0
        others = [client for client in range(count) if client not in trusted]
        if wanted >= len(others) and wanted:
            among = f"{count} clients" + (f", {len(trusted)} of them trusted" if trusted else "")
            raise ScenarioError(
                f"{FIELD}.fraction", f"{fraction:g} leaves no honest client among {among}"
            )
        # a prefix of one permutation: a larger fraction adds clients and keeps the others
        drawn = numpy_rng_for(seed, "malicious").permutation(len(others))[:wanted]
        return sorted(others[index] for index in drawn)

    def _refuse_wrong_ids(self, count: int, trusted: Collection[ClientId]) -> None:
        ids = self.ids or ()
        for client in ids:
            if not 0 <= client < count:
                raise ScenarioError(
                    f"{FIELD}.ids", f"must be clients between 0 and {count - 1}, got {client}"
                )
            if client in trusted:
                raise ScenarioError(
                    f"{FIELD}.ids", f"must not name client {client}, a detector's root"
                )
        if len(set(ids)) < len(ids):
            raise ScenarioError(f"{FIELD}.ids", f"must name each client once, got {list(ids)}")
        if len(ids) == count:
            raise ScenarioError(f"{FIELD}.ids", f"leaves no honest client among {count}")
