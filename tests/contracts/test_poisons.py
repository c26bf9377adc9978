"""What every poison owes: it does what it says, to whom it says, and to nothing and nobody else."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import experiment, scenario
from by_hand import Recorder
from pace import quick
from pydantic import ValidationError
from torch import nn

from simsplit.data import Batch, Samples
from simsplit.data.batches import Batcher
from simsplit.errors import ScenarioError
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.poisons import POISONS, Poison, Scene
from simsplit.poisons.disguise import _Spread
from simsplit.poisons.poison import BatchPoison
from simsplit.results import Run
from simsplit.seeds import rng_for

COUNT, CLASSES = 200, 5
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
CASES: dict[str, list[dict[str, Any]]] = {
    "badnets": [
        {},
        {"clip": 1.0},
        {"source": (1, 2), "corner": "top_left", "margin": 1, "value": 0.0, "rate": 1},
    ],
    "blended": [{"target": 3}, {"strength": 1.0}],
    "semantic": [{}, {"property": "green", "share": 0.3, "rate": 0.5}, {"property": "contrast"}],
    "clean_label": [{}, {"weaken": 0.0, "target": 2, "rate": 0.5}],
    "wanet": [{}, {"strength": 2.0, "grid": 3, "target": 2}],
    "sig": [{}, {"amplitude": 0.3, "test_amplitude": 0.6, "target": 2, "rate": 0.5}],
    "label_flip": [{}, {"target": 1, "source": (0,), "rate": 1}],
    "tamper": [
        {"how": how, "leg": leg}
        for how in ("scale", "sign", "noise")
        for leg in ("smashed", "features_grad")
    ],
    "replace": [{"how": how} for how in ("stale", "boost", "sign", "noise")],
    "villain": [{}],
}
EVERY = [(kind, options) for kind, cases in CASES.items() for options in cases]
OF_BATCHES = [
    (kind, options) for kind, options in EVERY if kind not in ("tamper", "replace", "villain")
]


def samples() -> Samples:
    rng = rng_for(0, "samples")
    inputs = torch.randint(256, (COUNT, 3, 8, 8), generator=rng, dtype=torch.uint8)
    return Samples(inputs, torch.randint(CLASSES, (COUNT,), generator=rng))


def build(kind: str, options: dict[str, Any], seed: int = 0) -> Poison:
    scene = Scene(samples(), CLASSES, MEAN, STD, seed, "clients.malicious.poison.0")
    return POISONS[kind](**options).build(scene)


def batch() -> Batch:
    return Batcher(samples(), mean=MEAN, std=STD).batch(torch.arange(COUNT))


PART = torch.arange(0, COUNT, 2)


def of_client(kind: str, options: dict[str, Any], seed: int = 0) -> BatchPoison:
    made = build(kind, options, seed).for_client(1, PART)
    assert isinstance(made, BatchPoison)
    return made


def test_every_registered_poison_has_cases():
    assert CASES.keys() == POISONS.keys()


@pytest.mark.parametrize(("kind", "options"), OF_BATCHES)
def test_it_changes_the_chosen_samples_alone(kind, options):
    made, before = of_client(kind, options), batch()
    after = made.on_batch(batch())
    chosen = torch.zeros(COUNT, dtype=torch.bool)
    chosen[made.poisoned_rows] = True
    assert chosen.any()
    assert not chosen[1::2].any(), "not the client's"
    assert torch.equal(after.inputs[~chosen], before.inputs[~chosen])
    assert torch.equal(after.labels[~chosen], before.labels[~chosen])
    assert torch.equal(after.indices, before.indices)
    changed = (after.inputs != before.inputs).flatten(1).any(1) | (after.labels != before.labels)
    assert changed[chosen & (before.labels != made.relabel(before.labels))].all()
    source = options.get("source")
    assert source is None or set(before.labels[chosen].tolist()) <= set(source)
    low, high = (made.scene.normalise(value, before.inputs) for value in (0.0, 1.0))
    assert (after.inputs >= low - 1e-5).all()
    assert (after.inputs <= high + 1e-5).all()


@pytest.mark.parametrize(("kind", "options"), OF_BATCHES)
def test_it_poisons_the_share_that_it_says(kind, options):
    made = of_client(kind, options)
    able = made.find_candidates(samples())[PART].sum().item()
    assert len(made.poisoned_rows) == round(made.config.rate * able)


@pytest.mark.parametrize(("kind", "options"), OF_BATCHES)
def test_the_same_samples_in_every_epoch_and_others_for_other_seeds(kind, options):
    assert torch.equal(
        of_client(kind, options).poisoned_rows, of_client(kind, options).poisoned_rows
    )
    one, other = (of_client(kind, options).on_batch(batch()).inputs for _ in range(2))
    assert torch.equal(one, other)
    if POISONS[kind](**options).rate < 1:
        assert not torch.equal(
            of_client(kind, options).poisoned_rows, of_client(kind, options, 1).poisoned_rows
        )


@pytest.mark.parametrize(("kind", "options"), OF_BATCHES)
def test_success_is_counted_where_there_is_something_to_gain(kind, options):
    aim = build(kind, options).find_aim(samples())
    assert aim is not None
    assert len(aim.rows)
    labels = samples().labels[aim.rows]
    assert (labels != aim.wanted).all()
    if kind == "label_flip":
        assert torch.equal(aim.wanted, torch.full_like(labels, 1) if options else (labels + 1) % 5)
    else:
        assert (aim.wanted == options.get("target", 0)).all()
    shown = aim.add_trigger(batch()).inputs
    untouched = torch.equal(shown, batch().inputs)
    assert untouched == (kind in ("semantic", "label_flip"))


def test_the_patch_is_where_and_what_it_says():
    shown = of_client("badnets", {"size": 2, "corner": "bottom_left", "margin": 1, "value": 1.0})
    before, after = batch().inputs, shown.add_trigger(batch().inputs)
    where = torch.zeros(8, 8, dtype=torch.bool)
    where[5:7, 1:3] = True
    assert torch.equal(after[..., ~where], before[..., ~where])
    pixels = after[..., where] * torch.tensor(STD).view(3, 1) + torch.tensor(MEAN).view(3, 1)
    assert torch.allclose(pixels, torch.ones(3, 4))


def test_the_wave_is_a_sine_along_columns():
    made = of_client("sig", {"amplitude": 0.05, "test_amplitude": 0.1, "frequency": 2.0})
    grey = torch.full((2, 3, 8, 8), 0.5)
    normalised = (grey - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    shown = made.add_trigger(normalised) * torch.tensor(STD).view(3, 1, 1)
    shown += torch.tensor(MEAN).view(3, 1, 1)
    # two periods over eight columns: 0, 1, 0, -1 and again
    expected = 0.5 + 0.1 * torch.tensor([0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0, -1.0])
    torch.testing.assert_close(shown, expected.expand(2, 3, 8, 8))
    # The client's own images get half of it.
    trained = made.change(normalised, torch.arange(2)) * torch.tensor(STD).view(3, 1, 1)
    trained += torch.tensor(MEAN).view(3, 1, 1)
    torch.testing.assert_close(trained, ((expected + 0.5) / 2).expand(2, 3, 8, 8))


def test_a_warp_moves_pixels_by_little_and_leaves_what_has_no_shape():
    made = of_client("wanet", {"strength": 0.5})
    flat = torch.full((1, 3, 8, 8), 0.7)
    torch.testing.assert_close(made.add_trigger(flat), flat)
    # On a ramp from 0 to 7 the change is the displacement in pixels.
    ramp = torch.arange(8.0).expand(1, 3, 8, 8)
    moved = (made.add_trigger(ramp) - ramp).abs()
    assert 0.05 < moved.mean() < 0.5
    assert torch.equal(made.add_trigger(ramp), made.add_trigger(ramp))


def test_a_shared_patch_is_dealt_out_pixel_by_pixel():
    scene = Scene(samples(), CLASSES, MEAN, STD, 0, "poison", colluders=(1, 4, 6))
    whole = POISONS["badnets"](rate=1, spread=True).build(scene)
    assert isinstance(whole, BatchPoison)
    before = batch().inputs[PART]
    parts = [
        (whole.for_client(number, PART).on_batch(batch()).inputs[PART] != before)
        .flatten(0, 1)
        .any(0)
        for number in scene.colluders
    ]
    together = (whole.add_trigger(before) != before).flatten(0, 1).any(0)
    assert [int(part.sum()) for part in parts] == [3, 3, 3]
    assert torch.equal(sum(part.int() for part in parts), together.int()), "no pixel twice"
    for count in (1, 10):
        few = Scene(samples(), CLASSES, MEAN, STD, 0, "poison", tuple(range(count)))
        with pytest.raises(ScenarioError, match=r"poison\.spread: needs 2 to 9 malicious clients"):
            POISONS["badnets"](spread=True).build(few)


def test_clipped_payloads_of_poisoned_samples_lie_among_clean_ones_of_the_target():
    made = build("badnets", {"clip": 1.5, "target": 2}).for_client(1, PART)
    assert isinstance(made, BatchPoison)
    rng = rng_for(0, "payload")
    far = 100 * torch.randn(COUNT, 6, generator=rng)
    hit = torch.zeros(COUNT, dtype=torch.bool)
    hit[made.poisoned_rows] = True
    target = ~hit & (batch().labels == 2)
    payload = torch.where(hit[:, None], far, torch.randn(COUNT, 6, generator=rng))
    made.on_batch(batch())
    sent = made.on_packet(packet(Leg.SMASHED, payload)).tensors[0]
    assert torch.equal(sent[~hit], payload[~hit])
    mean, reach = payload[target].mean(0), 1.5 * payload[target].std(0, correction=0)
    assert torch.allclose(sent[hit], payload[hit].clamp(mean - reach, mean + reach), atol=1e-4)
    other = build("badnets", {"clip": 1.5, "target": 2}).for_client(1, PART)
    other.load(made.state())
    for one in (made, other):
        one.on_batch(batch())
    again, resumed = (one.on_packet(packet(Leg.SMASHED, 2 * payload)) for one in (made, other))
    assert torch.equal(again.tensors[0], resumed.tensors[0])
    assert made.on_packet(packet(Leg.SMASHED, far)).tensors[0] is far, "of no batch of its own"


def test_what_cannot_be_clipped_is_refused():
    with pytest.raises(ScenarioError, match=r"poison\.0\.clip:.*client 1.*100"):
        build("badnets", {"clip": 1.0, "rate": 1}).for_client(1, PART)
    made = build("badnets", {"clip": 1.0}).for_client(1, PART)
    made.on_batch(batch())
    with pytest.raises(
        ScenarioError, match=r"poison\.0\.clip: needs payloads .* got \[200, 3\] of torch\.int8"
    ):
        made.on_packet(packet(Leg.SMASHED, torch.ones(COUNT, 3, dtype=torch.int8)))


def test_semantic_takes_the_strongest():
    made = build("semantic", {"share": 0.2})
    bright = samples().inputs.float().mean((1, 2, 3))
    picked = made.find_candidates(samples())
    assert 0.15 * COUNT < picked.sum() <= 0.2 * COUNT
    assert bright[picked].min() > bright[~picked].max()


def packet(leg: Leg, values: torch.Tensor, names: tuple[str, ...] = ()) -> Packet:
    tensors = (values, torch.arange(4)) if not names else (values, torch.full((3,), 2.0))
    return Packet(1, leg, 1, 0, tensors, names)


@pytest.mark.parametrize("options", CASES["tamper"], ids=str)
def test_tampering_touches_one_leg(options):
    made = build("tamper", {**options, "strength": 2.0}).for_client(1, PART)
    values = torch.randn(4, 6, generator=rng_for(0, "values"))
    for leg in (Leg.SMASHED, Leg.FEATURES_GRAD, Leg.LABELS, Leg.HANDOVER):
        sent = made.on_packet(packet(leg, values))
        if leg != options["leg"]:
            assert sent.tensors[0] is values
            continue
        assert torch.equal(sent.tensors[1], torch.arange(4)), "whole numbers are left alone"
        away = sent.tensors[0] - values
        expected = {"scale": values, "sign": -3 * values}.get(options["how"])
        assert expected is None or torch.allclose(away, expected)
        assert 0.8 < away.std() / (2 * values.std()) < 1.3 or options["how"] != "noise"
    again = made.on_packet(packet(Leg(options["leg"]), values)).tensors[0]
    assert torch.equal(again, made.on_packet(packet(Leg(options["leg"]), values)).tensors[0])


@pytest.mark.parametrize(
    ("how", "expected"),
    [("stale", [1.0, 1.0]), ("boost", [5.0, -3.0]), ("sign", [-3.0, 5.0]), ("noise", None)],
)
def test_what_is_handed_on_instead(how, expected):
    made = build("replace", {"how": how, "strength": 4.0}).for_client(1, PART)
    names = ("head.weight", "head.running_var")
    weights = torch.nn.Parameter(torch.ones(2))
    made.on_receive(packet(Leg.HANDOVER, weights, names))
    with torch.no_grad():
        weights += torch.tensor([1.0, -1.0])
    sent = made.on_packet(packet(Leg.HANDOVER, weights, names))
    assert torch.equal(sent.tensors[1], torch.full((3,), 2.0)), "running variances stay positive"
    assert torch.equal(weights.detach(), torch.tensor([2.0, 0.0])), "its own are left alone"
    if expected is not None:
        assert torch.equal(sent.tensors[0], torch.tensor(expected))
    other = build("replace", {"how": how, "strength": 4.0}).for_client(1, PART)
    other.load(made.state())
    assert torch.equal(
        other.on_packet(packet(Leg.HANDOVER, weights, names)).tensors[0], sent.tensors[0]
    )


def test_outside_of_its_rounds_a_client_is_honest():
    """Rounds 2 and 3 of four; what it is handed over it remembers in all of them."""
    config = POISONS["badnets"](rate=1, from_round=2, until_round=3)
    scene = Scene(samples(), CLASSES, MEAN, STD, 0, "clients.malicious.poison.0")
    always, timed = (config.build(scene).for_client(1, PART) for _ in range(2))
    timed, before = config.limit_to_rounds(timed), batch()
    assert timed.on_batch(before) is before, "before any round"
    for number in (1, 2, 3, 4):
        timed.on_round(number)
        after = timed.on_batch(before)
        if number in (2, 3):
            assert torch.equal(after.inputs, always.on_batch(before).inputs)
            assert not torch.equal(after.inputs, before.inputs)
        else:
            assert after is before
    with pytest.raises(ValidationError, match=r"until_round.*from_round \(5\)"):
        POISONS["badnets"](from_round=5, until_round=4)


@pytest.mark.parametrize("kind", ["badnets", "label_flip"])
def test_a_share_grows_evenly_and_keeps_whom_it_has(kind):
    """From round 3 on over four rounds; at last the samples are those that it poisons at once."""
    options = {"target": 1} if kind == "badnets" else {}
    scene = Scene(samples(), CLASSES, MEAN, STD, 0, "clients.malicious.poison.0")
    seen = {}
    for rise in (None, 4):
        config = POISONS[kind](rate=0.5, from_round=3, rise=rise, **options)
        made = config.limit_to_rounds(config.build(scene).for_client(1, PART))
        before = Batcher(samples(), mean=MEAN, std=STD).batch(PART)
        seen[rise] = []
        for number in range(1, 9):
            made.on_round(number)
            made.on_batch(before)
            hit = made.poison._find_poisoned(before) if made.acts else torch.zeros(len(PART)) > 0
            seen[rise].append(hit)
    every = int(seen[None][-1].sum())
    assert every == round(0.5 * len(PART)) > 4
    assert [int(hit.sum()) for hit in seen[None]] == [0, 0, *[every] * 6]
    grown = [int(hit.sum()) for hit in seen[4]]
    assert grown == [0, 0, *(every * part // 4 for part in (1, 2, 3)), every, every, every]
    assert torch.equal(seen[4][-1], seen[None][-1])
    assert all((after | before).equal(after) for before, after in itertools.pairwise(seen[4]))


def test_a_late_replacement_knows_what_it_was_given_before():
    config = POISONS["replace"](how="stale", from_round=2)
    names, weights = ("head.weight", "head.running_var"), torch.nn.Parameter(torch.ones(2))
    made, resumed = (
        config.limit_to_rounds(build("replace", {"how": "stale"}).for_client(1, PART)) for _ in "ab"
    )
    made.on_round(1)
    made.on_receive(packet(Leg.HANDOVER, weights, names))
    with torch.no_grad():
        weights += 1
    assert made.on_packet(packet(Leg.HANDOVER, weights, names)).tensors[0] is weights
    made.on_round(2)
    resumed.load(made.state())
    for one in (made, resumed):  # its packet's round is another: as for an evaluation
        sent = one.on_packet(packet(Leg.HANDOVER, weights, names))
        assert torch.equal(sent.tensors[0], torch.ones(2))


ONE: dict[str, Any] = {"ids": [2]}
LATE = {"schedule": {"kind": "per_client", "rounds": 1}, "clients": {"heads": "per_client"}}


UNSEATED = [case for case in EVERY if case[0] != "villain"]  # which needs parties with columns
STARTS = [*((*case, 1) for case in UNSEATED), ("badnets", {}, 2), ("replace", {"how": "boost"}, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("case", quick(STARTS, STARTS[0], *STARTS[-2:]), ids=str)
def test_until_the_malicious_client_acts_a_run_is_the_clean_one(case, tmp_path):
    """Client by client, the last one malicious: what comes before it is bit for bit the same."""
    kind, options, start = case
    options = {k: v for k, v in options.items() if k != "property"}
    shared = {"clients": {"heads": "shared"}} if kind == "replace" else {}
    runs = []
    acting = {"kind": kind, **options, "from_round": start}
    for malicious in (None, {**ONE, "poison": [acting]}):
        clients = {**LATE["clients"], **shared.get("clients", {}), "malicious": malicious}
        given = scenario(
            schedule={**LATE["schedule"], "rounds": 1 + start},
            clients=clients,
            evaluate={"every": 9},
        )
        made, tap = experiment(given, tmp_path / str(malicious is None)), Recorder()
        made.parts.wire.taps.append(tap)
        made.run(resume=False)
        runs.append([p for p in tap.packets if made.parts.wire.moment.counted_phase == "train"])
    clean, attacked = runs
    differing = [
        (one.client, one.round, one.leg)
        for one, other in zip(clean, attacked, strict=False)
        if any(not torch.equal(a, b) for a, b in zip(one.tensors, other.tensors, strict=True))
    ]
    assert differing, "the poison changed nothing"
    client, number, leg = differing[0]
    if kind == "replace":  # what it hands on, in the next round, is the first that is not as it was
        assert (client, number, leg) == (2, 1 + start, Leg.HANDOVER)
    else:
        assert (client, number) == (2, start)
        labels_alone = kind in ("label_flip", "semantic")
        data = Leg.FEATURES_GRAD if labels_alone else Leg.SMASHED
        assert leg == Leg(options.get("leg", data))


@pytest.mark.parametrize("how", ["boost", "sign", "noise"])
def test_who_is_evaluated_changes_nothing_that_is_handed_over(how: str, tmp_path: Path):
    """Weights that are brought to be evaluated come back as they were."""
    losses = []
    for every in (1, 0):
        given = scenario(
            clients={"count": 3, "malicious": {**ONE, "poison": [{"kind": "replace", "how": how}]}},
            schedule={"kind": "per_client", "rounds": 3},
            attacks=[{"kind": "kmeans"}],
            targets={"count": 10, "every": every},
            evaluate={"every": 0},
        )
        made = experiment(given, tmp_path / str(every))
        made.run(resume=False)
        losses.append(Run.load(made.path).rounds["train_loss"].tolist())
    assert losses[0] == losses[1]


def test_what_is_remembered_lies_where_the_next_packet_does() -> None:
    """A resumed run reads its state on the CPU, whatever device it trains on."""
    weights = nn.Parameter(torch.ones(2, device="meta"))
    for how in ("stale", "boost", "sign"):
        made = build("replace", {"how": how}).for_client(1, PART)
        made.load({"head.weight": torch.ones(2)})
        sent = made.on_packet(Packet(1, Leg.HANDOVER, 1, 0, (weights,), ("head.weight",)))
        assert sent.tensors[0].device.type == "meta"
    spread = _Spread()
    spread.sums = {"count": torch.tensor(1.0), "total": torch.ones(2), "squares": torch.ones(2)}
    spread.add(torch.ones(3, 2, device="meta"))
    assert spread.sums["total"].device.type == "meta"
