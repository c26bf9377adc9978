"""This module defines a scenario's engine, which runs the clients and does not change results."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, field_validator

from simsplit.config import Config, map_kinds


class InlineEngine(Config):
    """An engine that runs all clients in this process, one after another."""

    kind: Literal["inline"] = "inline"
    rest: Literal["memory", "disk"] = "memory"
    """Where clients with heads of their own rest between their turns. disk: in a file beside the
    run's checkpoints, which then refer to it."""
    stack: Literal["auto", "off"] | Annotated[int, Field(ge=2)] = "off"
    """How many clients of a cohort (fused, splitfed_v1) train as one tensor, with a row for each.
    auto: all of them, if that is faster in a first measurement. off: one after another. Losses then
    differ from those of one after another by rounding alone; bytes, counts and draws are equal.
    Under splitfed_v1 the server's copies of the trunk are stacked too."""

    @field_validator("stack", mode="before")
    @classmethod
    def _check_stack(cls, value: object) -> object:
        # Checked here, since pydantic would report one error for each member of the union.
        value = "off" if value is False else value  # YAML reads a bare off as false
        if value not in ("auto", "off") and not (type(value) is int and value >= 2):
            raise ValueError(f"must be auto, off or a whole number from 2, got {value!r}")
        return value


class HostsConfig(Config):
    """The options of engines with hosts, Ray actors that run many clients each."""

    hosts: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Number of hosts. auto: as many as processors allow, at most one per client."""
    threads: int = Field(default=1, ge=1)
    """torch threads of each host; the scenario's `threads` sets those of the server."""
    address: str | None = None
    """Address of the Ray cluster to join: auto, host:port, or ray://host:port. Null: a local
    cluster is started."""
    gpus_per_host: float = Field(default=0, ge=0)
    """GPUs that Ray reserves per host. If above 0, hosts compute on their GPU."""

    @field_validator("hosts", mode="before")
    @classmethod
    def _check_hosts(cls, value: object) -> object:
        # Checked here, since pydantic would report one error for each member of the union.
        if value != "auto" and not (type(value) is int and value >= 1):
            raise ValueError(f"must be auto or a whole number from 1, got {value!r}")
        return value

    @field_validator("gpus_per_host")
    @classmethod
    def _check_gpus(cls, value: float) -> float:
        if value > 1 and value % 1:
            raise ValueError(
                f"must be a part of a GPU, such as 0.25, or a whole number, got {value}"
            )
        return value


class RayEngine(HostsConfig):
    """An engine that runs clients on several hosts at once, as Ray actors."""

    kind: Literal["ray"] = "ray"


class AutoEngine(HostsConfig):
    """An engine that uses Ray if it saves time, else this process; the run reports its choice."""

    kind: Literal["auto"] = "auto"


Engine = Annotated[InlineEngine | RayEngine | AutoEngine, Discriminator("kind")]
ENGINES: dict[str, type[Config]] = map_kinds(Engine)
