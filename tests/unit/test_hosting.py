"""Which engine a scenario gets, and in which words; no Ray is started here."""

from importlib.machinery import ModuleSpec
from typing import Any

import pytest
from builders import scenario
from gists import gist, says

from simsplit import hosting
from simsplit.engine.engine_config import HostsConfig
from simsplit.engine.ray_pool import place_clients
from simsplit.errors import ScenarioError
from simsplit.hosting import choose_engine, count_hosts

OWN = {"heads": "per_client", "count": 6}
HANDED = "share ... next"
AUTO: dict[str, tuple[dict[str, Any], str]] = {
    "own heads": ({"clients": OWN}, "ray, 2 hosts of 1 thread (auto)"),
    "vanilla, own heads": (
        {"clients": OWN, "topology": "vanilla"},
        "ray, 2 hosts of 1 thread (auto)",
    ),
    "splitfed_v1": ({"aggregation": "splitfed_v1"}, "ray, 2 hosts of 1 thread (auto)"),
    "splitfed_v2": ({"aggregation": "splitfed_v2"}, "ray, 2 hosts of 1 thread (auto)"),
    "shared head": ({}, f"inline (auto: ... {HANDED}"),
    "own heads, one tail": ({"clients": {**OWN, "tail": "shared"}}, f"inline (auto: ... {HANDED}"),
    "one client": (
        {"clients": {"count": 1, "heads": "per_client"}},
        "inline (auto: ... one client)",
    ),
    "hosts of two threads": (
        {"clients": OWN, "engine": {"threads": 2}},
        "inline (auto: ... one host)",
    ),
    "asynchronous": (
        {
            "clients": OWN,
            "schedule": {"kind": "asynchronous", "rounds": 1},
            "network": {"device": "phone"},
        },
        "inline (auto: ... one after another)",
    ),
    "a GPU": (
        {"clients": OWN, "device": "cuda"},
        "inline (auto: ... GPU ... one process)",
    ),
    "so many hosts": (
        {"clients": OWN, "engine": {"hosts": 3, "threads": 2}},
        "ray, 3 hosts of 2 threads (auto)",
    ),
}


@pytest.mark.parametrize("case", AUTO)
def test_what_auto_takes_on_two_processors_and_why(case: str) -> None:
    changes, words = AUTO[case]
    given = scenario(**{**changes, "engine": {"kind": "auto", **changes.get("engine", {})}})
    hosts, message = choose_engine(given, available=2)
    assert says(message, words)
    assert (hosts is None) == words.startswith("inline")


def test_vanilla_has_no_tail_to_hand_round() -> None:
    """`tail: shared` says nothing where the server holds the tail."""
    clients = {**OWN, "tail": "shared"}
    given = scenario(clients=clients, topology="vanilla", engine="auto")
    assert choose_engine(given, available=2)[1] == "ray, 2 hosts of 1 thread (auto)"


def test_without_processors_to_spare_auto_stays_inline() -> None:
    given = scenario(clients=OWN, engine="auto")
    hosts, message = choose_engine(given, available=1)
    assert (hosts, says(message, "inline (auto: ... one host)")) == (None, True)


def test_what_is_asked_for_is_taken() -> None:
    assert choose_engine(scenario(), available=8) == (None, "inline")
    asked = scenario(engine="ray")  # though nothing is gained by it
    assert choose_engine(asked, available=2) == (asked.engine, "ray, 2 hosts of 1 thread")
    assert choose_engine(asked, available=1)[1] == "ray, 1 host of 1 thread"


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> ModuleSpec | None:
        assert name == "ray"

    monkeypatch.setattr(hosting, "find_spec", find_nothing)
    auto = scenario(clients=OWN, engine="auto")
    hosts, message = choose_engine(auto, available=2)
    assert (hosts, says(message, "inline (auto: Ray")) == (None, True)
    with pytest.raises(ScenarioError, match=r"scenario\.engine\.kind:.*ray.*inline"):
        choose_engine(scenario(engine="ray"), available=2)
    assert choose_engine(scenario(), available=2) == (None, "inline")


@pytest.mark.parametrize(
    ("hosts", "threads", "clients", "processors", "number"),
    [
        ("auto", 1, 10, 4, 4),
        ("auto", 2, 10, 5, 2),
        ("auto", 8, 10, 4, 1),
        ("auto", 1, 3, 16, 3),
        (6, 1, 10, 2, 6),
        (6, 1, 4, 2, 4),
    ],
)
def test_how_many_hosts(
    hosts: Any, threads: int, clients: int, processors: int, number: int
) -> None:
    assert count_hosts(HostsConfig(hosts=hosts, threads=threads), clients, processors) == number


@pytest.mark.parametrize("hosts", [0, -1, 2.5, "many", True])
def test_a_number_of_hosts_that_cannot_be(hosts: object) -> None:
    message = r"scenario\.engine\.hosts:.*auto.* 1"
    with pytest.raises(ScenarioError, match=message):
        scenario(engine={"kind": "ray", "hosts": hosts})


def test_a_number_of_gpus_that_no_host_can_have() -> None:
    """Ray gives parts of one GPU, or whole ones."""
    with pytest.raises(ScenarioError, match=gist("scenario.engine.gpus_per_host: ... 1.5")):
        scenario(engine={"kind": "ray", "gpus_per_host": 1.5})


@pytest.mark.parametrize(
    ("samples", "hosts", "where"),
    [
        ([10, 10, 10, 10], 2, [0, 1, 0, 1]),
        ([5, 30, 10, 10], 2, [1, 0, 1, 1]),  # 30 beside 10 + 10 + 5
        ([1, 2, 3, 4, 5, 6], 3, [0, 1, 2, 2, 1, 0]),
        ([7, 0, 0, 0, 0], 2, [0, 1, 1, 1, 1]),  # clients without samples are dealt out as well
        ([3, 3], 4, [0, 1]),
    ],
)
def test_where_clients_are_placed(samples: list[int], hosts: int, where: list[int]) -> None:
    assert place_clients(samples, hosts) == where
