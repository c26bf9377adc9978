"""Clients on hosts of their own give what they give in one process: every table, every weight."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plugins
import pytest
import torch
from builders import TINY, run_to_end
from commands import eventually
from comparing import assert_equal
from hosted import on_hosts, place_on
from texts import OF_PARTIES, text_scenario

from simsplit.data import Samples, prepare
from simsplit.engine.ray_pool import Hosts
from simsplit.experiment import Experiment
from simsplit.progress import Observer, RoundEnded
from simsplit.results import Run
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge
from simsplit.seeds import numpy_rng_for, rng_for

pytestmark = pytest.mark.ray

ADAM = {"kind": "adam", "lr": 2e-3}
OWN = {"heads": "per_client"}
PARALLEL = {"kind": "parallel", "rounds": 2}
AWAY = {"auxiliary": 0.2}
MALICIOUS = {"malicious": {"ids": [1], "poison": [{"kind": "badnets"}, {"kind": "tamper"}]}}
CASES: dict[str, dict[str, Any]] = {
    "shared head, momentum": {},
    "shared head, adam": {"train": {"client": ADAM, "server": ADAM}},
    "own moments": {"clients": {"handover": "weights"}, "train": {"client": ADAM}},
    "own heads": {"clients": OWN, "train": {"client": ADAM}},
    "own heads, in parts, recomputed": {
        "clients": OWN,
        "train": {"client": ADAM, "accumulate": 2, "checkpointing": True},
    },
    "own heads, client by client": {
        "clients": OWN,
        "schedule": {"kind": "per_client", "rounds": 2},
    },
    "own heads, one tail": {"clients": {**OWN, "tail": "shared"}},
    "own heads, vanilla": {"clients": OWN, "topology": "vanilla"},
    "shared head, vanilla": {"topology": "vanilla"},
    "parallel": {"clients": OWN, "schedule": PARALLEL},
    "parties": {
        "topology": "vertical",
        "clients": {"count": 4, "heads": "per_client"},
        "data": {"partition": {"kind": "parts", "parts": 4, "by": "patches"}},
        "model": {"kind": "mlp"},
        "cohort": {"availability": {"period": 2, "window": 1}},
        "vertical": {"absent": "last"},
        "method": [
            {"kind": "noise"},
            {"kind": "lightsplit", "ratio": 4, "lift": "learned", "by": "party 1"},
        ],
        "train": {"client": ADAM},
    },
    "splitfed_v1": {"aggregation": "splitfed_v1", "train": {"client": ADAM, "server": ADAM}},
    "splitfed_v1, moments reset": {
        "aggregation": {"kind": "splitfed_v1", "moments": "reset"},
        "train": {"server": ADAM},
    },
    "splitfed_v1, vanilla": {"aggregation": "splitfed_v1", "topology": "vanilla"},
    "splitfed_v1, own heads, some late": {
        "aggregation": "splitfed_v1",
        "clients": OWN,
        "network": {"device": {"phone": 0.5, "edge": 0.5}, "link": "lte"},
        "cohort": {"deadline_s": 0.5, "dropout": 0.3},
    },
    "noise with a guarantee, some drop out": {
        "model": {"learns": ["trunk"]},
        "method": [
            {"kind": "dp_forward", "epsilon": 4.0, "relative": False},
            {"kind": "dp_sgd", "relative": False},
        ],
        "cohort": {"dropout": 0.5},
    },
    "labels drawn once, gradients noised and split": {
        "data": {"source": {"kind": "sklearn", "name": "breast_cancer"}},
        "model": {"kind": "mlp", "widths": [8, 8, 8], "learns": ["head", "tail"]},
        "method": [
            {"kind": "randomised_response"},
            {"kind": "pslf"},
            {"kind": "distance_correlation", "alpha": 0.1},
            {"kind": "marvell"},
            {"kind": "max_norm"},
            {"kind": "private_backprop"},
        ],
    },
    "splitfed_v2 in few bits, some drop out": {
        "aggregation": {"kind": "splitfed_v2", "bits": 6},
        "cohort": {"dropout": 0.5, "fraction": 0.8},
    },
    "fused, some late": {
        "aggregation": "fused",
        "schedule": PARALLEL,
        "network": {"device": {"phone": 0.5, "edge": 0.5}, "link": "lte"},
        "cohort": {"deadline_s": 0.5},
    },
    "fused, vanilla": {"aggregation": "fused", "schedule": PARALLEL, "topology": "vanilla"},
    "asynchronous": {
        "clients": OWN,
        "schedule": {"kind": "asynchronous", "rounds": 2, "max_ahead": 2},
        "network": {"device": {"phone": 0.5, "laptop": 0.5}, "link": "wifi"},
    },
    "asynchronous, splitfed_v2": {
        "aggregation": "splitfed_v2",
        "schedule": {"kind": "asynchronous", "rounds": 2},
        "network": {"device": "phone", "link": "lte", "spread": 0.5},
    },
    "learned lift, int8, wcc": {
        "clients": OWN,
        "method": [
            {"kind": "lightsplit", "lift": "learned", "hidden": 32},
            {"kind": "cast", "to": "int8"},
            {"kind": "wcc"},
        ],
    },
    "bf16": {
        "clients": OWN,
        "train": {"precision": "bf16"},
        "method": [{"kind": "cast", "to": "bf16", "legs": ["smashed", "features"]}],
    },
    "channels last": {"train": {"channels_last": True}, "clients": OWN},
    "warm-up without gradients, dropout": {
        "clients": OWN,
        "data": AWAY,
        "model": {"cut": "l2h"},
        "method": [{"kind": "warmup"}],
    },
    "augmented, validated": {"data": {"augment": ["crop"], "validation": 0.2}, "clients": OWN},
    "malicious, watched": {
        "clients": MALICIOUS,
        "detectors": [{"kind": "cosine_mad", "response": "downweight"}, {"kind": "within_class"}],
    },
    "malicious, watched on hosts, splitfed_v1": {
        "clients": MALICIOUS,
        "aggregation": "splitfed_v1",
        "detectors": [
            {"kind": "cosine_mad", "signal": "features", "threshold": {"kind": "calibrated"}},
            {"kind": "within_class", "response": "skip"},
        ],
    },
    "malicious hand-over, turns undone": {
        "clients": {"malicious": {"ids": [2], "poison": [{"kind": "replace"}]}},
        "schedule": {"kind": "per_client", "rounds": 2},
        "detectors": [{"kind": "safesplit"}],
    },
    "weights that learn by dp, drawn batches": {
        "model": {"cut": "l1h", "learns": ["head", "tail"]},
        "train": {"batch_size": 4, "dp": {"multiplier": 1.0, "sampling": "poisson"}},
        "aggregation": "splitfed_v2",
        "schedule": PARALLEL,
        "stop": {"epsilon": 9.0},
    },
    "evaluated in part": {"clients": OWN, "evaluate": {"clients": 2, "batch_size": 16}},
}


def of_case(case: str, **changes: Any) -> Scenario:
    four = {**TINY, "clients": {"count": 4}}
    return parse(merge(merge(four, CASES[case]), changes), plugins)


@pytest.mark.parametrize("case", CASES)
def test_hosts_give_what_one_process_gives(case: str, tmp_path: Path, hosts: Hosts) -> None:
    given = of_case(case)
    run_to_end(given, tmp_path / "inline")
    anywhere = [int(host) for host in numpy_rng_for(0, case).integers(3, size=4)]
    place_on(given, tmp_path / "hosts", hosts, anywhere).run(resume=False)
    assert_equal(tmp_path / "inline", tmp_path / "hosts", given)


PLACES = {
    "one host": [0, 0, 0, 0],
    "two hosts": [0, 1, 1, 0],
    "two hosts, one of them empty": [1, 1, 1, 1],
    "three hosts": [2, 0, 1, 2],
    "three hosts, one of them empty": [2, 0, 2, 0],
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", ["shared head, adam", "splitfed_v1"])
def test_where_clients_live_changes_nothing(
    case: str, place: str, tmp_path: Path, hosts: Hosts
) -> None:
    given = of_case(case)
    run_to_end(given, tmp_path / "inline")
    place_on(given, tmp_path / "hosts", hosts, PLACES[place]).run(resume=False)
    assert_equal(tmp_path / "inline", tmp_path / "hosts", given)


class StopInRoundTwo(Observer):
    """Presses Ctrl-C in the middle of it."""

    rounds = 0

    def step(self, done: int, total: int) -> None:
        if self.rounds == 1 and done >= total / 2:
            raise KeyboardInterrupt

    def round(self, ended: RoundEnded) -> None:
        self.rounds += 1


@pytest.mark.parametrize("begins", ["inline", "hosts"])
@pytest.mark.parametrize(
    "case",
    [
        "shared head, adam",
        "own moments",
        "splitfed_v1",
        "learned lift, int8, wcc",
        "warm-up without gradients, dropout",
    ],
)
def test_a_run_changes_its_engine_when_resumed(
    case: str, begins: str, tmp_path: Path, hosts: Hosts
) -> None:
    """Stopped in round 2, where something has been checkpointed; who goes on lives elsewhere."""
    given = of_case(case, schedule={"rounds": 3})
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_to_end(given, whole)
    stop = StopInRoundTwo()
    parts = [Experiment(given, broken, [stop]), on_hosts(given, broken, hosts)]
    if begins == "hosts":
        parts = [on_hosts(given, broken, hosts, stop), Experiment(given, broken)]
    with pytest.raises(KeyboardInterrupt):
        parts[0].run(resume=False)
    parts[1].run(resume=True)
    assert_equal(whole, broken, given)


def test_tensors_arrive_as_they_were(hosts: Hosts) -> None:
    """Type, layout and every bit; tensors with gaps arrive without."""
    import ray

    assert len(hosts) == 3  # whose start taught Ray to send tensors
    image = torch.randn(4, 3, 5, 5, generator=rng_for(0, "tensors"))
    kinds = [torch.bfloat16, torch.float16, torch.float64, torch.uint8, torch.int64, torch.bool]
    sent = [
        *(image.to(kind) for kind in kinds),
        image.to(memory_format=torch.channels_last),
        image[:, :, :1, :1].to(memory_format=torch.channels_last),
        image[0, 0].t(),
        torch.tensor(3.5),
        torch.zeros(0, 4),
        torch.tensor([float("nan"), -0.0, float("inf")]),
        torch.nn.Parameter(image),
    ]
    for tensor, arrived in zip(sent, ray.get(ray.put(sent)), strict=True):
        assert (arrived.dtype, arrived.shape) == (tensor.dtype, tensor.shape)
        assert arrived.stride() == tensor.stride()
        assert bytes_of(arrived) == bytes_of(tensor)
        arrived.zero_()  # not shared memory, which nobody may write to
    assert torch.equal(ray.get(ray.put(image[:, :, ::2])), image[:, :, ::2])


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def measure_used_bytes() -> float:
    """Measure shared memory, as Ray reports it from time to time."""
    import ray

    resource = "object_store_memory"
    return ray.cluster_resources()[resource] - ray.available_resources().get(resource, 0)


def test_nothing_stays_behind_in_shared_memory(tmp_path: Path, hosts: Hosts) -> None:
    """The recipe with its data, the trunk of every round, what clients sent back: all let go."""
    import ray

    before = measure_used_bytes()  # hosts that tests share may still hold what others sent
    held = ray.put(torch.zeros(5_000_000))
    assert eventually(lambda: measure_used_bytes() > before + 15e6)
    del held
    given = of_case("splitfed_v1", schedule={"rounds": 3})  # five trunks of 2 MB a round
    for number in range(2):
        on_hosts(given, tmp_path / f"run{number}", hosts).run(resume=False)
    assert eventually(lambda: measure_used_bytes() < before + 1e6)


@pytest.mark.slow
def test_hundreds_of_clients_with_a_sample_each(tmp_path: Path, hosts: Hosts) -> None:
    few = {"data": {"train_samples": 300}, "evaluate": {"clients": 2}, "schedule": {"rounds": 1}}
    given = parse(merge(merge(TINY, few), {"clients": {"count": 300, "heads": "per_client"}}))
    run_to_end(given, tmp_path / "inline")
    on_hosts(given, tmp_path / "hosts", hosts).run(resume=False)
    assert Run.load(tmp_path / "hosts").clients["samples"].tolist() == [1] * 300
    assert_equal(tmp_path / "inline", tmp_path / "hosts")


def test_two_clients_with_fifty_thousand_samples_each(tmp_path: Path, hosts: Hosts) -> None:
    """78 MB, which are sent once and not with every call."""
    own = {"count": 2, "heads": "per_client"}
    given = parse(merge(TINY, {"clients": own, "schedule": {"local_steps": 2}}))
    data = prepare(given.data, 2, given.seed)
    rng = rng_for(0, "many")
    many = Samples(
        torch.randint(256, (100_000, 1, 28, 28), generator=rng, dtype=torch.uint8),
        torch.randint(10, (100_000,), generator=rng),
    )
    data = replace(data, train=many, parts=[np.arange(50_000), np.arange(50_000, 100_000)])
    for path, where in ((tmp_path / "inline", None), (tmp_path / "hosts", hosts)):
        Experiment(given, path, (), data, where).run(resume=False)
    assert_equal(tmp_path / "inline", tmp_path / "hosts")


def test_texts_are_written_on_hosts_as_in_one_process(tmp_path: Path, hosts: Hosts) -> None:
    """In sessions, whose caches stay where clients are; drawn and of several lengths."""
    task = {"kind": "generation", "prompt": "{sentence} is", "answer": " {topic}"}
    sizes = {"width": 16, "layers": 3}
    sampling = {"temperature": 0.9, "top_p": 0.9}
    scored = {"metrics": ["loss", "rouge_l"], "max_new_tokens": 4, "sampling": sampling}
    given = text_scenario(
        tmp_path,
        data={"source": {"task": task}},
        model={"kind": "causal_lm", "sizes": sizes, "head": 1, "tail": 1},
        clients=OWN,
        evaluate=scored,
    )
    run_to_end(given, tmp_path / "inline")
    on_hosts(given, tmp_path / "hosts", hosts).run(resume=False)
    assert_equal(tmp_path / "inline", tmp_path / "hosts", given)


def test_texts_of_parties_as_inline(hosts: Hosts, tmp_path: Path) -> None:
    given = text_scenario(tmp_path, **OF_PARTIES)
    run_to_end(given, tmp_path / "inline")
    on_hosts(given, tmp_path / "hosts", hosts).run(resume=False)
    assert_equal(tmp_path / "inline", tmp_path / "hosts", given)
