import math
from collections import Counter

import pytest
import yaml
from gists import says
from pydantic import ValidationError

from simsplit.config import Config
from simsplit.legs import Leg
from simsplit.network.profiles import DEVICES, LINKS, NetworkConfig, Rates
from simsplit.scenario.messages import explain


class Holder(Config):
    network: NetworkConfig = NetworkConfig()


def mistake(**network):
    values = {"network": network}
    with pytest.raises(ValidationError) as error:
        Holder.model_validate(values)
    return str(explain(error.value, Holder, values))


def test_named_profiles_become_rates():
    network = NetworkConfig(device="phone", link="lte")
    (rates,) = network.draw_rates(1, seed=0)
    lte = LINKS["lte"]
    assert rates.flops_per_s == DEVICES["phone"].gflops * 1e9
    assert rates.up_bytes_per_s == lte.up_mbps * 125_000
    assert rates.down_bytes_per_s == lte.down_mbps * 125_000
    assert rates.latency_s == pytest.approx(lte.latency_ms / 1000)


def test_figures_of_ones_own():
    network = NetworkConfig(gflops=3, up_mbps=8, down_mbps=80, latency_ms=5)
    assert network.draw_rates(2, seed=0) == [Rates(3e9, 1e6, 1e7, 0.005)] * 2
    (near,) = NetworkConfig(link="lte", latency_ms=0).draw_rates(1, seed=0)
    assert near.latency_s == 0
    assert near.up_bytes_per_s == LINKS["lte"].up_mbps * 125_000


@pytest.mark.parametrize("network", [
    NetworkConfig(),
    NetworkConfig.model_validate({"gflops": 3.5, "link": {"lan": 3, "wan": 1}}),
])  # fmt: skip
def test_it_is_read_back_as_it_was_written(network):
    text = yaml.safe_dump(network.model_dump(mode="json"))
    assert NetworkConfig.model_validate(yaml.safe_load(text)) == network


def test_a_mixtures_shares():
    shares = {"phone": 7, "laptop": 2, "gpu": 1}
    rates = NetworkConfig.model_validate({"device": shares}).draw_rates(1000, seed=1)
    counts = Counter(rate.flops_per_s / 1e9 for rate in rates)
    for name, share in shares.items():
        expected = 100 * share
        spread = math.sqrt(expected * (1 - share / 10))
        assert abs(counts[DEVICES[name].gflops] - expected) < 4 * spread
    assert sum(counts.values()) == 1000


def test_devices_and_links_are_drawn_apart():
    mixed = {"device": {"phone": 1, "gpu": 1}, "link": {"lte": 1, "lan": 1}}
    rates = NetworkConfig.model_validate(mixed).draw_rates(400, seed=1)
    assert len({(rate.flops_per_s, rate.up_bytes_per_s) for rate in rates}) == 4


def test_a_client_is_the_same_beside_any_others():
    network = NetworkConfig.model_validate({"device": {"phone": 1, "gpu": 1}, "spread": 0.5})
    many = network.draw_rates(100, seed=4)
    assert network.draw_rates(10, seed=4) == many[:10]
    assert network.draw_rates(100, seed=5) != many
    assert len({rate.flops_per_s for rate in many}) == 100


def test_the_spread_is_lognormal_with_median_1_and_leaves_the_mixture_alone():
    narrow = NetworkConfig.model_validate({"device": {"phone": 1, "gpu": 1}}).draw_rates(
        1000, seed=2
    )
    wide = NetworkConfig.model_validate(
        {"device": {"phone": 1, "gpu": 1}, "spread": 0.5}
    ).draw_rates(1000, seed=2)  # fmt: skip
    for name in ("flops_per_s", "up_bytes_per_s"):
        logs = [
            math.log(getattr(a, name) / getattr(b, name)) for a, b in zip(wide, narrow, strict=True)
        ]
        mean = sum(logs) / 1000
        assert abs(mean) < 4 * 0.5 / math.sqrt(1000)
        deviation = math.sqrt(sum((log - mean) ** 2 for log in logs) / 1000)
        assert deviation == pytest.approx(0.5, rel=0.1)
    # a slow link is slow both ways, and no further away
    ratios = {round(rate.down_bytes_per_s / rate.up_bytes_per_s, 6) for rate in wide}
    assert ratios == {LINKS["wifi"].down_mbps / LINKS["wifi"].up_mbps}
    assert {rate.latency_s for rate in wide} == {0.01}


@pytest.mark.parametrize(
    ("leg", "seconds"),
    [
        (Leg.SMASHED, 3 * 0.5 + 100 / 10),
        (Leg.FEATURES_GRAD, 3 * 0.5 + 100 / 10),
        (Leg.HANDOVER, 3 * 0.5 + 100 / 10),
        (Leg.LABELS, 100 / 10),
        (Leg.FEATURES, 3 * 0.5 + 100 / 40),
        (Leg.SMASHED_GRAD, 3 * 0.5 + 100 / 40),
        (Leg.BROADCAST, 3 * 0.5 + 100 / 40),
    ],
)
def test_a_transfer_is_latency_and_bytes_over_the_directions_bandwidth(leg, seconds):
    rates = Rates(flops_per_s=1, up_bytes_per_s=10, down_bytes_per_s=40, latency_s=0.5)
    assert rates.compute_transfer_s(leg, packets=3, nbytes=100) == pytest.approx(seconds)
    assert rates.compute_transfer_s(leg, 0, 0) == 0


@pytest.mark.parametrize(
    ("network", "gist"),
    [
        ({"device": "fone"}, "network.device: ... 'fone' ... 'phone' ... edge"),
        ({"link": "wify"}, "network.link: ... 'wify' ... 'wifi' ... lte"),
        ({"device": {"phone": 0.5, "labtop": 0.5}}, "'labtop' ... 'laptop'"),
        ({"device": {"phone": 0}}, "'phone' ... above 0 ... 0"),
        ({"device": {"phone": -0.5, "gpu": 1}}, "'phone' ... above 0"),
        ({"device": {"phone": "much"}}, "'phone' ... above 0"),
        ({"device": {"phone": True}}, "'phone' ... above 0 ... True"),
        ({"device": {"phone": math.nan}}, "'phone' ... above 0"),
        ({"device": {"phone": math.inf}}, "'phone' ... above 0"),
        ({"device": {}}, "network.device: got {}; allowed: edge, phone"),
        ({"device": 5}, "5 ... edge, phone, laptop, workstation, gpu"),
        ({"gflops": 0}, "network.gflops: ... 0 ... 0"),
        ({"latency_ms": -1}, "network.latency_ms: ... 0 ... -1"),
        ({"spread": -1}, "network.spread: ... 0 ... -1"),
        ({"server": {"slots": 0}}, "network.server.slots: ... 1 ... 0"),
    ],
)
def test_mistakes_name_what_there_is(network, gist):
    assert says(mistake(**network), gist)


def test_an_editor_learns_the_names():
    text = str(Holder.model_json_schema())
    for name in (*DEVICES, *LINKS):
        assert f"'{name}'" in text
