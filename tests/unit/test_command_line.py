"""The command line as its user meets it: what is printed where, and with which exit code."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from builders import TINY
from gists import says
from jsonschema import Draft202012Validator
from schema import validator

from simsplit.results import Run

SMALL = {
    **TINY,
    "name": "small",
    "data": {"source": "digits", "train_samples": 40, "test_samples": 20},
    "clients": {"count": 2},
    "schedule": {"kind": "round_robin", "rounds": 1},
}

PLUGIN = """
from typing import Literal
from simsplit import Method, MethodConfig

class Halve(Method):
    def encode(self, z, step):
        return z / 2

class HalveConfig(MethodConfig):
    \"\"\"Half of what the head puts out.\"\"\"
    kind: Literal["halve"] = "halve"
    def build(self, site):
        return Halve()

METHODS = {"halve": HalveConfig}
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    return path


def test_help_answers_without_loading_what_is_heavy():
    script = (
        "import sys; from simsplit.__main__ import main; sys.argv[1:] = ['--help']\n"
        "try: main()\nexcept SystemExit as end: assert not end.code\n"
        "print('|', *sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    help_text, _, modules = done.stdout.partition("|")
    for command in (
        "run",
        "sweep",
        "validate",
        "watch",
        "schema",
        "list",
        "show",
        "compare",
        "papers",
        "reproduce",
        "attack",
        "chat",
        "pretrain",
        "bench",
    ):
        assert re.search(rf"^  {command} +[A-Z].*\.$", help_text, re.MULTILINE), command
    assert "..." not in help_text.split("Commands:")[1]
    heavy = {"torch", "numpy", "pandas", "pydantic", "rich.progress", "rich.console", "yaml"}
    assert heavy & set(modules.split()) == set()


def test_the_help_of_a_command_is_plain(simsplit):
    code, out, _ = simsplit("compare", "-h")
    assert code == 0
    assert "\\" not in out
    assert says(out, "How ... [default: table]")


def test_a_run_shows_progress_on_stderr_and_its_figures_on_stdout(simsplit, small):
    code, out, err = simsplit("run", small)
    assert code == 0
    lines = err.splitlines()
    assert lines[0] == "small: 2 clients, 40 samples, 1 round"
    assert lines[-1].startswith("round 1/1  test accuracy ")
    assert out.startswith("small: finished, 1 of 1 round\n")
    assert "test accuracy" in out
    assert "smashed_grad" in out
    assert out.rstrip().endswith("(simsplit show runs/small)")
    assert "\x1b" not in out + err
    shown = simsplit("show", "runs/small")
    assert shown[0] == 0
    assert shown[1] in out


@pytest.mark.slow
def test_runs_without_a_directory_are_numbered_and_none_is_overwritten(simsplit, small):
    for _ in range(3):
        assert simsplit("run", small, "--quiet") == (0, "", "")
    assert sorted(path.name for path in small.parent.glob("runs/*")) == [
        "small", "small-2", "small-3"
    ]  # fmt: skip
    code, out, err = simsplit("run", small, "--out", "runs/small-2")
    assert (code, out) == (2, "")
    assert says(err, "error: runs/small-2 already ... --out ... --resume")


def test_json_is_all_that_stdout_has(simsplit, small):
    code, out, err = simsplit("run", small, "--json", "--out", "deep/er/one", "--device", "cpu")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["path"] == "deep/er/one"
    assert document["status"] == "finished"
    assert document | {"path": ""} == Run.load("deep/er/one").summary | {"path": ""}


def test_resuming_nothing_starts_and_resuming_the_finished_changes_nothing(simsplit, small):
    (small.parent / "empty").mkdir()
    code, out, _ = simsplit("run", small, "--out", "empty", "--resume")
    assert (code, out.splitlines()[0]) == (0, "small: finished, 1 of 1 round")
    before = (small.parent / "empty" / "rounds.csv").read_bytes()
    code, out, err = simsplit("run", small, "--out", "empty", "--resume")
    assert (code, out.splitlines()[0]) == (0, "small: finished, 1 of 1 round")
    assert "after round 1" in err
    assert (small.parent / "empty" / "rounds.csv").read_bytes() == before


def test_resuming_with_another_scenario_is_refused(simsplit, small):
    assert simsplit("run", small, "-q", "--out", "x")[0] == 0
    code, _, err = simsplit("run", small, "--out", "x", "--resume", "--set", "seed=99")
    assert code == 2
    assert says(err, "another scenario: seed ... 3 ... 99")


def test_a_folder_that_cannot_be_made_is_named_and_promises_no_checkpoint(simsplit, small):
    code, _, err = simsplit("run", small, "--out", "/proc/x")
    assert code == 2
    assert says(err.splitlines()[-1], "error: ... folder /proc/x: ... --out ... E-")
    assert "checkpoint" not in err


def test_a_run_is_made_longer_but_not_shorter_nor_under_a_rate_that_depends_on_its_length(
    simsplit, small
):
    assert simsplit("run", small, "-q", "--out", "x")[0] == 0
    longer = ("run", small, "-q", "--resume", "--set", "schedule.rounds=2", "--out")
    assert simsplit(*longer, "x")[0] == 0
    code, _, err = simsplit("run", small, "-q", "--out", "x", "--resume")
    assert code == 2
    assert "x has trained 2 rounds already" in err
    cosine = ("--set", "train.lr_schedule.kind=cosine")
    assert simsplit("run", small, "-q", "--out", "y", *cosine)[0] == 0
    code, _, err = simsplit(*longer, "y", *cosine)
    assert code == 2
    assert "schedule.rounds was 1, is 2" in err


@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_an_address_at_which_no_ray_answers_is_refused_soon(
    simsplit, small, monkeypatch, without_hosts, answer
):
    """The system accepts connections for a process that has stopped, until a queue is full."""
    monkeypatch.setattr("simsplit.engine.cluster.ANSWER_S", 0.3 if answer is None else 10.0)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with server.accept()[0] as stream:
                stream.recv(64)
                stream.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True) if answer is not None else None
        if thread is not None:
            thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        engine = ("--set", "engine.kind=ray", "--set", f"engine.address={address}")
        code, _, err = simsplit("run", small, *engine)
        if thread is not None:
            thread.join(10)
    assert code == 2
    assert says(err, f"scenario.engine.address: ... {address}")


def test_an_address_at_which_nothing_answers_is_refused_at_once(simsplit, small, without_hosts):
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        engine = ("--set", "engine.kind=ray", "--set", f"engine.address={address}")
        code, _, err = simsplit("run", small, *engine)
    assert code == 2
    assert says(err, f"scenario.engine.address: ... {address}")


@pytest.mark.slow
def test_no_colour_means_no_escape_codes_even_on_a_forced_terminal(simsplit, small, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    _, out, err = simsplit("run", small, "--out", "coloured")
    assert "\x1b[" in out
    assert "\x1b[" in err
    monkeypatch.setenv("NO_COLOR", "1")
    for words in (("run", small), ("show", "coloured"), ("list", "methods"), ("--help",), ("rn",)):
        _, out, err = simsplit(*words)
        assert "\x1b" not in out + err, words


@pytest.mark.parametrize(
    ("words", "gist"),
    [
        (["run", "{file}", "--set", "seed"], "error: --set takes FIELD=VALUE, got 'seed'"),
        (["run", "{file}", "--set", "=3"], "error: --set takes FIELD=VALUE, got '=3'"),
        (["run", "{file}", "--set", "seed=x"], "error: scenario.seed: ... 'x'"),
        (["run", "{file}", "--set", "method.1.kind=raw"], "scenario.method.1: '1' ... position"),
        (["run", "{file}", "--set", "seed=["], "scenario.seed: '[', line 1, column 2 is not"),
        (["validate", "{file}x"], "error: scenario: cannot read "),
        (["run", "{file}", "--device", "gpu"], "error: scenario.device: got 'gpu'; allowed: cpu, "),
        (["run", "{file}", "--device", "cuda:99"], "scenario.device: got 'cuda:99', but torch"),
        (["show", "nowhere"], "error: nowhere: no such folder ... E-RUN-01"),
        (["compare", "nowhere"], "error: nowhere: no such folder ... E-RUN-01"),
        (["list", "method"], "error: ... 'method' ... 'methods'"),
        (["list", "--plugin", "no.such"], "error: plugin no.such: ... imported"),
        (["rn"], "No such command 'rn'."),
        (["run"], "Missing argument 'FILE'."),
        (["run", "{file}", "--sett", "a=1"], "--sett"),
        (["show", "x", "--format", "html"], "'html' ... 'table', 'markdown'"),
    ],
)  # fmt: skip
def test_what_a_user_can_mend_is_a_line_and_exit_code_2(simsplit, small, words, gist):
    code, out, err = simsplit(*(word.format(file=small) for word in words))
    assert (code, out) == (2, "")
    assert says(err, gist)
    assert "Traceback" not in err
    assert not (small.parent / "runs").exists()


def test_an_error_of_the_scenario_names_every_field(simsplit, small):
    code, _, err = simsplit("validate", small, "--set", "sed=1", "--set", "train.batchsize=3")
    assert code == 2
    assert [line.split(": ")[-2] for line in err.replace("?", ":").splitlines()]
    assert says(err, "scenario.sed: ... 'seed'")
    assert says(err, "scenario.train.batchsize: ... 'batch_size'")


def test_a_run_that_fails_is_exit_code_1_and_says_what_is_kept(simsplit, small):
    hot = "{kind: sgd, lr: 1e30}"
    options = ("--set", f"train.client={hot}", "--set", f"train.server={hot}")
    code, out, err = simsplit("run", small, "--out", "hot", "--set", "schedule.rounds=3", *options)
    assert (code, out) == (1, "")
    assert "error: round " in err
    assert "finite" in err
    code, out, _ = simsplit("show", "hot")
    assert code == 0
    assert out.startswith("small: failed, ")
    assert "\nwhy: round " in out


def test_validate_says_what_would_be_sent(simsplit, small):
    light = ["--set", "method=[{kind: lightsplit, ratio: 8}]"]
    code, out, err = simsplit("validate", small, *light)
    assert (code, err) == (0, "")
    assert out.splitlines()[1:] == ["cut: 20x12x12, sent as 360", "features: 512"]
    _, out, _ = simsplit("validate", small, "--set", "topology=vanilla")
    assert out.splitlines()[1:] == ["cut: 20x12x12"]
    _, out, _ = simsplit("validate", small, "--set", "data.source={kind: hub, name: a/b}")
    assert "not checked" in out


def test_the_schema_that_is_printed(simsplit):
    code, out, _ = simsplit("schema")
    assert code == 0
    assert json.loads(out) == validator().schema


def test_listings(simsplit, monkeypatch):
    code, out, _ = simsplit("list")
    assert code == 0
    assert "lightsplit" in out
    assert "[smashed]" in simsplit("list", "methods")[1]
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = simsplit("list", "scenario")
    assert max(map(len, out.splitlines())) <= 80
    code, out, _ = simsplit("list", "optimizers", "--format", "csv")
    assert out.splitlines()[0] == "field,type,default,meaning"


@pytest.mark.slow
def test_runs_are_compared_in_every_form(simsplit, small):
    assert simsplit("run", small, "-q", "--out", "raw")[0] == 0
    light = ("--set", "method=[{kind: lightsplit, ratio: 8}]", "--set", "name=light_8")
    assert simsplit("run", small, "-q", "--out", "light", *light)[0] == 0
    code, out, err = simsplit("compare", "raw", "light")
    assert (code, err) == (0, "")
    assert "lightsplit 8 fixed" in out
    out = simsplit("compare", "raw", "light", "--format", "csv")[1]
    assert out.startswith("run,setting,method,seeds,accuracy_change,bytes_ratio,round_mean,")
    assert len(out.splitlines()) == 3, "one table"
    code, out, err = simsplit("compare", "raw", "light", "--table", "inpts")
    assert code == 2
    allowed = "settings, inputs, labels, sessions, members, attributes, origins, ... overview, dcs"
    assert says(err, f"error: --table: ... 'inpts' ... 'inputs' ... {allowed}")
    code, _, err = simsplit("compare", "raw", "light", "--table", "inputs")
    assert (code, says(err, "error: --table inputs: ... none")) == (2, True)
    code, out, err = simsplit("compare", "raw", "light", "--plot", "bytes_total,test_accuracy")
    assert (code, out, err) == (0, "figure: test_accuracy-by-bytes_total.png\n", "")
    assert Path("test_accuracy-by-bytes_total.png").stat().st_size > 5000
    assert r"light\_8" in simsplit("compare", "raw", "light", "--format", "latex")[1]
    assert "| light_8 |" in simsplit("compare", "raw", "light", "--format", "markdown")[1]
    for figure in ("last", "best_on_test"):
        assert simsplit("compare", "raw", "light", "--figure", figure)[0] == 0


@pytest.mark.slow
def test_a_plugins_method_runs_and_is_listed_only_where_it_is_named(simsplit, small, plugin):
    flags = ("--plugin", plugin(PLUGIN))
    halve = ("--set", "method=[{kind: halve}]")
    code, out, err = simsplit("run", small, "--out", "x", *halve)
    assert code == 2
    assert err.startswith("error: scenario.method.0.kind: unknown 'halve', allowed: raw, ")
    code, out, err = simsplit("run", small, "-q", "--out", "x", *halve, *flags)
    assert (code, out, err) == (0, "", "")
    code, out, _ = simsplit("compare", "x")  # reading a run needs no foreign code
    assert (code, "halve" in out) == (0, True)
    code, out, _ = simsplit("list", "methods", *flags)
    assert "halve: Half" in out
    assert "halve" not in simsplit("list", "methods")[1]
    schema = json.loads(simsplit("schema", *flags)[1])
    assert Draft202012Validator(schema).is_valid({"method": [{"kind": "halve"}]})
    replayed = simsplit("validate", "x/scenario.yaml", *flags)
    assert replayed[0] == 0


@pytest.mark.parametrize(
    ("text", "gist"),
    [
        ("import nothing_of_the_kind", "ModuleNotFoundError:"),
        ("def", "SyntaxError:"),
        ("1 / 0", "ZeroDivisionError:"),
        ("", "none of METHODS, MODELS, SOURCES, PARTITIONS, ATTACKS, DETECTORS, POISONS, "),
        ("METHODS = ['halve']", "METHODS ... names -> MethodConfig"),
        ("METHODS = {'halve': int}", "METHODS['halve'] is no MethodConfig class"),
        ("METHODS = {'halve': 3}", "METHODS['halve'] is no MethodConfig class"),
        (PLUGIN.replace('{"halve"', '{"half"'), "METHODS['half'] needs `kind: Literal['half']"),
        (PLUGIN.replace('"halve"', '"raw"'), "METHODS['raw'] ... already"),
    ],
)  # fmt: skip
def test_a_plugin_that_is_none(simsplit, small, plugin, text, gist):
    before = list(sys.path)
    code, _, err = simsplit("run", small, "--plugin", plugin(text))
    assert code == 2
    assert says(err, f"error: plugin my_methods: ... {gist}")
    assert sys.path == before


@pytest.mark.slow
def test_an_interrupt_says_how_to_go_on_and_going_on_finishes(simsplit, small, plugin):
    folder = small.parent / "a folder"
    flags = ["--set", "schedule.rounds=12", "--set", "method=[{kind: halve}]"]
    flags += ["--plugin", plugin(PLUGIN), "--out", str(folder)]
    running = subprocess.Popen(
        [sys.executable, "-m", "simsplit", "run", str(small), *flags],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=small.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        # where the tests run in the background, children are born deaf to it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    for line in running.stderr:
        if line.startswith("round  2/12"):
            break
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, "")
    assert "Traceback" not in err
    words = shlex.split(err.splitlines()[-1].partition(": ")[2])
    assert words[:2] == ["simsplit", "run"]
    assert Run.load(folder).summary["status"] == "interrupted"
    assert simsplit("show", folder)[1].startswith("small: interrupted, ")
    code, out, err = simsplit(*words[1:])
    assert (code, out.splitlines()[0]) == (0, "small: finished, 12 of 12 rounds")
    assert "after round" in err
    assert Run.load(folder).rounds["round"].tolist() == list(range(1, 13))
