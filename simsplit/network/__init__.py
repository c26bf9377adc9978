"""This room simulates time: the speed of devices and links, and how long a round takes on them."""

from simsplit.network.clock import (
    ClientWork,
    Flops,
    Order,
    choose_order,
    compute_round_times,
    list_stages,
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
    "ClientWork",
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
    "choose_order",
    "compute_round_times",
    "count_flops",
    "list_stages",
    "play",
]
