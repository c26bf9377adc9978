"""All that is worth measuring on a GPU, most telling first: `make gpu`.

    python tools/gpu.py                  # what is missing, each command under ten minutes
    python tools/gpu.py --list           # what would run, in which order, with expected minutes
    python tools/gpu.py --only qwen3     # some of it, again

`make gpu` installs nothing. Where `make demo` has made no .venv it takes the Python that there is,
whose torch sees the GPU. That one needs what pyproject.toml lists, but for ray and flwr; without
network, wheels from another machine do: `pip install --no-index --find-links FOLDER pydantic ...`.

A command's output goes to results/gpu/NAME.json as it ends, and results/gpu/page.md is written from
all of them; so it can be interrupted at any time, and goes on where it was. Where there is no GPU
it lists what it would run. Exit code 1 says that a command failed.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "results" / "gpu"
LIMIT_S = 600


@dataclass(frozen=True)
class Command:
    """A measurement of `make gpu`: what it asks, the command line, its expected minutes."""

    name: str
    asks: str
    words: tuple[str, ...]
    minutes: float
    """How long it is expected to take, as a guess until somebody has run it."""
    goes_on: bool = False
    """Whether it does a part of its work each time, and is run again."""


def measure(name: str, asks: str, minutes: float, *words: str) -> Command:
    """Make a command of tools/gpu_timing.py."""
    return Command(name, asks, (sys.executable, "tools/gpu_timing.py", *words), minutes)


def go_on_with_board(track: str) -> Command:
    """Make a command that measures what a board's full tier lacks, as far as the time goes."""
    words = (sys.executable, "-m", "simsplit", "board", track, "--tier", "full", "--budget", "8m")
    asks = f"how do defences of the board '{track}' fare at the papers' sizes?"
    return Command(f"board-{track}", asks, words, 9, goes_on=True)


SDAR = "simsplit reproduce lightsplit/table4 --tier small --device cuda --budget 8m"

COMMANDS = (
    measure("devices", "does a GPU compute what the CPU computes?", 4, "devices"),
    Command(
        "crowds",
        "how much faster are stacked clients there?",
        (sys.executable, "tools/bench.py", "crowds", "--device", "cuda", "--json"),
        4,
    ),
    measure("resnet18-10", "what does the cut cost beside plain PyTorch?", 3, "plain", "10"),
    measure("resnet18-100", "and with 100 clients?", 3, "plain", "100"),
    measure("own-heads-laps", "what do 100 clients gain by being stacked, by the lap?", 3, "laps"),
    measure("bf16", "what do fewer bits save?", 3, "precision"),
    measure("qwen3-1.7b", "does Qwen3-1.7B train through the cut?", 6, "text", "qwen3-1.7b"),
    measure("llama-7b", "does LLaMA-7B?", 9, "text", "llama-7b"),
    Command(
        "sdar",
        "how much does SDAR recover at its published width? (CIFAR-10 in data/cifar10)",
        (sys.executable, "-m", *SDAR.split()),
        9,
        goes_on=True,
    ),
    *map(
        go_on_with_board,
        ("images", "labels", "texts", "generation", "backdoor", "bytes", "members"),
    ),
)


def main(words: Sequence[str] | None = None) -> int:
    """Run what is missing, or list it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="list the commands; run none")
    parser.add_argument("--only", action="append", help="commands by name, * for any letters")
    parser.add_argument("--out", type=Path, default=OUT, help="the folder of what comes out")
    asked = parser.parse_args(words)
    wanted = [
        each
        for each in COMMANDS
        if not asked.only or any(fnmatch(each.name, name) for name in asked.only)
    ]
    if asked.list or not has_gpu():
        sys.stdout.write(list_commands(wanted, asked.out))
        return 0
    left = wanted if asked.only else list_left(wanted, asked.out)
    failures = sum(not run(each, asked.out) for each in left)
    return int(failures > 0)


def has_gpu() -> bool:
    """Return whether torch sees a GPU."""
    import torch

    return bool(torch.cuda.is_available())


def list_left(commands: Sequence[Command], out: Path) -> list[Command]:
    """List commands that have not succeeded yet, and after them those that go on."""
    missing = [each for each in commands if not read(each, out).get("succeeded")]
    return [*missing, *(each for each in commands if each.goes_on and each not in missing)]


def list_commands(commands: Sequence[Command], out: Path) -> str:
    """Return the order of commands, what they ask, and minutes."""
    left = list_left(commands, out)
    lines = ["What make gpu runs, in this order, where torch sees a GPU:"]
    for place, each in enumerate(left, 1):
        shown = " ".join(("python", *each.words[1:]))
        lines.append(
            f"{place:3}. {each.name:16} {each.minutes:4.0f} min  {each.asks}\n     {shown}"
        )
    minutes = sum(each.minutes for each in left)
    lines.append(f"{len(left)} of {len(commands)} commands are left: about {minutes:.0f} minutes")
    return "\n".join(lines) + "\n"


def run(command: Command, out: Path) -> bool:
    """Run a command, keep what comes out, and write the page anew; return whether it succeeded."""
    sys.stderr.write(f"{command.name}: {command.asks} about {command.minutes:.0f} min ...\n")
    begun = time.time()
    try:
        done = subprocess.run(
            command.words, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        code, printed, complaint = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        code, printed, complaint = None, "", f"ended after {LIMIT_S} s"
    kept = {
        "command": " ".join(("python", *command.words[1:])),
        "commit": _find_commit(),
        "machine": _describe_card(),
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begun)),
        "seconds": round(time.time() - begun, 1),
        "succeeded": code == 0,
        "figures": _parse_json(printed),
        "printed": printed[-4000:],
        "complaint": complaint[-2000:],
    }
    out.mkdir(parents=True, exist_ok=True)
    written = out / f"{command.name}.json.part"
    written.write_text(json.dumps(kept, indent=2), encoding="utf-8")
    written.replace(out / f"{command.name}.json")
    (out / "page.md").write_text(write_page(out), encoding="utf-8")
    return code == 0


def read(command: Command, out: Path) -> dict[str, Any]:
    """Return what a command left, or nothing."""
    file = out / f"{command.name}.json"
    kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return kept


def write_page(out: Path, commands: Sequence[Command] = COMMANDS) -> str:
    """Return one page of all that was measured, in the order of telling."""
    lines = ["# On a GPU", "", "Written by `make gpu`; every figure has its command.", ""]
    for command in commands:
        if not (kept := read(command, out)):
            continue
        outcome = "" if kept["succeeded"] else ", failed"
        lines += [f"## {command.name}: {command.asks}", ""]
        lines += [f"`{kept['command']}`, {kept['seconds']} s{outcome}, at {kept['commit']}"]
        lines += [f"on {kept['machine']}", ""]
        figures = kept["figures"]
        if isinstance(figures, dict):
            lines += ["| figure | value |", "| --- | ---: |"]
            lines += [f"| {name} | {_write_value(value)} |" for name, value in figures.items()]
        else:
            lines += ["```text", (kept["printed"] or kept["complaint"]).strip(), "```"]
        lines.append("")
    return "\n".join(lines)


def _write_value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _describe_card() -> str:
    import torch

    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{card}, torch {torch.__version__}"


def _parse_json(printed: str) -> Any:
    try:
        return json.loads(printed)
    except ValueError:
        return None


def _find_commit() -> str:
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit"


if __name__ == "__main__":
    sys.exit(main())
