"""Which engine a scenario asks for. What comes out of a run does not depend on it."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, field_validator

from simsplit.config import Config


class InlineEngine(Config):
    """All clients in this process, one after another."""

    kind: Literal["inline"] = "inline"


class HostsConfig(Config):
    """Clients on Ray actors, many on each."""

    hosts: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Number of hosts; auto: as processors allow, at most one per client."""
    threads: int = Field(default=1, ge=1)
    """torch threads of each host; the scenario's `threads` are the server's."""
    address: str | None = None
    """Ray cluster to join: auto, host:port, or ray://host:port; null: start a local one."""
    gpus_per_host: float = Field(default=0, ge=0)
    """GPUs that Ray reserves per host; above 0, hosts compute on their GPU."""

    @field_validator("hosts", mode="before")
    @classmethod
    def _auto_or_some(cls, value: object) -> object:
        if value != "auto" and not (type(value) is int and value >= 1):
            raise ValueError(f"must be auto or a whole number from 1, got {value!r}")
        return value


class RayEngine(HostsConfig):
    """Clients on several hosts at once, as Ray actors."""

    kind: Literal["ray"] = "ray"


class AutoEngine(HostsConfig):
    """Ray if it saves time, else inline; the run says which, and why."""

    kind: Literal["auto"] = "auto"


Engine = Annotated[InlineEngine | RayEngine | AutoEngine, Discriminator("kind")]
ENGINES: dict[str, type[Config]] = {
    "inline": InlineEngine,
    "ray": RayEngine,
    "auto": AutoEngine,
}
