"""What every attack on labels owes: a planted signal is found in each view, noise stays at chance,
and the same is found again.
"""

import numpy as np
import pytest
import torch
from builders import scenario
from contracts.leaks import build_setting

from simsplit.attacking.label_judge import LabelJudge
from simsplit.attacks import ATTACKS
from simsplit.attacks.threat import Role
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.results.leak_table import FLOOR
from simsplit.results.recovered_kinds import PURITY

EVERY = [
    kind
    for kind, each in ATTACKS.items()
    if each.recovers == "labels"
    and not each.threat.follows_training
    and Role.SERVER in each.threat.roles
]
"""What follows training looks at no targets, and parties sit elsewhere: files of their own."""
COUNT, WIDTH = 80, 64
CASES = {"probe": {"trees": 20}}
every_attack = pytest.mark.parametrize("kind", EVERY)


@pytest.fixture(scope="module")
def judge():
    """Of forty digits of each of two classes."""
    given = scenario(
        data={"train_samples": 800},
        clients={"count": 1},
        targets={"count": COUNT, "per_class": COUNT // 2},
        attacks=[{"kind": kind} for kind in EVERY],
    )
    return LabelJudge(given, given.prepare_data())


def judge_views(judge, kind, *, planted, seed=0):
    """Return the rows of an attack on features and gradients in two batches, and its floors."""
    rng = torch.Generator().manual_seed(seed)
    seen = []
    for step, rows in enumerate(torch.arange(COUNT).split(COUNT // 2 + 4)):
        for leg in (Leg.FEATURES, Leg.FEATURES_GRAD):
            noise = torch.randn(len(rows), WIDTH, generator=rng)
            away = torch.from_numpy(judge.labels)[rows].float()[:, None]
            sent = noise + planted * away * torch.linspace(1, 2, WIDTH)
            scale = len(rows) if leg is Leg.FEATURES_GRAD else 1
            seen.append(Packet(0, leg, 1, step, (sent / scale,)))
    attack = ATTACKS[kind](**CASES.get(kind, {})).build(build_setting().known)
    attack.known_labels = judge.choose_known(attack.config.known_share)
    for _ in attack.work(seen):
        pass
    rows = judge.score(1, {kind: attack}).rows
    rows = [row for row in rows if row["metric"] != PURITY]
    floors = {row["attack"]: row for row in rows if row["role"] == FLOOR}
    return {row["view"]: row for row in rows if row["attack"] == kind}, floors


@every_attack
def test_a_planted_signal_is_detected_in_each_view(kind, judge):
    rows, floors = judge_views(judge, kind, planted=8.0)
    asked = set(ATTACKS[kind]().views) & {"features", "gradient"}
    assert asked
    assert rows.keys() >= asked
    for view, row in rows.items():
        # trees look at a column at a time, and at unit length each has little of the plant
        assert row["value"] > (0.75 if view == "direction" else 0.97)
        assert row["low"] <= row["value"] <= row["high"]
        assert row["value"] > floors["chance"]["high"]


@pytest.mark.slow
@every_attack
def test_noise_stays_at_chance_and_not_below_it(kind, judge):
    results, within = [], 0
    for seed in range(8):
        rows, floors = judge_views(judge, kind, planted=0.0, seed=seed)
        chance, row = floors["chance"], rows.get("features", rows["gradient"])
        results.append(row["value"])
        within += chance["low"] - 0.05 <= row["value"] <= chance["high"] + 0.03
    assert within >= 7  # of 95 %
    assert np.mean(results) == pytest.approx(chance["value"], abs=0.05)
    if not row["known"]:  # under the best sign or match no worse than a coin
        assert min(results) >= 0.5


@every_attack
def test_the_same_again(kind, judge):
    assert judge_views(judge, kind, planted=0.5) == judge_views(judge, kind, planted=0.5)


@every_attack
def test_what_is_known_is_a_part_of_each_class(kind, judge):
    share = ATTACKS[kind]().known_share
    known = judge.choose_known(share)
    assert known.classes == 2
    assert known.labels.bincount(minlength=2).tolist() == [round(share * COUNT / 2)] * 2
    assert (torch.from_numpy(judge.labels)[known.rows] == known.labels).all()
