"""Topology, heads, schedule, aggregation: each combination trains, or is refused with ways out."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from contracts.walk import AGGREGATIONS, HEADS, PRODUCT, SCHEDULES
from gists import says
from pace import quick
from plain_loops import train
from schema import validator

from simsplit.errors import ScenarioError
from simsplit.results import Run
from simsplit.scenario import load_scenario, parse
from simsplit.scenario.files import assign
from simsplit.topologies import TOPOLOGIES

NETWORK = {"device": "phone", "link": "lte"}


def fields(topology: str, heads: str, schedule: str, aggregation: str) -> dict[str, Any]:
    return {
        "topology": topology,
        "clients": dict(HEADS[heads]),
        "schedule": {"kind": schedule, "rounds": 1, "local_steps": 1},
        "aggregation": {"kind": aggregation},
        "network": NETWORK,
    }


def goes(topology: str, heads: str, schedule: str, aggregation: str) -> bool:
    """Return whether a combination is possible, by the meaning of its parts."""
    shares = heads == "shared" or (heads == "own, one tail" and topology == "u_shaped")
    in_turn = schedule in ("round_robin", "per_client")
    return {
        "none": in_turn or not shares,  # handing round takes turns
        "splitfed_v1": schedule != "asynchronous",  # nobody is stale on a trunk of its own
        "splitfed_v2": shares,
        "fused": schedule == "parallel",
    }[aggregation]


JOINT = [axes for axes in PRODUCT if TOPOLOGIES[axes[0]].joint]
"""Clients are parties of the same samples: there are rules of their own."""
CUT = [axes for axes in PRODUCT if not TOPOLOGIES[axes[0]].whole_model and axes not in JOINT]
"""Whole models are for texts, which cannot be fused: contracts/ walks those."""
POSSIBLE = [axes for axes in CUT if goes(*axes)]
IMPOSSIBLE = [axes for axes in CUT if not goes(*axes)]


@pytest.mark.slow
@pytest.mark.parametrize("axes", quick(POSSIBLE, *POSSIBLE[::4]), ids=" ".join)
def test_what_is_possible_trains(axes: tuple[str, str, str, str], tmp_path: Path) -> None:
    result = Run.load(train(tmp_path / "run", [6, 2], **fields(*axes)).path)
    assert result.rounds["steps"].tolist() == [2]
    assert result.rounds["simulated_s"].iloc[0] > 0
    assert result.summary["last"]["test_loss"] > 0
    averages = {"handover", "broadcast"} <= set(result.wire["leg"])
    shares = axes[1] == "shared" or (axes[1] == "own, one tail" and axes[0] == "u_shaped")
    assert averages == (shares and axes[3] != "none")


def refusal(values: dict[str, Any]) -> str:
    with pytest.raises(ScenarioError) as caught:
        parse(values)
    return str(caught.value)


def test_what_is_impossible_is_refused_with_ways_out() -> None:
    """Each way out that is named is one."""
    wrong = []
    for axes in IMPOSSIBLE:
        field, _, rest = refusal(fields(*axes)).partition(": ")
        start, _, ways = rest.partition("; allowed: ")
        kinds, _, other = ways.partition(", or ")
        if (field, start.split(";")[0]) != ("scenario.aggregation", f"got {axes[3]}") or not kinds:
            wrong.append((axes, rest))
        tried = [fields(*axes[:3], kind) for kind in kinds.split(", ")]
        if other:
            tried.append(fields(*axes))
            name, value = other.split(": ")
            assign(tried[-1], "schedule.kind" if name == "schedule" else name, value)
        for values in tried:
            parse(values)
    assert wrong == []


@pytest.mark.parametrize("axes", JOINT, ids=" ".join)
def test_parties_own_their_heads_step_together_and_average_nothing(
    axes: tuple[str, str, str, str],
) -> None:
    _, heads, schedule, aggregation = axes
    unfit = {
        "clients.heads": heads == "shared",
        "clients.tail": heads == "own, one tail",
        "schedule.kind": schedule not in ("round_robin", "parallel"),
        "aggregation.kind": aggregation != "none",
    }
    values = fields(*axes) | {
        "data": {"source": {"kind": "digits", "size": 8}, "partition": "parts"},
        "model": {"kind": "mlp", "widths": [6, 8, 5]},
        "clients": {"count": 2, **HEADS[heads]},
    }
    if not any(unfit.values()):
        parse(values)
        return
    with pytest.raises(ScenarioError) as caught:
        parse(values)
    named = {problem.field.removeprefix("scenario.") for problem in caught.value.problems}
    assert named
    assert named <= {field for field, is_unfit in unfit.items() if is_unfit}


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"schedule": "asynchronous", "clients": {"heads": "per_client"}}, "network"),
        ({"cohort": {"deadline_s": 3}}, "cohort.deadline_s"),
    ],
)
def test_what_goes_by_simulated_time_needs_a_network(values: dict[str, Any], field: str) -> None:
    message = refusal(values)
    assert message.startswith(f"scenario.{field}: ")
    example = yaml.safe_load(message[message.index("network: {") :])
    parse(values | example)


@pytest.mark.parametrize(
    ("clients", "fraction", "fits"), [(3, 1.0, True), (2, 1.0, False), (10, 0.2, False)]
)
def test_a_strategy_that_can_never_be_given_what_it_needs(
    clients: int, fraction: float, *, fits: bool
) -> None:
    values: dict[str, Any] = {
        "clients": {"count": clients},
        "cohort": {"fraction": fraction},
        "aggregation": {"kind": "splitfed_v2", "strategy": "krum"},
    }
    if fits:
        parse(values)
        return
    assert says(
        refusal(values),
        "scenario.aggregation.strategy: ... krum ... 3 clients ... "
        "clients.count ... cohort.fraction ... 2",
    )


WORDS = {
    "aggregation": AGGREGATIONS,
    "engine": ("inline", "ray", "auto"),
    "schedule": SCHEDULES,
}
STRATEGIES = ("fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedmedian", "krum")


@pytest.mark.parametrize(
    ("field", "word"), [(field, word) for field, words in WORDS.items() for word in words]
)
def test_a_bare_word_stands_for_a_part_without_options(
    field: str, word: str, tmp_path: Path
) -> None:
    """In a file, from the command line, and for an editor."""
    around: dict[str, Any] = {"network": NETWORK}
    if word == "asynchronous":
        around["clients"] = {"heads": "per_client"}
    elif word in ("parallel", "fused"):
        around |= {"schedule": "parallel", "aggregation": "fused"}
    whole = parse(around | {field: {"kind": word}})
    file = tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump(around | {field: word}))
    assert load_scenario(file) == whole
    file.write_text(yaml.safe_dump(around))
    assert load_scenario(file, {field: word}) == whole
    schema = validator()
    assert schema.is_valid(around | {field: word})
    assert not schema.is_valid(around | {field: word + "s"})


@pytest.mark.parametrize(
    ("values", "valid"),
    [
        ({"schedule": {"rounds": 1}}, True),
        ({"train": {"client": {"lr": 0.1}}}, True),
        ({"data": {"source": {"size": 28}}}, True),
        ({"model": {"stem": "cifar"}}, False),
        ({"schedule": {"max_ahead": 1}}, False),
        ({"schedule": {"rounds": 0}}, True),  # evaluated and attacked untrained
        ({"schedule": {"rounds": -1}}, False),
    ],
)
def test_an_editor_knows_where_the_kind_may_be_left_out(
    values: dict[str, Any], valid: bool
) -> None:
    assert validator().is_valid(values) == valid
    if valid:
        assert parse(values)
    else:
        assert refusal(values)


@pytest.mark.parametrize("aggregation", AGGREGATIONS[1:])
@pytest.mark.parametrize("word", STRATEGIES)
def test_a_bare_word_stands_for_a_strategys_defaults(word: str, aggregation: str) -> None:
    around = {"schedule": "parallel"}
    short = around | {"aggregation": {"kind": aggregation, "strategy": word}}
    whole = around | {"aggregation": {"kind": aggregation, "strategy": {"kind": word}}}
    assert parse(short) == parse(whole)
    schema = validator()
    assert schema.is_valid(short)
    assert schema.is_valid(whole)


@pytest.mark.parametrize(
    ("values", "gist"),
    [
        ({"schedule": "paralel"}, "schedule: ... 'paralel' ... 'parallel'"),
        ({"aggregation": "splitfed"}, "aggregation: ... 'splitfed' ... 'splitfed_"),
        ({"engine": "rya"}, "engine: ... 'rya' ... 'ray' ... inline"),
        (
            {"aggregation": {"kind": "splitfed_v1", "strategy": "fedagv"}},
            "aggregation.strategy: ... 'fedagv' ... 'fedavg' ... fedavg",
        ),
        (
            {"aggregation": {"kind": "splitfed_v1", "strategy": {"kind": "fedagv"}}},
            "aggregation.strategy.kind: ... 'fedagv' ... 'fedavg'",
        ),
        (
            {"aggregation": {"kind": "splitfed_v1", "moment": "keep"}},
            "aggregation.moment: ... 'moments'",
        ),
        ({"schedule": "parallel", "aggregation": "none"}, "aggregation: got none; it hands "),
        ({"schedule": 3}, "schedule: ... 3 ... round_robin"),
    ],
)
def test_a_wrong_word_is_blamed_where_it_stands(values: dict[str, Any], gist: str) -> None:
    assert says(refusal(values), f"scenario.{gist}")
