"""Is everything as it was? Runs short scenarios with another commit's code and with this tree's.

    python tools/golden/against.py COMMIT                 # compare this tree with a commit
    python tools/golden/against.py COMMIT --save FILE     # run the commit alone, keep what came out
    python tools/golden/against.py --baseline FILE        # compare this tree with what was kept
    python tools/golden/against.py COMMIT --record        # and carry rows over: results/equal.csv
    python tools/golden/against.py --rows                 # commits of stale rows, and their cases
    python tools/golden/against.py COMMIT --record --only-rows       # with the cases of its rows

With --record, what is equal becomes a line of results/equal.csv: rows that were measured with the
older code count on. One line with all cases is enough for a refactor. Rows of commits between the
two, whose code was another one again, need a line from their commit; --rows lists these.

Every table but `timing` must be the same to the letter, every tensor of the last checkpoint and
everything recovered to the bit. What comes out depends on the processor and on versions, so what
was kept is good on the machine that made it. Exit code 1 says that something differs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import recording
import yaml
from cases import CASES, RENAMED, Case, Values, merge_values, rename_fields, with_added, write_texts
from differences import differences

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
Outcomes = dict[str, Any]


def main() -> int:
    """Run what is asked for, say what differs."""
    parser = _parser()
    asked = parser.parse_args()
    if not (asked.commit or asked.baseline or asked.save or asked.list or asked.rows):
        parser.error("name a commit, or a --baseline to compare with")
    chosen = _choose_cases(asked.only, hosts=not asked.no_ray)
    if asked.rows:
        return _print_rows(chosen, asked.tree)
    if asked.only_rows:
        chosen = _choose_for_rows(chosen, asked.commit, asked.tree)
    if asked.list:
        sys.stdout.write("\n".join(chosen) + "\n")
        return 0
    if asked.save is not None:
        with _checkout(asked.commit) if asked.commit else nullcontext(asked.tree) as tree:
            outcomes = _run(chosen, tree, present=not asked.commit)
        outcomes["commit"] = asked.commit and _find_full(asked.commit)
        asked.save.write_text(json.dumps(outcomes), encoding="utf-8")
        return int(any("failed" in each for each in outcomes["cases"].values()))
    if asked.baseline is not None:
        older = json.loads(asked.baseline.read_text(encoding="utf-8"))
        if unknown := [name for name in chosen if name not in older["cases"]]:
            sys.stderr.write(f"not in {asked.baseline}: {', '.join(unknown)}\n")
            chosen = {name: case for name, case in chosen.items() if name not in unknown}
    else:
        with _checkout(asked.commit) as tree:
            older = {**_run(chosen, tree, present=False), "commit": _find_full(asked.commit)}
    newer = _run(chosen, asked.tree, present=True)
    code = _report(older, newer, as_json=asked.json)
    return _record(older, newer, asked.tree) if asked.record else code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", nargs="?", help="the older tree")
    parser.add_argument("--baseline", type=Path, help="what --save kept, in place of a commit")
    parser.add_argument("--save", type=Path, help="run one tree alone, and keep what comes out")
    parser.add_argument("--record", action="store_true", help="carry rows of what is equal over")
    parser.add_argument("--rows", action="store_true", help="which commits stale rows name")
    parser.add_argument("--only-rows", action="store_true", help="cases of the commit's rows")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the newer tree; default: this one")
    parser.add_argument("--only", action="append", help="cases by name, * for any letters")
    parser.add_argument("--no-ray", action="store_true", help="leave out cases on Ray hosts")
    parser.add_argument("--json", action="store_true", help="the table as JSON")
    parser.add_argument("--list", action="store_true", help="the cases' names, and no more")
    return parser


def _choose_cases(patterns: Sequence[str] | None, *, hosts: bool) -> dict[str, Case]:
    return {
        name: case
        for name, case in CASES.items()
        if (hosts or not case.hosted)
        and (not patterns or any(fnmatch(name, pattern) for pattern in patterns))
    }


@contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    """Check out a commit's files in a worktree of their own, which is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*words: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *words], check=True)


def _run(cases: Mapping[str, Case], tree: Path, *, present: bool) -> Outcomes:
    """Run all cases in one process, with the code of one tree."""
    tree = tree.resolve()
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        write_texts(made / "texts")
        jobs = [_job(name, case, tree, made, present=present) for name, case in cases.items()]
        (made / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
        files = [made / "jobs.json", made / "outcomes.json", tree, made / "runs"]
        command = [sys.executable, HERE / "one_tree.py", *files]
        settings = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        sys.stderr.write(f"{len(jobs)} cases with the code in {tree}\n")
        subprocess.run(list(map(str, command)), env=os.environ | settings, cwd=made, check=True)
        outcomes: Outcomes = json.loads((made / "outcomes.json").read_text(encoding="utf-8"))
    return outcomes


def _job(name: str, case: Case, tree: Path, made: Path, *, present: bool) -> Values:
    def write_scenario(values: Values, suffix: str) -> str:
        fitting = with_added(rename_fields(values, RENAMED)) if present else values
        text = yaml.safe_dump(fitting, sort_keys=False)
        file = made / f"{name}{suffix}.yaml"
        placed = text.replace("$TREE", str(tree)).replace("$TEXTS", str(made / "texts"))
        file.write_text(placed, encoding="utf-8")
        return str(file)

    attack = dict(case.attack)
    kind = [attack.pop("kind")] if attack else []
    return {
        "name": name,
        "file": write_scenario(case.values, ""),
        "then": write_scenario(merge_values(case.values, case.then), "-then")
        if case.then
        else None,
        "attack": [*kind, *(f"{field}={value}" for field, value in attack.items())],
    }


def _compare(older: Outcomes, newer: Outcomes) -> dict[str, list[str]]:
    """Return what differs, by case; a case that the older tree cannot run says so first."""
    compared = {}
    for name, outcome in newer["cases"].items():
        lines = differences(older["cases"][name], outcome)
        new = "failed" in older["cases"][name] and "failed" not in outcome
        compared[name] = ["new here", *lines] if new else lines
    return compared


def _report(older: Outcomes, newer: Outcomes, *, as_json: bool) -> int:
    """Print a table of what differs; return 1 if anything does."""
    for name, before in older["made_with"].items():
        now = newer["made_with"].get(name)
        if now != before:
            sys.stderr.write(f"{name} was {before} and is {now}: numbers may differ for that\n")
    results = _compare(older, newer)
    if as_json:
        sys.stdout.write(json.dumps(results, indent=2) + "\n")
    else:
        sys.stdout.write(_table(results))
    return int(any(results.values()))


def _record(older: Outcomes, newer: Outcomes, tree: Path) -> int:
    """Write a line of equal code; return 1 where there is none to write."""
    results = _compare(older, newer)
    try:
        line = recording.record(older, newer, results, _list_parts(CASES, tree))
    except recording.NothingEqualError as error:
        sys.stderr.write(f"no line is written: {error}\n")
        return 1
    sys.stderr.write(
        f"{len(line.parts)} parts are carried from {line.before[:12]} to {line.now[:12]}\n"
    )
    return 0


def _list_parts(cases: Mapping[str, Case], tree: Path) -> dict[str, recording.Parts]:
    """List the parts of each case, as the newer tree names them."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        write_texts(made / "texts")
        jobs = {name: _job(name, each, tree, made, present=True) for name, each in cases.items()}
        return {name: recording.list_case_parts(job) for name, job in jobs.items()}


def _choose_for_rows(cases: Mapping[str, Case], commit: str, tree: Path) -> dict[str, Case]:
    """Choose the cases that rows need which were measured at a commit and are stale."""
    of_commit = [each for each in recording.list_stale() if each.commit == _find_full(commit)]
    parts = _list_parts(cases, tree)
    return {name: cases[name] for each in of_commit for name in recording.choose_cases(each, parts)}


def _find_full(commit: str) -> str:
    words = ["git", "-C", str(ROOT), "rev-parse", f"{commit}^{{commit}}"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def _print_rows(cases: Mapping[str, Case], tree: Path) -> int:
    """Print the commits of stale rows: how many a line from each would carry, and its cases."""
    parts = _list_parts(cases, tree)
    for each in recording.list_stale():
        needed = recording.choose_cases(each, parts)
        lacking = each.list_uncovered(parts)
        sys.stdout.write(
            f"{each.commit[:12]}  {each.rows:5} rows  {len(needed):3} cases"
            f"{'; in no case: ' + ' '.join(lacking) if lacking else ''}\n"
        )
    return 0


def _table(outcomes: Mapping[str, Sequence[str]]) -> str:
    wide = max(map(len, outcomes), default=0)
    lines = []
    for name, each in outcomes.items():
        first, *rest = each or ["equal"]
        lines.append(f"{name:{wide}}  {first}")
        lines += [f"{'':{wide}}  {line}" for line in rest]
    differing = sum(map(bool, outcomes.values()))
    lines.append(f"{len(outcomes) - differing} of {len(outcomes)} are equal")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
