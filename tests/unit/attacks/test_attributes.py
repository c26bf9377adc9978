"""Attributes and origins: what is planted is read, and what does not depend on them is not."""

import numpy as np
import pandas as pd
import pytest
import torch
from builders import run_to_end, scenario
from contracts.leaks import build_setting
from gists import says

from simsplit.attacking.attribute_judge import AttributeJudge
from simsplit.attacking.origin_judge import OriginJudge
from simsplit.attacks import ATTACKS
from simsplit.attacks.regression import classify
from simsplit.data.attributes import list_attributes, measure_attribute
from simsplit.data.samples import Samples
from simsplit.data.table_frames import FrameOptions, encode_frames
from simsplit.errors import ScenarioError
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.results import Run
from simsplit.results.leak_table import FLOOR, keep_kinds
from simsplit.results.member_leaks import CLUSTERS, EVEN, LABEL, LARGEST


def strokes(*shifts):
    """Draw strokes that move by so many columns over seven rows."""
    images = torch.zeros(len(shifts), 1, 9, 9, dtype=torch.uint8)
    for image, shift in zip(images, shifts, strict=True):
        for row in range(1, 8):
            image[0, row, 4 + round(shift * (row - 4) / 6)] = 255
    return Samples(images, torch.arange(len(shifts)))


def test_slant_is_the_shift_of_a_stroke_by_a_row():
    public, own = strokes(-6, -3, 0, 3, 6), strokes(-5, 5)
    (known, read) = measure_attribute([public, own], "slant", (), "here")
    assert known.tolist() == [0, 1, 2, 3, 4]  # few values are categories
    many = strokes(*np.linspace(-6, 6, 30).tolist())
    known, read = measure_attribute([many, own], None, (), "here")
    assert known.sum() in range(11, 20)  # above the median
    assert read.tolist() == [0, 1]


def test_a_column_of_a_table_is_a_category_or_above_its_median():
    rows = range(40)
    frame = pd.DataFrame(
        {
            "age": [20 + n for n in rows],
            "smoker": [n % 2 for n in rows],
            "sex": ["f" if n % 3 else "m" for n in rows],
            "ill": ["yes" if n % 4 else "no" for n in rows],
        }
    )
    data = encode_frames("people", frame, frame.copy(), FrameOptions(target="ill"))
    assert list_attributes(data.train, data.columns) == ["age", "smoker", "sex"]
    for name, expected in (
        ("age", [n > 19 for n in rows]),
        ("smoker", [n % 2 for n in rows]),
        ("sex", [0 if n % 3 else 1 for n in rows]),
    ):
        (values,) = measure_attribute([data.train], name, data.columns, "here")
        assert values.tolist() == expected


def test_an_unknown_attribute_is_refused_with_those_that_there_are():
    with pytest.raises(ScenarioError) as error:
        measure_attribute([strokes(1)], "slnt", (), "attacks.0.attribute")
    assert says(str(error.value), "attacks.0.attribute: ... 'slnt' ... slant ... brightness")


def test_a_regression_tells_classes_apart_and_noise_not():
    rng = torch.Generator().manual_seed(0)
    values = torch.arange(300) % 3
    rows = torch.randn(300, 40, generator=rng)
    noise = rows.clone()
    rows[torch.arange(300), values] += 4
    for given, low, high in ((rows, 0.9, 1.0), (noise, 0.2, 0.47)):
        hits = classify(given[:150], values[:150], given[150:]).argmax(1) == values[150:]
        assert low <= hits.double().mean() <= high


def probe(gap, seed=0):
    """Judge a probe of messages in which an attribute moves one value by a gap."""
    given = scenario(
        data={"auxiliary": 0.5, "train_samples": 400},
        clients={"count": 1},
        targets={"count": 100},
        attacks=[{"kind": "attribute_probe"}],
    )
    judge = AttributeJudge(given, given.prepare_data(), None)
    public, own = (torch.from_numpy(each) for each in judge.values["attribute_probe"])
    rng = torch.Generator().manual_seed(seed)
    packets = []
    for values in (public, own):
        rows = torch.randn(len(values), 1, 8, 8, generator=rng)
        rows[:, 0, 0, 0] += gap * values
        packets.append([Packet(0, Leg.SMASHED, 1, 0, (rows,))])
    attack = ATTACKS["attribute_probe"]().build(build_setting().known)
    attack.tell(packets[0], public, packets[1])
    list(attack.work([]))
    rows = pd.DataFrame(judge.score(1, {"attribute_probe": attack}).rows)
    return rows.set_index("attack")["value"]


def test_a_planted_attribute_is_read_beyond_its_floors():
    read = probe(gap=8.0)
    assert read["attribute_probe"] > 0.95 > read[LABEL] >= read[LARGEST] - 0.1


@pytest.mark.parametrize("seed", range(3))
def test_an_attribute_that_no_message_has_stays_at_its_floor(seed):
    read = probe(gap=0.0, seed=seed)
    assert abs(read["attribute_probe"] - 0.5) < 0.18


def infer(gap, *, names, seed=0):
    """Judge the inference of three clients whose messages differ by a gap."""
    rng = torch.Generator().manual_seed(seed)
    attack = ATTACKS["site_inference"](names=names).build(build_setting().known)
    for number in (1, 2):
        for step in range(8):
            for client in (0, 1, 4):
                rows = torch.randn(10, 1, 8, 8, generator=rng)
                rows[:, 0, 0, client] += gap
                attack.observe(Packet(client, Leg.SMASHED, number, step, (rows,)))
    list(attack.work([]))
    rows = OriginJudge(scenario(), None, None).score(1, {"site_inference": attack}).rows
    return pd.DataFrame(rows).set_index(["attack", "view"])


@pytest.mark.parametrize(("names", "floor"), [(True, EVEN), (False, CLUSTERS)])
def test_messages_of_clients_that_differ_are_named_or_clustered(names, floor):
    read = infer(gap=8.0, names=names)
    for view in ("samples", "messages"):
        assert read.loc[("site_inference", view), "value"] > 0.95
        assert read.loc[(floor, view), "role"] == FLOOR
    # Of the last round alone; with names of every second message.
    assert read.loc[("site_inference", "messages"), "samples"] == (12 if names else 24)
    assert infer(gap=8.0, names=True).loc[(EVEN, "samples"), "value"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("names", [True, False])
def test_messages_of_clients_that_are_alike_stay_at_the_floor(names):
    read = [infer(gap=0.0, names=names, seed=seed) for seed in range(4)]
    floor = EVEN if names else CLUSTERS
    means = [
        np.mean([each.loc[(name, "samples"), "value"] for each in read])
        for name in ("site_inference", floor)
    ]
    assert means[0] == pytest.approx(means[1], abs=0.08)


def test_a_single_client_leaves_nothing_to_infer():
    attack = ATTACKS["site_inference"]().build(build_setting().known)
    attack.observe(Packet(0, Leg.SMASHED, 1, 0, (torch.zeros(2, 1, 8, 8),)))
    list(attack.work([]))
    assert attack.origins == {}


def test_a_run_has_all_clients_messages_and_the_targets_attributes(tmp_path):
    given = scenario(
        data={"auxiliary": 0.3},
        clients={"count": 2, "heads": "per_client"},
        schedule={"kind": "round_robin", "rounds": 1},
        evaluate={"every": 0},
        attacks=[{"kind": "attribute_probe"}, {"kind": "site_inference"}],
        targets={"count": 20},
    )
    run = Run.load(run_to_end(given, tmp_path / "run").path)
    attributes = keep_kinds(run.leaks, "attributes")
    assert {*attributes["view"]} == {"smashed", "gradients", "attribute_probe"}
    origins = keep_kinds(run.leaks, "origins").set_index(["attack", "view"])
    assert origins.loc[(EVEN, "messages"), "value"] == 0.5
    # Of both clients, whatever heads they have: the second message of each.
    assert origins.loc[("site_inference", "messages"), "samples"] == 2


def test_who_sends_most_is_named_without_an_attack():
    """Clients that send 6, 3 and 1 of ten messages are told by that alone."""
    attack = ATTACKS["site_inference"]().build(build_setting().known)
    for step, client in enumerate([0, 0, 1, 0, 1, 0, 2, 0, 1, 0] * 4):
        attack.observe(Packet(client, Leg.SMASHED, 1, step, (torch.randn(4, 1, 8, 8),)))
    list(attack.work([]))
    rows = OriginJudge(scenario(), None, None).score(1, {"site_inference": attack}).rows
    floor = pd.DataFrame(rows).set_index(["attack", "view"]).loc[(EVEN, "messages"), "value"]
    assert floor == pytest.approx(0.6, abs=0.11)


def test_public_samples_without_labels_leave_out_the_floor_of_labels():
    judge = AttributeJudge.__new__(AttributeJudge)
    unlabelled, own = strokes(*range(4)), strokes(*range(4))
    unlabelled.labels[:] = -100
    judge.samples = [unlabelled, own]
    values = np.array([0, 0, 1, 0])
    assert [name for name, _ in judge._list_floors(values, values)] == [LARGEST]
