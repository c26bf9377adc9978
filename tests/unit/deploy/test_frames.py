"""What is in the frames of a run, and what never is: canaries, and controls in which they are."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from builders import TINY, run_to_end
from comparing import weights
from direct import Direct, Sites
from texts import CAUSAL, text_scenario

from simsplit.deploy import frames as codec
from simsplit.deploy.server_tables import COLUMNS, FramePurpose
from simsplit.deploy.terms import digest_resumable
from simsplit.results import Run, checkpoints
from simsplit.scenario import Scenario, parse
from simsplit.scenario.files import merge

OWN = {"count": 2, "heads": "per_client"}
SECRET = 0x1CEB00DA5EC2E75A11ABCDEF


def scenario(**changes: Any) -> Scenario:
    return parse(merge(merge(TINY, {"clients": {"count": 2}}), changes))


def ran(tmp_path, given: Scenario, **more: Any) -> Sites:
    sites = Sites(given, tmp_path, **more)
    sites.experiment().run(resume=False)
    return sites


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Sites:
    """The run of a scenario without changes, whose clients answer in frames."""
    return ran(tmp_path_factory.mktemp("plain"), scenario())


@pytest.fixture(scope="module")
def inline(finished) -> Path:
    """The same run in one process."""
    return finished(scenario())


def holds_canary(sites: Sites, canary: torch.Tensor) -> bool:
    """Return whether any frame holds these values one after another."""
    content = canary.detach().contiguous().numpy().tobytes()
    assert len(content) > 30, "too short to be found by chance"
    return any(content in frame for frame in sites.frames)


def labels_of(sites: Sites, number: int = 0) -> torch.Tensor:
    return sites.sites[number].client.training.feeds["private"].batch(0).labels


class TestCanaries:
    def test_labels_cross_under_vanilla_alone(self, tmp_path, plain):
        vanilla = ran(tmp_path, scenario(topology="vanilla"))
        assert holds_canary(vanilla, labels_of(vanilla)), "the control"
        assert not holds_canary(plain, labels_of(plain))

    def test_inputs_never_cross(self, plain):
        inputs = plain.sites[0].client.training.feeds["private"].batch(0).inputs
        assert not holds_canary(plain, inputs[0])

    @pytest.mark.parametrize(
        ("changes", "crosses"),
        [
            pytest.param({"clients": OWN}, False, marks=pytest.mark.slow, id="own"),
            pytest.param({}, False, id="handed on"),
            pytest.param({"aggregation": "splitfed_v2"}, True, id="averaged"),
        ],
    )
    def test_heads_cross_where_the_server_averages_them_alone(self, tmp_path, changes, crosses):
        sites = ran(tmp_path, scenario(**changes))
        site = sites.sites[1]  # which hands a shared head on when round 2 begins
        resumes = digest_resumable(site.scenario, site.mode)
        kept = checkpoints.load_round(tmp_path / "c1" / "checkpoints", resumes, 1)
        weights = [tensor for name, tensor in kept.items() if "head" in name and tensor.ndim > 1]
        assert weights
        assert [holds_canary(sites, each) for each in weights] == [crosses] * len(weights)

    def test_logits_never_cross(self, plain):
        """Under a U shape the frames of an evaluation bring figures."""
        width, batch = plain.data.info.classes, len(plain.data.test)
        message = f"[{batch},{width}]".encode()
        assert not any(message in frame for frame in plain.frames)

    def test_nor_where_clients_write(self, tmp_path):
        """Of a text that is written, the cut's packets cross, and in the end figures."""
        task = {"kind": "generation", "prompt": "{sentence} is", "answer": " about a {topic}"}
        given = text_scenario(
            tmp_path,
            model=CAUSAL,
            data={"source": {"task": task, "length": 48}},
            schedule={"rounds": 1},
            evaluate={"metrics": ["loss", "rouge_l"], "generated_texts": 3, "max_new_tokens": 3},
        )
        sites = ran(tmp_path / "sites", given)
        words = sites.sites[0].scenario.text_reader().size
        assert any(b'"call":"WriteOn"' in frame for frame in sites.frames)
        assert not any(f",{words}]".encode() in frame for frame in sites.frames)
        assert not any(b"int64" in frame for frame in sites.frames), "no tokens either"

    def test_secrets_never_cross(self, tmp_path):
        given = scenario(clients=OWN, method=[{"kind": "noise"}])
        sites = ran(tmp_path, given, mode="private", secret=SECRET)
        for form in (
            str(SECRET).encode(),
            SECRET.to_bytes(12, "little"),
            SECRET.to_bytes(12, "big"),
            str(sites.sites[0].client.training.end.seed).encode(),
        ):
            assert not any(form in frame for frame in sites.frames)


class TestTheSameAsInline:
    def test_in_tables_and_summary(self, tmp_path):
        given = scenario(method=[{"kind": "lightsplit", "ratio": 8}])
        ran(tmp_path, given)
        run_to_end(given, tmp_path / "inline")
        for table in ("rounds", "clients", "wire"):
            one, other = (tmp_path / place / f"{table}.csv" for place in ("run", "inline"))
            assert one.read_text() == other.read_text()
        ours, theirs = (Run.load(tmp_path / place) for place in ("run", "inline"))
        find_differences = {n for n in theirs.summary if ours.summary[n] != theirs.summary[n]}
        assert find_differences <= {"resident_bytes", "seconds", "per_sample"}

    @pytest.mark.slow
    def test_but_not_with_rows_in_another_order(self, tmp_path, inline):
        data = scenario().prepare_data()
        first, *others = data.parts
        reordered = replace(data, parts=[first[::-1].copy(), *others])
        Sites(scenario(), tmp_path, reordered).experiment().run(resume=False)
        runs = tmp_path / "run", inline
        tables = [(run / "rounds.csv").read_text() for run in runs]
        assert tables[0] != tables[1]
        bytes_of = [Run.load(run).wire["bytes"].tolist() for run in runs]
        assert bytes_of[0] == bytes_of[1]

    @pytest.mark.slow
    def test_nor_with_strides_dropped_on_the_way(self, tmp_path, monkeypatch):
        given = scenario(train={"channels_last": True}, clients=OWN)
        ran(tmp_path / "kept", given)
        monkeypatch.setattr(codec, "_make_dense", lambda tensor: tensor.detach().contiguous())
        ran(tmp_path / "dropped", given)
        kept, dropped = (weights(tmp_path / place / "run") for place in ("kept", "dropped"))
        assert kept.keys() == dropped.keys()
        assert any(not kept[name].equal(dropped[name]) for name in kept)

    def test_bytes_of_frames_are_little_more_than_the_wires(self, tmp_path):
        sites = ran(tmp_path, scenario(evaluate={"every": 2}))
        frames = pd.read_csv(tmp_path / "socket.csv")
        assert tuple(frames.columns) == COLUMNS
        wire = Run.load(tmp_path / "run").wire
        sent = wire[wire["leg"].isin(["features", "smashed_grad"])]["bytes"].sum()
        steps = frames[frames["call"].isin(["Proceed", "Note"])]
        assert sent < steps["down_bytes"].sum() < 1.01 * sent
        assert sites.sockets.up == frames["up_bytes"].sum()
        handed = wire[wire["leg"] == "handover"]["bytes"].sum()
        sealed = frames[frames["call"] == "HandOver"]["up_bytes"].sum()
        assert handed < sealed < 1.04 * handed, "a seal's bytes are counted too"


@pytest.mark.parametrize(
    ("changes", "seconds", "expected"),
    [
        ({"clients": {"heads": "per_client"}}, 0.2, [False, True]),  # the control: one trunk
        ({"aggregation": "splitfed_v1"}, 60, [True, True]),
    ],
)
def test_averaged_clients_compute_at_the_same_time(
    changes, seconds, expected, tmp_path, monkeypatch
):
    """Under SplitFed v1 no answer is taken before both clients have been asked to go on."""
    asked_on = {0: threading.Event(), 1: threading.Event()}
    saw_the_other: dict[int, bool] = {}
    ask, answer = Direct.ask, Direct.answer

    def note_asked(self: Direct, what: FramePurpose, *args: Any, **more: Any) -> int:
        if what.leg == "features":
            asked_on[self.client].set()
        return ask(self, what, *args, **more)

    def note_answered(self: Direct, number: int) -> Any:
        if asked_on[self.client].is_set() and self.client not in saw_the_other:
            saw_the_other[self.client] = asked_on[1 - self.client].wait(seconds)
        return answer(self, number)

    monkeypatch.setattr(Direct, "ask", note_asked)
    monkeypatch.setattr(Direct, "answer", note_answered)
    ran(tmp_path, scenario(**changes))
    assert [saw_the_other[client] for client in (0, 1)] == expected
