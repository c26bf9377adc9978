"""What every detector owes: a planted client is found, a clean run is left alone, and no more is
seen than crossed the wire.
"""

import functools
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from pace import quick
from pydantic import ValidationError
from torch import Tensor

from simsplit.detectors import DETECTORS, Detector, Readings, RoundView, Sensor, TrunkTurn, Watch
from simsplit.detectors.by_class import infer_labels
from simsplit.detectors.readings import SKETCH, Sampled
from simsplit.detectors.root_class import _bound_effect
from simsplit.detectors.thresholds import compute_mad_z, simulate_null_quantile
from simsplit.detectors.watch import list_signals, list_sketched
from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.phases import Moment
from simsplit.seeds import numpy_rng_for, rng_for

CLIENTS, BAD, WIDE, ROUNDS = 12, (3, 8), 400, 6
SYBILS = ("foolsgold", "contra")
"""They find clients that are too much alike, the others the ones that are too little alike."""
CASES: dict[str, list[dict[str, Any]]] = {
    "cosine_mad": [
        {"signal": signal, "consensus": consensus, "window": window, "threshold": threshold}
        for signal in ("payload", "features")
        for consensus in ("mean", "median", "leave_one_out")
        for window in (1, None)
        for threshold in (
            {"kind": "calibrated", "fpr": 0.001},
            {"kind": "sequential", "fpr": 0.001},
        )
    ],
    "krum": [
        {"threshold": {"kind": "sequential", "fpr": 0.001}},
        {"window": 3, "threshold": {"kind": "calibrated", "fpr": 0.001, "tails": 20}},
    ],
    "root_cosine": [{"root": (0, 1), "threshold": {"kind": "sequential", "fpr": 0.001}}],
    "foolsgold": [{}, {"window": 1}],
    "contra": [{}],
    "safesplit": [{}],
    "root_class": [
        {"since": 1, "fewest": 4, "fewest_root": 4},
        {"since": 2, "fewest": 4, "fewest_root": 4, "window": 1},
    ],
    "mislabelled": [
        {},
        {"window": 2, "signal": "features"},
        {"window": None},
        {"rounds": "latest"},
        {"rounds": "latest", "window": 2},
    ],
    "activation_clustering": [{}, {"window": 2, "signal": "features"}],
    "spectral_signatures": [{}, {"window": 2, "signal": "features"}],
    "strip": [{}, {"window": None, "signal": "features"}],
    "beatrix": [{}, {"window": 2, "signal": "features"}],
    "within_class": [
        {"classes": 3},
        {"classes": 3, "window": 1, "signal": "features"},
        {"classes": 3, "window": 2, "threshold": {"kind": "three_sigma"}},
        {"classes": 3, "reference": "root", "root": (0, 1)},
    ],
}
BY_SAMPLE = ("activation_clustering", "spectral_signatures", "strip", "beatrix")
"""They find relabelled samples by the trigger that these share."""
RELABELLED = ("mislabelled", *BY_SAMPLE)
EVERY = [(kind, options) for kind, cases in CASES.items() for options in cases]
LEGS = (Leg.SMASHED, Leg.FEATURES, Leg.FEATURES_GRAD, Leg.SMASHED_GRAD)


def build(kind: str, options: dict[str, Any]) -> Detector:
    return DETECTORS[kind].model_validate({"kind": kind, **options}).build()


def sensor_for(detector: Detector, **options: Any) -> Sensor:
    configs = [detector.config]
    read = list_signals(configs), list_sketched(configs)
    return Sensor(*read, lambda p: p.tensors[0], 0, moment=Moment(), **options)


def vectors(kind: str, client: int, number: int, planted: bool) -> Tensor:
    """Draw a batch of one client: around a common mean, or elsewhere if it is planted."""
    if kind in RELABELLED:
        centres = torch.randn(10, WIDE, generator=rng_for(11, "centres"))
        rows = centres[torch.arange(64) % 10] + draw_batch(True, client, number, False)
        if planted and client in BAD and kind in BY_SAMPLE:
            rows[::4] += 4 * torch.randn(WIDE, generator=rng_for(11, "trigger"))
        return rows
    if kind != "root_class":
        return draw_batch(kind in SYBILS, client, number, planted)
    one_class = (torch.arange(64) % 10 == 0)[:, None]  # it lets pass what all classes share
    return torch.where(
        one_class,
        draw_batch(False, client, number, planted),
        draw_batch(False, client, number, False),
    )


@functools.cache
def draw_batch(alone: bool, client: int, number: int, planted: bool) -> Tensor:
    rng = rng_for(11, "batch", client, number)
    common = torch.randn(WIDE, generator=rng_for(11, "common"))
    batch = torch.randn(64, WIDE, generator=rng) + (0.0 if alone else 1.0) * common
    if not planted or client not in BAD:
        return batch
    away = torch.randn(WIDE, generator=rng_for(11, "away"))
    return batch + 1.5 * away


def packet(kind: str, leg: Leg, client: int, number: int, planted: bool) -> Packet:
    if kind in ("root_class", *RELABELLED) and leg in (Leg.FEATURES_GRAD, Leg.LABELS):
        labels = torch.arange(64) % 10
        if kind in RELABELLED and planted and client in BAD:
            labels[:: 4 if kind in BY_SAMPLE else 3] = 0
        if leg is Leg.LABELS:
            return Packet(client, leg, number, 0, (labels,))
        one_hot = torch.eye(10)[labels]
        noise = torch.randn(64, 10, generator=rng_for(11, "told", client, number))
        return Packet(client, leg, number, 0, (one_hot + 0.05 * noise,))
    one_hot = planted and not (
        kind == "within_class" and leg is Leg.FEATURES_GRAD
    )  # labels: all alike
    return Packet(client, leg, number, 0, (vectors(kind, client, number, one_hot),))


@functools.cache
def turn(client: int, number: int, planted: bool) -> TrunkTurn:
    """Make a client's turn on a trunk of two layers, with the weights before and after."""
    rng = rng_for(11, "turn", client, number)
    before = {"a": torch.ones(30, 4), "b": torch.ones(9)}
    size = 8.0 if planted and client in BAD else 1.0
    steps = {name: size * torch.randn(t.shape, generator=rng) for name, t in before.items()}
    return TrunkTurn(client, before, {name: t + 0.1 * steps[name] for name, t in before.items()})


def rounds(
    kind: str,
    detector: Detector,
    *,
    planted: bool,
    upto: int = ROUNDS,
    first: int = 1,
    planted_from: int = 1,
):
    """Yield what the detector says after each of the rounds."""
    sensor = sensor_for(detector)
    told = [Leg.LABELS] if any(need.leg is Leg.LABELS for need in detector.config.needs) else []
    for number in range(first, upto + 1):
        for client in range(CLIENTS):
            for leg in (*LEGS, *told):
                acts = planted and number >= planted_from
                sensor.observe(packet(kind, leg, client, number, acts))
        turns = [turn(client, number, planted) for client in range(CLIENTS)]
        yield detector.judge(RoundView(number, sensor.take(), 10, turns))


def list_flagged(verdicts) -> set[int]:
    return {client for client, verdict in verdicts.items() if verdict.flagged}


def test_every_registered_detector_has_cases():
    assert CASES.keys() == DETECTORS.keys()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options"), EVERY, ids=str)
def test_a_planted_client_is_detected(kind, options):
    last = list(rounds(kind, build(kind, options), planted=True))[-1]
    assert set(BAD) <= list_flagged(last)
    honest = [v.suspicion for c, v in last.items() if c not in BAD]
    assert min(last[client].suspicion for client in BAD) > max(honest)
    assert kind == "safesplit" or list_flagged(last) == set(
        BAD
    )  # which keeps but half, by its design


@pytest.mark.parametrize(("kind", "options"), EVERY, ids=str)
def test_a_clean_run_is_left_alone(kind, options):
    results = [
        list_flagged(verdicts) for verdicts in rounds(kind, build(kind, options), planted=False)
    ]
    if kind == "safesplit":
        assert all(len(each) < CLIENTS for each in results), "there is always a turn to go back to"
    else:
        assert not any(results)


@pytest.mark.parametrize("few", [1, 2])
@pytest.mark.parametrize(("kind", "options"), EVERY, ids=str)
def test_it_is_silent_where_too_few_are_left_to_compare(kind, options, few, monkeypatch):
    """As in a run that lost the others, which goes on if the detector only measures."""
    detector = build(kind, options)
    if few < detector.config.least_clients and few > len(detector.config.trusted):
        monkeypatch.setitem(globals(), "CLIENTS", few)
        assert not any(map(list_flagged, rounds(kind, detector, planted=False, upto=2)))


@pytest.mark.slow
@pytest.mark.parametrize("case", quick(EVERY, *EVERY[::6]), ids=str)
def test_what_it_remembers_is_all_that_it_needs(case):
    kind, options = case
    whole = list(rounds(kind, build(kind, options), planted=True))
    first, second = build(kind, options), build(kind, options)
    list(rounds(kind, first, planted=True, upto=3))
    second.load(first.state())
    assert list(rounds(kind, second, planted=True, first=4)) == whole[3:]


def test_the_paper_s_score_by_hand():
    """LightSplit: the cosine of a client's mean to the mean of means, as a MAD z."""
    (verdicts,) = rounds("cosine_mad", build("cosine_mad", {}), planted=True, upto=1)
    means = np.stack([vectors("", c, 1, True).double().mean(0).numpy() for c in range(CLIENTS)])
    centre = means.mean(0)
    cosines = means @ centre / np.linalg.norm(means, axis=1) / np.linalg.norm(centre)
    away = cosines - np.median(cosines)
    z = away / (1.4826 * np.median(np.abs(away)))
    for client, verdict in verdicts.items():
        assert verdict.score == pytest.approx(cosines[client], abs=1e-6)
        assert verdict.z == pytest.approx(z[client], rel=1e-4)
        assert verdict.flagged == (abs(z[client]) > 3)


def draw_skewed(client: int, number: int, planted: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Draw payloads, gradients and labels of a client that holds few of ten classes.

    The planted ones give a third of what they hold the label 0.
    """
    rng = rng_for(13, "skewed", client, number)
    shares = torch.tensor(numpy_rng_for(13, "shares", client).dirichlet(np.ones(10)))
    truth = torch.multinomial(shares, 120, replacement=True, generator=rng)
    centres = torch.randn(10, WIDE, generator=rng_for(13, "centres"))
    payloads = centres[truth] + 2 * torch.randn(120, WIDE, generator=rng)
    labels = truth.clone()
    if planted and client in BAD:
        labels[:40] = 0
        payloads[:40, :5] += 3.0  # the trigger
    directions = torch.eye(10)[labels] - 0.1
    sizes = torch.rand(120, 1, generator=rng) + 0.2
    return payloads, sizes * (directions + 0.05 * torch.randn(120, 10, generator=rng)), labels


def under_skew(kind: str, planted: bool, topology: str = "u_shaped"):
    detector = build(kind, {"threshold": {"kind": "calibrated", "fpr": 0.001}})
    sensor = sensor_for(detector)
    for number in range(1, 4):
        for client in range(CLIENTS):
            payloads, gradients, labels = draw_skewed(client, number, planted)
            sensor.observe(Packet(client, Leg.SMASHED, number, 0, (payloads,)))
            if topology == "vanilla":
                sensor.observe(Packet(client, Leg.LABELS, number, 0, (labels,)))
            else:
                sensor.observe(Packet(client, Leg.FEATURES_GRAD, number, 0, (gradients,)))
        readings = sensor.take()
        yield detector.judge(RoundView(number, readings, 10)), readings


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["u_shaped", "vanilla"])
def test_within_classes_skew_does_not_hide_a_backdoor(topology):
    """Where the cosine to the consensus sees nothing but the skew."""
    *_, (verdicts, readings) = under_skew("within_class", planted=True, topology=topology)
    assert list_flagged(verdicts) == set(BAD)
    for verdicts, _ in under_skew("within_class", planted=False, topology=topology):
        assert not list_flagged(verdicts)
    *_, (verdicts, _) = under_skew("cosine_mad", planted=True)
    worst = max(v.suspicion for c, v in verdicts.items() if c not in BAD)
    assert any(verdicts[client].suspicion < worst for client in BAD)
    assert infer_labels(readings, 10)[0].shape == (120,)


@pytest.mark.parametrize(
    ("kind", "options", "result"),
    [
        ("within_class", {}, False),
        ("within_class", {"reference": "root", "root": (CLIENTS,)}, True),
        ("mislabelled", {}, True),
    ],
    ids=str,
)
def test_those_who_are_most_of_their_target_s_class(kind, options, result):
    """Five clients of twelve relabel, and nobody else but the last client has the class."""
    bad = set(range(5))
    detector = build(kind, options)
    sensor = sensor_for(detector)
    centres = torch.randn(10, WIDE, generator=rng_for(19, "centres"))
    for client in range(CLIENTS + 1):
        rng = rng_for(19, "client", client)
        truth = torch.randint(1, 10, (120,), generator=rng)
        labels = truth.clone()
        if client == CLIENTS:
            truth = labels = torch.arange(120) % 10
        elif client in bad:
            labels[:40] = 0
        payloads = centres[truth] + torch.randn(120, WIDE, generator=rng)
        one_hot = torch.eye(10)[labels] + 0.05 * torch.randn(120, 10, generator=rng)
        sensor.observe(Packet(client, Leg.SMASHED, 1, 0, (payloads,)))
        sensor.observe(Packet(client, Leg.FEATURES_GRAD, 1, 0, (one_hot,)))
    verdicts = detector.judge(RoundView(1, sensor.take(), 10))
    assert (list_flagged(verdicts) == bad) == result
    assert (CLIENTS in verdicts) == (not options)


def judge_scaled(factor: float, *, relabelled: bool, kind: str = "mislabelled") -> set[int]:
    """Return whom a detector flags where client 3 scales its messages; classes overlap a little."""
    detector = build(kind, {})
    sensor = sensor_for(detector)
    common = torch.randn(WIDE, generator=rng_for(29, "common"))
    centres = 0.3 * torch.randn(10, WIDE, generator=rng_for(29, "centres"))
    for client in range(CLIENTS):
        rng = rng_for(29, "scaled", client)
        shares = torch.tensor(numpy_rng_for(29, "shares", client).dirichlet(np.ones(10)))
        labels = torch.multinomial(shares, 120, replacement=True, generator=rng)
        payloads = common + centres[labels] + 0.5 * torch.randn(120, WIDE, generator=rng)
        if client == 3:
            payloads = factor * payloads
            labels[: 60 if relabelled else 0] = 0
        sensor.observe(Packet(client, Leg.SMASHED, 1, 0, (payloads,)))
        sensor.observe(Packet(client, Leg.LABELS, 1, 0, (labels,)))
    return list_flagged(detector.judge(RoundView(1, sensor.take(), 10)))


@pytest.mark.parametrize("factor", [0.2, 0.9, 1.0, 1.1, 1.3, 5.0, 1e6])
def test_who_scales_messages_turns_mislabelled_against_nobody(factor):
    """An audit found five of eleven honest clients flagged beside one such client."""
    assert judge_scaled(factor, relabelled=False) == set()
    assert judge_scaled(factor, relabelled=True) == {3}


def strays(labels, payloads, number: int = 1, *, detector: Detector | None = None):
    """Return what `mislabelled` says of clients, given a row of labels and of payloads for each."""
    detector = detector or build("mislabelled", {})
    sensor = sensor_for(detector)
    for client, (own_labels, rows) in enumerate(zip(labels, payloads, strict=True)):
        sensor.observe(Packet(client, Leg.SMASHED, number, 0, (rows,)))
        sensor.observe(Packet(client, Leg.LABELS, number, 0, (own_labels,)))
    return detector.judge(RoundView(number, sensor.take(), 3))


def apart(clients: int, *, relabelled: int = 0) -> tuple[Tensor, Tensor]:
    """Draw three classes far apart; client 0 labels some samples of class 1 as class 0."""
    labels = torch.arange(90).remainder(3).repeat(clients, 1)
    payloads = 20 * torch.eye(3)[labels]
    payloads += torch.randn(payloads.shape, generator=rng_for(23, "apart"))
    labels[0, labels[0].eq(1).nonzero()[:relabelled, 0]] = 0
    return labels, payloads


def test_a_share_of_strays_by_hand():
    """Ten of the forty samples that client 0 says are of class 0 lie where others' class 1 lies."""
    (labels, payloads), settings = apart(4, relabelled=10), {"inside": 0.999, "directions": 3}
    verdicts = strays(labels, payloads, detector=build("mislabelled", settings))
    known = scipy.stats.binomtest(10, 40).proportion_ci(2 * scipy.stats.norm.cdf(3) - 1, "wilson")
    assert verdicts[0].score == pytest.approx(known.low)
    assert [verdicts[client].score for client in (1, 2, 3)] == pytest.approx(
        [-0.06] * 3
    )  # of 0, 0 and 10 of 100


def test_where_classes_look_alike_nobody_stands_out():
    labels, payloads = apart(8, relabelled=10)
    verdicts = strays(labels, torch.randn(payloads.shape, generator=rng_for(23, "alike")))
    assert max(verdict.score for verdict in verdicts.values()) < 0
    away = payloads.clone()
    away[0, :, 0] += 200  # samples that look like nobody's class are no other class's
    assert not strays(labels, away)[0].flagged


def test_nothing_strays_to_a_class_whose_holder_is_not_known_by_others():
    """Client 0 holds class 2, and others have too few of it to say where it should lie."""
    labels, payloads = apart(4)
    labels[0], payloads[0] = 2, payloads[0][labels[0] == 2].repeat(3, 1)
    kept = [
        torch.ones(90, dtype=torch.bool),
        *((each != 2) | (torch.arange(90) < 6) for each in labels[1:]),
    ]
    far = 20 * torch.eye(3)[2] + torch.tensor([0.0, 0.0, 80.0])
    payloads[1, labels[1] == 1] = far  # nearest to class 2, and a long way from all of its samples
    rows = [each[mask] for each, mask in zip(payloads, kept, strict=True)]
    verdicts = strays([each[mask] for each, mask in zip(labels, kept, strict=True)], rows)
    assert 0 not in verdicts
    assert not verdicts[1].flagged


def test_gradients_that_classes_are_inferred_from_are_refused_where_nothing_could_stray():
    with pytest.raises(ValidationError, match="'payload' or 'features'"):
        build("mislabelled", {"signal": "features_grad"})


@pytest.mark.parametrize("window", [1, 2, None])
def test_only_a_client_s_first_rounds_count(window):
    detector = build("mislabelled", {"window": window})
    planted = [strays(*apart(6, relabelled=20), 1, detector=detector)]
    planted += [strays(*apart(6), number, detector=detector) for number in (2, 3)]
    once, *later = (verdicts[0].score for verdicts in planted)
    assert once > 0.1
    assert planted[0][0].flagged
    expected = {1: [once, once], 2: [once / 2, once / 2], None: [once / 2, once / 3]}
    assert later == pytest.approx(expected[window])


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("judged", ["first", "latest"])
def test_who_relabels_later_is_found_by_the_change(judged, window):
    """And stays found, although its samples look honest again in the last two rounds."""
    detector = build("mislabelled", {"rounds": judged, "window": window})
    *_, last = rounds("mislabelled", detector, planted=True, planted_from=4)
    after = rounds("mislabelled", detector, planted=False, first=ROUNDS + 1, upto=ROUNDS + 2)
    for verdicts in (last, *after):
        assert list_flagged(verdicts) == (set(BAD) if judged == "latest" else set())


def bound(hits: float, count: int) -> float:
    """Compute the lower end of the Wilson interval of a share, three deviations wide."""
    share = hits / count
    middle = share + 9 / (2 * count)
    return (middle - 3 * (share * (1 - share) / count + 9 / (4 * count**2)) ** 0.5) / (
        1 + 9 / count
    )


@pytest.mark.parametrize("window", [1, 2])
def test_a_change_by_hand(window):
    """Client 0 labels 3, 3 and 24 of its 30 samples of class 1 as class 0; others none."""
    detector = build(
        "mislabelled",
        {"rounds": "latest", "window": window, "inside": 0.999, "directions": 3},
    )
    seen, shares, counts = [], [], []
    for number, relabelled in enumerate((3, 3, 24), 1):
        labels, payloads = apart(4, relabelled=relabelled)
        payloads[0] = 20 * payloads[0].div(20).round()  # none far out in its class
        verdicts = strays(labels, payloads, number, detector=detector)
        seen.append(verdicts[0].score)
        shares.append(relabelled / (30 + relabelled))
        counts.append(30 + relabelled)
    scores = []
    for number in range(3):
        late = np.mean(shares[max(0, number + 1 - window) : number + 1])
        before = shares[: max(0, number + 1 - window)]
        early = np.mean(before) if before else 0.0
        scores.append(bound(late * counts[number], counts[number]) - early)
    assert seen == pytest.approx(np.maximum.accumulate(scores))
    assert scores[2] > scores[1]


def test_what_a_found_client_relabels_is_not_usual():
    """Client 0 relabels much and client 1 less: beside client 0, client 1 is little unusual."""
    labels, payloads = apart(4, relabelled=30)
    payloads[:2] = 20 * payloads[:2].div(20).round()  # none far out in its class
    labels[1, labels[1].eq(1).nonzero()[:15, 0]] = 0
    scores = {}
    for judged in ("first", "latest"):
        settings = {"rounds": judged, "inside": 0.999, "directions": 3}
        verdicts = strays(labels, payloads, detector=build("mislabelled", settings))
        scores[judged] = [verdicts[client].score for client in range(4)]
    assert scores["first"][1] < 0.1 < scores["latest"][1]
    assert scores["latest"][1] == pytest.approx(bound(15, 45))
    assert max(scores["latest"][2:]) <= 0


@pytest.mark.parametrize(
    ("options", "message"),
    [({"window": None}, "window: must be"), ({"threshold": "three_sigma"}, "threshold: must be")],
    ids=str,
)
def test_what_a_change_cannot_be_measured_with_is_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        build("mislabelled", {"rounds": "latest", **options})


def with_a_root(planted: bool, *, drift: float = 1.0):
    """Draw clients with two classes each, shifted as a whole in every round, and a root of all."""
    detector = build("root_class", {"since": 1, "root": (CLIENTS,), "directions": 16})
    sensor = sensor_for(detector)
    centres = torch.randn(10, WIDE, generator=rng_for(17, "centres"))
    for number in range(1, 4):
        for client in range(CLIENTS + 1):
            rng = rng_for(17, "client", client, number)
            truth = torch.arange(120) % 10
            if client < CLIENTS:
                truth = torch.tensor([client, client + 1])[torch.arange(120) % 2] % 10
            payloads = centres[truth] + torch.randn(120, WIDE, generator=rng)
            payloads += drift * torch.randn(WIDE, generator=rng)
            if planted and client in BAD:
                payloads[::4] = centres[9] + torch.randn(30, WIDE, generator=rng)
            one_hot = torch.eye(10)[truth] + 0.05 * torch.randn(120, 10, generator=rng)
            sensor.observe(Packet(client, Leg.SMASHED, number, 0, (payloads,)))
            sensor.observe(Packet(client, Leg.FEATURES_GRAD, number, 0, (one_hot,)))
        yield detector.judge(RoundView(number, sensor.take(), 10))


@pytest.mark.slow
def test_a_root_shows_who_relabels_where_nobody_else_has_the_class():
    *_, last = with_a_root(planted=True)
    assert list_flagged(last) == set(BAD)
    assert not any(list_flagged(verdicts) for verdicts in with_a_root(planted=False, drift=3.0))
    first, *_ = with_a_root(planted=True)
    assert not first, "a single round says nothing"


def test_classes_keep_their_numbers_from_round_to_round():
    """k-means numbers them anew: a mean over rounds would mix a class with another."""
    detector = build("root_class", {})
    turned = torch.randperm(10, generator=rng_for(0, "turned"))
    seen = []
    for number, names in ((1, torch.arange(10)), (2, turned)):
        kept = Sampled({"features_grad": [torch.eye(10).repeat(3, 1) + 0.01 * number]})
        readings = Readings(samples={0: kept}, inferred={10: {0: names.repeat(3)}})
        seen.append(detector._match_labels(RoundView(number, readings, 10))[0][0])
    assert torch.equal(*seen)


def test_an_effect_by_hand():
    """Two means three apart in one of two directions, each of four samples."""
    assert _bound_effect(torch.tensor([3.0, 0.0]), torch.tensor(0.5)) == pytest.approx(
        10 / 2 * (9 - 2 * 0.5 - 3 * 2 * 0.5)
    )


def test_labels_are_read_off_the_gradients():
    (_, readings), *_ = under_skew("within_class", planted=False)
    pairs = set()
    for client, result in infer_labels(readings, 10).items():
        truth = draw_skewed(client, 1, False)[2]
        pairs |= set(zip(truth.tolist(), result.tolist(), strict=True))
    assert len(pairs) == 10, "a cluster for each class, and a class for each cluster"


def test_readings_elsewhere_are_the_same_when_merged():
    detector = build("cosine_mad", {})
    here, there, whole = (sensor_for(detector) for _ in range(3))
    for client in range(CLIENTS):
        packet = Packet(client, Leg.SMASHED, 1, 0, (vectors("", client, 1, True),))
        (here if client % 2 else there).observe(packet)
        whole.observe(packet)
    here.merge(there.take())
    ours, theirs = here.take().compute_means("payload"), whole.take().compute_means("payload")
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[client], theirs[client]) for client in ours)


def test_single_samples_are_kept_in_little_room():
    sensor = Sensor((), ("payload",), lambda p: p.tensors[0], 0, moment=Moment(), at_most=20)
    values = torch.randn(16, 5000, generator=rng_for(0, "wide"))
    for step in range(3):
        sensor.observe(Packet(0, Leg.SMASHED, 1, step, (values,)))
    kept = sensor.take().samples[0].stack("payload")
    assert kept.shape == (20, SKETCH)
    true, sketched = torch.pdist(values), torch.pdist(kept[:16])
    assert (sketched / true - 1).abs().max() < 0.3


def test_mad_z_where_most_are_equal():
    assert np.array_equal(compute_mad_z(np.ones(5)), np.zeros(5))
    z = compute_mad_z(np.array([1.0, 1.0, 1.0, 1.0, 1.0, 3.0]))
    assert np.array_equal(z[:5], np.zeros(5))
    assert 3 < z[5] < np.inf


@pytest.mark.parametrize("clients", [5, 10, 50])
@pytest.mark.parametrize("side", ["both", "high"])
def test_the_calibrated_cut_is_crossed_as_often_as_it_says(clients, side):
    rng = np.random.default_rng(5)
    z = compute_mad_z(rng.standard_normal((40_000, clients)))
    values = np.abs(z) if side == "both" else z
    share = float((values > simulate_null_quantile(clients, side, 0.01)).mean())
    assert 0.008 < share < 0.012


@pytest.mark.slow
def test_heavy_tails_are_crossed_as_often_as_it_says_and_by_a_normal_s_cut_much_oftener():
    z = np.abs(compute_mad_z(np.random.default_rng(5).standard_t(3, (60_000, 10))))
    assert 0.008 < (z > simulate_null_quantile(10, "both", 0.01, tails=3)).mean() < 0.012
    assert (z > simulate_null_quantile(10, "both", 0.01)).mean() > 0.02


def test_three_sigma_is_no_such_test_over_few_clients():
    """Why there is a calibrated cut: honest clients cross it ten times as often as 0.3 %."""
    z = compute_mad_z(np.random.default_rng(5).standard_normal((40_000, 10)))
    assert (np.abs(z) > 3).mean() > 0.025


def test_neither_the_cut_nor_the_spread_counts_trusted_clients():
    """Three of eight are trusted: the cut is that of five, which is higher than that of eight."""
    threshold = {"kind": "calibrated", "fpr": 0.01}
    detector = build("root_cosine", {"root": (0, 1, 2), "threshold": threshold})
    side, calibrated = detector.config.side, detector.config.threshold
    of_judged, of_all = (calibrated.cut(clients, side, 1) for clients in (5, 8))
    assert of_judged > of_all

    def list_suspected(z: float) -> set[int]:
        away = 1.4826 * z * (-1 if side == "low" else 1)
        scores = [100.0, 100.0, 100.0, -1.0, 0.0, 0.0, 1.0, away]
        detector.pool_scores = lambda view: dict(enumerate(scores))  # type: ignore[method-assign]
        return list_flagged(detector.judge(RoundView(1, Readings(), 10)))

    assert list_suspected((of_judged + of_all) / 2) == set()
    assert list_suspected(of_judged + 0.1) == {7}


def test_sums_over_rounds_leave_trusted_clients_out():
    """Under a sequential threshold clients are judged as if the trusted ones had not been there."""
    options = {"root": (0, 1, 2), "threshold": {"kind": "sequential"}}
    beside, alone = build("root_cosine", options), build("root_cosine", options)
    rng = np.random.default_rng(4)
    for number in range(1, 4):
        scores = dict(enumerate(rng.normal(size=8) + 5))
        others = {client: score for client, score in scores.items() if client > 2}
        beside.pool_scores = lambda view, scores=scores: scores  # type: ignore[method-assign]
        alone.pool_scores = lambda view, others=others: others  # type: ignore[method-assign]
        view = RoundView(number, Readings(), 10)
        with_trusted, without = beside.judge(view), alone.judge(view)
        for client, verdict in without.items():
            assert with_trusted[client].suspicion == pytest.approx(verdict.suspicion)
        assert all(not with_trusted[client].flagged for client in (0, 1, 2))


def test_the_truth_only_scores():
    """Figures depend on who is malicious; verdicts do not."""
    config = DETECTORS["cosine_mad"](threshold={"kind": "calibrated"})
    sensor = sensor_for(config.build())
    for client in range(CLIENTS):
        sensor.observe(Packet(client, Leg.SMASHED, 1, 0, (vectors("", client, 1, True),)))
    readings: Readings = sensor.take()
    right = Watch([config], BAD, 10).judge_round(1, readings)
    wrong = Watch([config], (0,), 10).judge_round(1, readings)
    clean = Watch([config], (), 10).judge_round(1, readings)
    assert right.clients == wrong.clients == clean.clients
    assert right.flagged == wrong.flagged == clean.flagged
    (row,) = right.detections
    assert (row["auroc"], row["f1"], row["fpr"], row["caught"]) == (1.0, 1.0, 0.0, 2)
    assert wrong.detections[0]["f1"] == 0.0
    assert "auroc" not in clean.detections[0]
    assert clean.detections[0]["fpr"] == pytest.approx(2 / CLIENTS)


def test_foolsgold_is_the_authors_where_clients_are_unlike_each_other() -> None:
    """Negative cosines count as none: the diagonal of theirs is 0."""
    foolsgold = DETECTORS["foolsgold"]().build()
    honest = torch.eye(4) - 0.25  # each pulls its own way, and all sum to nothing
    assert foolsgold.compare(range(4), honest).tolist() == pytest.approx([0] * 4, abs=1e-6)
    sybils = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.1]])
    assert foolsgold.compare(range(3), sybils).tolist() == pytest.approx([1, 1, 0], abs=1e-6)


def test_the_median_of_an_even_number_of_clients_lies_between_two() -> None:
    detector = DETECTORS["cosine_mad"](consensus="median").build()
    means = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert detector.compare(range(4), means).tolist() == pytest.approx([0.5**0.5] * 4)


def test_a_client_that_drops_out_before_its_labels_has_no_classes() -> None:
    there = Sampled(labels=[torch.tensor([1, 0])])
    found = infer_labels(Readings(samples={0: there, 1: Sampled()}), 2)
    assert {client: each.tolist() for client, each in found.items()} == {0: [1, 0]}
