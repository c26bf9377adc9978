"""Devices, hubs and clusters that are not there: a sentence within seconds, and no other lines."""

import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
import torch
from builders import scenario
from gists import gist, says

from simsplit.engine import cluster
from simsplit.errors import ScenarioError
from simsplit.machine import find_device
from simsplit.models import hub, tokenizers, whole


@pytest.mark.parametrize(
    "name", ["banana", "meta", "xpu:0", "cuda:", "cuda:x", "", "cpu:0", "cuda:9999"]
)
def test_a_device_that_is_none_is_refused_by_its_name(name):
    with pytest.raises(ScenarioError, match=gist(f"device: ... '{name}' ... cpu, cuda, cuda:N")):
        find_device(name)
    assert find_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    "words",
    [
        ("bench", "overhead"),
        ("reproduce", "lightsplit/table9"),
        ("board", "backdoor"),
        ("run", "quickstart"),
        ("sweep", "caught"),
    ],
    ids=lambda words: words[0],
)
def test_every_command_says_so_alone(words, simsplit):
    code, out, err = simsplit(*words, "--device", "banana")
    assert (code, out) == (2, "")
    assert says(err, "device: ... 'banana' ... auto")
    assert len({line.partition("(")[0] for line in err.splitlines()}) == 1


@contextmanager
def listen(answer):
    """Open a port at which a function is called with each connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def serve():
            try:
                while True:
                    stream, _ = server.accept()
                    kept.append(stream)
                    threading.Thread(target=answer, args=(stream,), daemon=True).start()
            except OSError:
                pass

        kept = []
        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        for stream in kept:
            stream.close()


def greet_alone(stream):
    stream.recv(100)
    stream.sendall(cluster._SETTINGS)  # as HTTP/2 begins, and then nothing


@pytest.mark.parametrize("scheme", ["", "ray://"])
@pytest.mark.parametrize(
    "answer", [greet_alone, lambda stream: None, lambda stream: stream.close()]
)
def test_a_port_that_answers_no_call_is_no_cluster(answer, scheme, monkeypatch, capfd):
    monkeypatch.setattr(cluster, "ANSWER_S", 0.5)
    with listen(answer) as port, pytest.raises(ScenarioError) as caught:
        cluster._refuse_unreachable(f"{scheme}127.0.0.1:{port}", "engine.address")
    assert (caught.value.field, str(port) in caught.value.reason) == ("engine.address", True)
    assert capfd.readouterr() == ("", "")


def test_a_server_of_grpc_passes_whatever_it_answers():
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    cluster._refuse_unreachable(f"127.0.0.1:{port}", "engine.address")
    server.stop(0)


class Session:
    """The client's session of a hub that is away, or that answers; it counts."""

    def __init__(self, error=None):
        self.error, self.asked = error, 0

    def head(self, url, timeout):
        self.asked += 1
        assert timeout <= 10
        if self.error:
            raise self.error
        return "an answer"


@pytest.fixture
def hub_of(monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")

    def set_up(error=None, *, offline=False):
        session = Session(error)
        monkeypatch.setattr(huggingface_hub, "get_session", lambda: session)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
        hub.answers.cache_clear()
        return session

    yield set_up
    hub.answers.cache_clear()


def test_a_hub_that_is_away_is_asked_once(hub_of, tmp_path):
    session = hub_of(OSError("no route"))
    assert hub.lies_here(str(tmp_path))
    assert session.asked == 0
    assert (hub.lies_here("no/such"), hub.lies_here("no/other")) == (True, True)
    assert session.asked == 1
    assert (hub_of().asked, hub.lies_here("no/such")) == (0, False)
    session = hub_of(offline=True)
    assert (hub.lies_here("no/such"), session.asked) == (True, 0)


@pytest.mark.parametrize("load", [whole.load_config, tokenizers.load_tokenizer])
def test_an_unknown_name_without_a_hub_is_a_sentence(load, hub_of, capfd):
    hub_of(OSError("no route"))
    with pytest.raises(ScenarioError, match=gist("model.name: 'no/such-model' ... simsplit/demo")):
        load("no/such-model", None)
    assert capfd.readouterr().err == ""
    assert scenario().model.kind == "simplecnn"


def test_retries_of_the_hubs_client_are_one_line():
    logger, lines = logging.getLogger(hub._CLIENT), []
    level = logger.level
    logger.setLevel(logging.WARNING)  # a command of another test may have hushed it
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    try:
        with hub.hush_hub():
            for number in range(3):
                logger.warning("'%s' thrown while requesting", "an error")
                logger.warning(f"Retrying in {number}s [Retry {number}/5].")
        assert ("hub" in lines[0], len(lines)) == (True, 1)
        logger.warning("others are left alone")
        assert len(lines) == 2
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
