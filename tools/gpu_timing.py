"""The measurements of `make gpu` that no other command makes; each prints its figures as JSON.

python tools/gpu_timing.py plain 10 --device cpu --quick
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benches.stacked import CNN, MOMENTUM, CrowdCase, compare_ways
from golden.cases import write_texts
from golden.on_device import find_far

from simsplit import load_scenario
from simsplit import run as run_scenario
from simsplit.bench.overhead import RESNET, OverheadCase, assemble_case, feed_of, in_blocks, stepper
from simsplit.bench.sides import BenchSide, PlainLoop, synchronise

Figures = dict[str, Any]
DEVICES = ("raw", "own-heads-vanilla", "lightsplit-fixed-wcc", "fused", "trained-otherwise")
"""Golden cases without attacks, whose descent would carry roundings on."""
CLOSE = 0.02
"""How far losses of a few steps may lie apart: devices sum in other orders."""


def compare_devices(device: torch.device, *, quick: bool) -> Figures:
    """Compare short runs on the CPU and on a device: bytes exactly, losses closely."""
    names = DEVICES[:1] if quick else DEVICES
    # by default convolutions are rounded to TF32 there, which moves these losses by up to a third
    torch.backends.cudnn.allow_tf32 = False
    far = {name: find_far(name, str(device), CLOSE) for name in names}
    if any(far.values()):
        raise SystemExit(f"differ: {far}")
    return dict.fromkeys(names, f"bytes equal, losses within {CLOSE:.0%}")


def compare_with_plain(device: torch.device, *, quick: bool, clients: int) -> Figures:
    """Time steps of ResNet-18 through the cut beside a plain loop, on the same batches."""
    size = 8 if quick else 64
    case = OverheadCase(f"ResNet-18, {clients} clients", RESNET, size, [], 1.02, 40, pairs=11)
    assembler, parts = assemble_case(case, device, clients=clients)
    plain = PlainLoop(assembler, {client: feed_of(parts, client) for client in parts.clients})
    sides = BenchSide(stepper(parts), parts.clients), BenchSide(plain.train, parts.clients)
    return dict(in_blocks(sides, case, device, quick))


def compare_laps(device: torch.device, *, quick: bool) -> Figures:
    """Time laps of 100 clients with own heads and tails, stacked and one after the other.

    A lap is whole: heads, the common trunk, tails, their backward passes, and all optimizers.
    """
    size, clients, steps, pairs = (4, 3, 1, 1) if quick else (64, 100, 5, 9)
    case = CrowdCase(
        "SimpleCNN", CNN, size, MOMENTUM, 1, 1, clients=clients, steps=steps, pairs=pairs
    )
    measured = compare_ways(case, device, pairs)
    laps = 1000 / steps
    return {
        "looped, ms": round(measured.other_s * laps, 3),
        "stacked, ms": round(measured.first_s * laps, 3),
        "times as fast": measured.ratio,
        "quartiles": f"{measured.low:.2f}-{measured.high:.2f}",
    }


def compare_precisions(device: torch.device, *, quick: bool) -> Figures:
    """Time steps of ResNet-18 in bf16 and in fp32."""
    times = {}
    for precision in ("fp32", "bf16"):
        case = OverheadCase(
            precision, RESNET, 8 if quick else 256, [], 1.0, 1, train={"precision": precision}
        )
        _, parts = assemble_case(case, device, clients=2)
        step = stepper(parts)
        times[f"{precision}, ms"] = _time(partial(step, 0), device, 1 if quick else 30)
    return times


TEXTS: dict[str, Figures] = {
    "qwen3-1.7b": {
        "sizes": {
            "family": "qwen3",
            "width": 2048,
            "layers": 28,
            "heads": 16,
            "vocabulary": 151936,
        },
        "head": 4,
        "tail": 4,
    },
    "llama-7b": {
        "sizes": {
            "family": "llama",
            "width": 4096,
            "layers": 32,
            "heads": 32,
            "vocabulary": 32000,
        },
        "head": 1,
        "tail": 1,
    },
}
"""Models by size alone: their weights are random, since time and memory do not depend on them."""


def train_text_model(device: torch.device, *, quick: bool, name: str) -> Figures:
    """Train adapters of a large model through the cut, and return time and peak memory."""
    model = TEXTS[name]
    if quick:
        small = {"width": 16, "layers": 3, "heads": 2, "vocabulary": 259}
        model = {"sizes": {**model["sizes"], **small}, "head": 1, "tail": 1}
    with tempfile.TemporaryDirectory() as folder:
        write_texts(Path(folder) / "texts")
        source = {"kind": "text_parquet", "path": f"{folder}/texts/private", "task": "sst2"}
        given: Figures = {
            "name": name,
            "data": {"source": {**source, "length": 32 if quick else 128}},
            "model": {"kind": "causal_lm", "lora": {"rank": 8}, "dtype": "bfloat16", **model},
            "clients": {"count": 2},
            "schedule": {"rounds": 1},
            "train": {"batch_size": 4},
            "evaluate": {"every": 0},
            "checkpoint": {"every": 0},
            "output": {"figures": False},
            "device": str(device),
        }
        file = Path(folder) / "text.yaml"
        file.write_text(json.dumps(given), encoding="utf-8")  # JSON is YAML
        begun = time.perf_counter()
        done = run_scenario(load_scenario(file), out=Path(folder) / "run")
        figures = {
            "seconds": round(time.perf_counter() - begun, 1),
            "steps": int(done.clients["steps"].sum()),
            "train_loss": float(done.rounds["train_loss"].iloc[-1]),
        }
    if device.type == "cuda":
        figures["peak GiB"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 2)
    return figures


def _time(work: Callable[[], object], device: torch.device, times: int) -> float:
    """Return a call's mean milliseconds, after a first call that is not counted."""
    work()
    synchronise(device)
    begun = time.perf_counter()
    for _ in range(times):
        work()
    synchronise(device)
    return round((time.perf_counter() - begun) / times * 1000, 3)


def main(words: list[str] | None = None) -> None:
    """Measure what is named, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("devices", "plain", "laps", "precision", "text"))
    parser.add_argument("which", nargs="?", help="plain: how many clients; text: the model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: a smoke test")
    asked = parser.parse_args(words)
    measures: dict[str, Callable[..., Figures]] = {
        "devices": compare_devices,
        "plain": lambda device, quick: compare_with_plain(
            device, quick=quick, clients=int(asked.which)
        ),
        "laps": compare_laps,
        "precision": compare_precisions,
        "text": lambda device, quick: train_text_model(device, quick=quick, name=asked.which),
    }
    figures = measures[asked.what](torch.device(asked.device), quick=asked.quick)
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
