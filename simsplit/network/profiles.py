"""This module defines the speed of devices and links: named profiles, a user's numbers, mixtures.

The named profiles are assumptions: round numbers close to measured ones, so that a simulated time
has the right order of magnitude. A device's speed is its sustained fp32 training throughput, far
below a data sheet's peak; a multiply-add counts as two operations:

- edge: a single-board computer. HPL in double precision measures 8 GFLOPS on a Raspberry Pi 4;
  single precision doubles that, and training reaches about half of it.
- phone: training on the CPU of Snapdragon 8 phones runs at 15 to 30 GFLOPS (Das et al., "Enabling
  On-Device Smartphone GPU based Training", 2022).
- laptop: four cores. ResNet-18 in PyTorch trains at 35 GFLOPS a core on a server's AVX2 core, less
  on a laptop's under load.
- workstation: 16 such cores.
- gpu: ResNet-50 trains at about 400 images a second in fp32 on a V100, and takes 25 GFLOP each.

A link's rates are measured by users, at the application; its latency is one way, half a ping:

- lte: the United States' median over mobile networks in 2020 (Ookla: 29 Mbps down, 6 up).
- 5g: the worldwide median in 2021 (Ookla: 166 Mbps down, 21 up).
- wifi: behind a home's fixed line, at the least that the FCC calls broadband (100 down, 20 up).
- wan: sites on two continents, with 100 Mbps of a leased line.
- lan: gigabit Ethernet in one building.
- datacentre: 10-gigabit Ethernet in one hall.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Annotated, Any, Literal, TypeVar, overload

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from simsplit.config import Config
from simsplit.errors import suggest
from simsplit.legs import Leg, is_crowd
from simsplit.seeds import numpy_rng_for


class DeviceConfig(Config):
    """Speed of a client's device."""

    gflops: float = Field(gt=0)
    """Sustained training throughput, in 1e9 floating-point operations a second."""


class LinkConfig(Config):
    """A client's link to the server."""

    up_mbps: float = Field(gt=0)
    """Rate towards the server, in 1e6 bits a second."""
    down_mbps: float = Field(gt=0)
    """Rate towards the client, in 1e6 bits a second."""
    latency_ms: float = Field(ge=0, allow_inf_nan=False)
    """One-way latency of every message, in milliseconds."""


class ServerConfig(Config):
    """The server that all clients share."""

    gflops: float = Field(default=10_000.0, gt=0)
    """Training throughput of one slot, in 1e9 floating-point operations a second."""
    slots: int = Field(default=1, ge=1)
    """Number of clients served at once, each at full speed, if each has a trunk copy."""


DeviceName = Literal["edge", "phone", "laptop", "workstation", "gpu"]
LinkName = Literal["lte", "5g", "wifi", "wan", "lan", "datacentre"]
Profile = TypeVar("Profile", DeviceConfig, LinkConfig)
Choice = TypeVar("Choice")
Share = Annotated[float, Field(gt=0, allow_inf_nan=False)]

DEVICES: dict[DeviceName, DeviceConfig] = {
    "edge": DeviceConfig(gflops=10),
    "phone": DeviceConfig(gflops=20),
    "laptop": DeviceConfig(gflops=100),
    "workstation": DeviceConfig(gflops=500),
    "gpu": DeviceConfig(gflops=10_000),
}
LINKS: dict[LinkName, LinkConfig] = {
    "lte": LinkConfig(up_mbps=6, down_mbps=30, latency_ms=25),
    "5g": LinkConfig(up_mbps=20, down_mbps=160, latency_ms=15),
    "wifi": LinkConfig(up_mbps=20, down_mbps=100, latency_ms=10),
    "wan": LinkConfig(up_mbps=100, down_mbps=100, latency_ms=40),
    "lan": LinkConfig(up_mbps=1_000, down_mbps=1_000, latency_ms=0.2),
    "datacentre": LinkConfig(up_mbps=10_000, down_mbps=10_000, latency_ms=0.05),
}
PROFILES: dict[str, Mapping[Any, DeviceConfig] | Mapping[Any, LinkConfig]] = {
    "devices": DEVICES,
    "links": LINKS,
}
MEANINGS: dict[str, str] = {
    "edge": "a single-board computer, such as a Raspberry Pi 4",
    "phone": "a phone's processor",
    "laptop": "four cores",
    "workstation": "sixteen cores",
    "gpu": "a V100 in fp32",
    "lte": "a mobile network",
    "5g": "a mobile network",
    "wifi": "behind a home's fixed line",
    "wan": "between two continents, over leased lines",
    "lan": "gigabit Ethernet in one building",
    "datacentre": "10-gigabit Ethernet in one hall",
}


@dataclass(frozen=True, slots=True)
class Rates:
    """The speed of one client's device and link."""

    flops_per_s: float
    up_bytes_per_s: float
    down_bytes_per_s: float
    latency_s: float

    def compute_transfer_s(self, leg: Leg, packets: float, nbytes: float) -> float:
        """Return the seconds that packets of one leg take, one after another.

        Labels travel with the smashed data, so they have no latency of their own.
        """
        bytes_per_s = self.up_bytes_per_s if leg.up else self.down_bytes_per_s
        latency_s = 0.0 if leg is Leg.LABELS else packets * self.latency_s
        return latency_s + nbytes / bytes_per_s

    def compute_received_s(self, packets: float, nbytes: float) -> float:
        """Return the seconds that packets from other clients take down this client's link."""
        return packets * self.latency_s + nbytes / self.down_bytes_per_s


class NetworkConfig(Config):
    """Assumed speeds of devices, links and the server, for simulated time."""

    device: DeviceName | dict[DeviceName, Share] = "laptop"
    """Name of every client's device, or shares of several, such as `{phone: 0.7, laptop: 0.3}`."""
    link: LinkName | dict[LinkName, Share] = "wifi"
    """Name of every client's link, or shares of several, such as `{lte: 0.5, wifi: 0.5}`."""
    gflops: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Training throughput of every device, in 1e9 operations a second; null: that of `device`."""
    up_mbps: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Rate of every link towards the server, in 1e6 bits a second; null: that of `link`."""
    down_mbps: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Rate of every link towards the client, in 1e6 bits a second; null: that of `link`."""
    latency_ms: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """One-way latency of every message, in milliseconds; null: that of `link`."""
    server: ServerConfig = ServerConfig()
    """Speed of the server, and the number of clients that it serves at once."""
    spread: float = Field(default=0.0, ge=0, le=10, allow_inf_nan=False)
    """How much clients differ: sigma of two lognormal factors of median 1, one on a client's device
    and one on its link; 0: not at all."""

    @field_validator("device", "link", mode="before")
    @classmethod
    def _check_names(cls, value: object, info: ValidationInfo) -> object:
        return _check_choice(value, PROFILES[f"{info.field_name}s"])

    def draw_rates(self, count: int, seed: int) -> Sequence[Rates]:
        """Draw each client's rates by seed; they do not depend on the number of clients.

        A crowd's are drawn when they are asked for.
        """
        devices, links = _list_choices(self.device, DEVICES), _list_choices(self.link, LINKS)
        draw = partial(self._draw_rates, devices, links, seed)
        return CrowdRates(draw, count) if is_crowd(count) else [*map(draw, range(count))]

    def draw_devices(self, count: int, seed: int) -> list[DeviceName]:
        """Draw the name of each client's device, as `draw_rates` does."""
        names: Mapping[DeviceName, float]
        names = {self.device: 1.0} if isinstance(self.device, str) else self.device
        if len(names) == 1:
            return [*names] * count
        weighed = list(names.items())
        rngs = (numpy_rng_for(seed, "network", client) for client in range(count))
        return [_pick(weighed, rng.random(2)[0]) for rng in rngs]

    def _draw_rates(
        self,
        devices: Sequence[tuple[DeviceConfig, float]],
        links: Sequence[tuple[LinkConfig, float]],
        seed: int,
        client: int,
    ) -> Rates:
        rng = numpy_rng_for(seed, "network", client)
        # all are drawn even if unused, so that a fixed device does not change a client's link
        device_draw, link_draw = rng.random(2)
        compute, transfer = np.exp(self.spread * rng.standard_normal(2))
        device, link = _pick(devices, device_draw), _pick(links, link_draw)
        latency_ms = link.latency_ms if self.latency_ms is None else self.latency_ms
        return Rates(
            flops_per_s=float(compute * (self.gflops or device.gflops) * 1e9),
            up_bytes_per_s=float(transfer * (self.up_mbps or link.up_mbps) * 1e6 / 8),
            down_bytes_per_s=float(transfer * (self.down_mbps or link.down_mbps) * 1e6 / 8),
            latency_s=latency_ms / 1e3,
        )


class CrowdRates(Sequence[Rates]):
    """The rates of many clients, each drawn when it is first asked for."""

    def __init__(self, draw: Callable[[int], Rates], count: int) -> None:
        """Take what draws a client's rates, and the number of clients."""
        self._draw, self._count = draw, count
        self._known: dict[int, Rates] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, client: int) -> Rates: ...
    @overload
    def __getitem__(self, client: slice) -> list[Rates]: ...
    def __getitem__(self, client: int | slice) -> Rates | list[Rates]:
        """Return a client's rates, or those of several."""
        if isinstance(client, slice):
            return [self[each] for each in range(self._count)[client]]
        if client not in self._known:
            self._known[client] = self._draw(range(self._count)[client])
        return self._known[client]


def _list_choices(
    chosen: str | Mapping[Any, float], known: Mapping[Any, Profile]
) -> list[tuple[Profile, float]]:
    """Return the chosen profiles with their shares, which need not sum to 1."""
    if isinstance(chosen, str):
        return [(known[chosen], 1.0)]
    return [(known[name], share) for name, share in chosen.items()]


def _pick(choices: Sequence[tuple[Choice, float]], draw: float) -> Choice:
    """Return the choice on which a draw from [0, 1) falls."""
    ends = list(accumulate(share for _, share in choices))
    # without the last end: rounding could place a draw beyond it
    return choices[bisect_right(ends[:-1], draw * ends[-1])][0]


def _check_choice(value: object, known: Mapping[Any, Config]) -> object:
    """Return a choice of profiles unchanged; raise ValueError with what is allowed if invalid."""
    if isinstance(value, Mapping) and value:
        for name, share in value.items():
            _refuse_own_numbers(name, share)
            _refuse_unknown(name, known)
            number = isinstance(share, int | float) and not isinstance(share, bool)
            if not (number and 0 < share < math.inf):
                raise ValueError(f"the share of '{name}' must be a number above 0, got {share!r}")
        total, parts = sum(value.values()), all(share < 1 for share in value.values())
        if parts and not math.isclose(total, 1, rel_tol=1e-3):  # 2 and 1 are proportions
            raise ValueError(f"shares below 1 must sum to 1, got {total:g}; or write whole numbers")
    elif isinstance(value, str):
        _refuse_unknown(value, known)
    else:
        raise ValueError(f"got {value!r}; allowed: {_list_allowed(known)}")
    return value


def _refuse_own_numbers(name: object, value: object) -> None:
    """Raise ValueError for a speed in place of a profile's name."""
    if name in {*DeviceConfig.model_fields, *LinkConfig.model_fields}:
        raise ValueError(
            f"'{name}' is a speed, no profile; one's own stand beside it: network.{name}: {value}"
        )


def _refuse_unknown(name: object, known: Mapping[Any, Config]) -> None:
    if name not in known:
        hint = suggest(str(name), list(known)) or ","
        raise ValueError(f"unknown '{name}'{hint} allowed: {_list_allowed(known)}")


def _list_allowed(known: Mapping[Any, Config]) -> str:
    return f"{', '.join(known)}, or shares of them"
