"""Runs cases with whichever simsplit is on the path and says what came out: digests and tables.

`against.py` starts it, once a tree. Of a tree it knows what any has had: `load_scenario`, `run`,
the command line, and where a run directory keeps its tables, checkpoints and recovered targets.
"""

import csv
import hashlib
import json
import platform
import shutil
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

Found = dict[str, Any]

APART = "timing"
"""The table of wall-clock seconds."""
_OF_THE_CLOCK = ("seconds", "resident_bytes")
"""What names of figures have that differ from run to run."""


def digest(content: bytes) -> str:
    """Return a short fingerprint of some bytes."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def table_of(file: Path) -> Found:
    """Return a CSV file's columns, value by value, and a digest of all its bytes."""
    content = file.read_bytes()
    names, *rows = csv.reader(content.decode().splitlines())
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    return {"digest": digest(content), "rows": len(rows), "columns": columns}


def tensors_of(file: Path) -> dict[str, str]:
    """Type, shape and digest of each tensor of a safetensors file, read by its header."""
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header.pop("__metadata__", None)
    held = {}
    for name, about in header.items():
        first, last = about["data_offsets"]
        shape = "x".join(map(str, about["shape"]))
        held[name] = f"{about['dtype']}[{shape}] {digest(content[end + first : end + last])}"
    return held


def outcome(path: Path) -> Found:
    """Return what a run directory holds that depends on the scenario alone."""
    files = sorted([*path.glob("*.csv"), *path.glob("attacks/*/*.csv")])
    named = {file.relative_to(path).with_suffix("").as_posix(): file for file in files}
    recovered = sorted([*path.glob("recovered/*"), *path.glob("attacks/*/recovered/*")])
    recovered += sorted([*path.glob("sessions/*"), *path.glob("attacks/*/sessions/*")])
    stored = sorted(path.glob("checkpoints/round-*/state.safetensors"))[-1:]
    tensors = {file.relative_to(path).as_posix(): tensors_of(file) for file in stored}
    texts = {}
    for file in recovered:
        where = file.relative_to(path).as_posix()
        if file.suffix == ".safetensors":
            tensors[where] = tensors_of(file)
        else:
            texts[where] = file.read_text(encoding="utf-8").splitlines()
    tables = {name: table_of(file) for name, file in named.items() if name != APART}
    return {
        "tables": {**tables, **measure_figures(path)},
        "tensors": tensors,
        "texts": texts,
    }


def measure_figures(path: Path) -> Found:
    """Return the figures that rows of measurements read of a run, as one more table.

    A tree that reads them in another way has no such table.
    """
    try:
        from simsplit import Run
        from simsplit.report.numbers import measure
    except ImportError:
        return {}
    values = measure([Run.load(path)], "last")
    columns = {
        name: [repr(value) for value in each]
        for name, each in sorted(values.items())
        if not any(word in name for word in _OF_THE_CLOCK)
    }
    content = json.dumps(columns).encode()
    return {"figures": {"digest": digest(content), "rows": 1, "columns": columns}}


def carry_out(job: Found, folder: Path) -> Found:
    """Run one case, from its scenario file to its outcome."""
    from simsplit import load_scenario, run

    run(load_scenario(job["file"]), out=folder)
    if job["then"]:
        run(load_scenario(job["then"]), out=folder, resume=True)
    if job["attack"]:
        kind, *fields = job["attack"]
        options = [word for each in fields for word in ("--set", each)]
        type_command("attack", str(folder), "--kind", kind, *options, "--quiet")
    return outcome(folder)


def type_command(*words: str) -> None:
    """Run a command as from a terminal, but in this process."""
    from simsplit.__main__ import main as simsplit

    before, sys.argv = sys.argv, ["simsplit", *words]
    try:
        simsplit()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"simsplit {words[0]} ended with {end.code}") from None
    finally:
        sys.argv = before


def main() -> None:
    """Read jobs from a JSON file, and write outcomes into another."""
    import simsplit

    jobs_file, out_file, tree, work = map(Path, sys.argv[1:])
    home = Path(simsplit.__file__).resolve().parent
    if home != tree.resolve() / "simsplit":
        sys.exit(f"simsplit comes from {home}, not from {tree}")
    results = {}
    for job in json.loads(jobs_file.read_text(encoding="utf-8")):
        begun, folder = time.perf_counter(), work / job["name"]
        try:
            results[job["name"]] = carry_out(job, folder)
        except Exception as error:  # noqa: BLE001 - whatever ends a case is its outcome
            results[job["name"]] = {"failed": f"{type(error).__name__}: {error}"}
        shutil.rmtree(folder, ignore_errors=True)
        seconds = time.perf_counter() - begun
        how = results[job["name"]].get("failed", "done")
        sys.stderr.write(f"{job['name']}: {how} in {seconds:.1f} s\n")
    made_with = {
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "processor": _processor(),
    }
    facts = {"made_with": made_with, "cases": results}
    out_file.write_text(json.dumps(facts), encoding="utf-8")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "unknown")


if __name__ == "__main__":
    main()
