"""This room simulates time: the speed of devices and links, and how long a round takes on them."""

from simsplit.network.clock import (
    Flops,
    Order,
    Work,
    list_stages,
    order_of,
    round_times,
)
from simsplit.network.events import ClientTimes, RoundTimes, Stage, StepDone, play
from simsplit.network.flops import count_flops
from simsplit.network.profiles import (
    DEVICES,
    LINKS,
    PROFILES,
    DeviceConfig,
    LinkConfig,
    NetworkConfig,
    Rates,
    ServerConfig,
)

__all__ = [
    "DEVICES",
    "LINKS",
    "PROFILES",
    "ClientTimes",
    "DeviceConfig",
    "Flops",
    "LinkConfig",
    "NetworkConfig",
    "Order",
    "Rates",
    "RoundTimes",
    "ServerConfig",
    "Stage",
    "StepDone",
    "Work",
    "count_flops",
    "list_stages",
    "order_of",
    "play",
    "round_times",
]
