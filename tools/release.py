"""Make a release: `python tools/release.py 0.1.0 --dry-run` rehearses it in a clone of its own.

Without `--dry-run` it cuts the changelog here, commits, tags, and says what to push. The workflow
`release` then builds from the tag (`--of-tag`) and publishes. It needs `pip install '.[release]'`.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from os import environ
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]
UNRELEASED = "unreleased"


@dataclass(frozen=True)
class Part:
    """A part of the wheel: which files it may have, how many MB at most when packed, and why."""

    suffixes: frozenset[str]
    megabytes: float
    why: str


PARTS: Mapping[str, Part] = {
    "simsplit/pretrain/models": Part(
        frozenset({".json", ".safetensors", ".txt"}),
        11,
        "four small models: text runs start offline",
    ),
    "simsplit/measured": Part(
        frozenset({".csv", ".md", ".json", ".gitkeep"}),
        2.5,
        "measured rows, which papers and boards read",
    ),
    "simsplit/shipped": Part(frozenset({".yaml"}), 1, "scenarios, found by name"),
    "simsplit/examples": Part(frozenset({".py", ".md"}), 0.1, "plugins, for simsplit new --plugin"),
    "simsplit": Part(
        frozenset({".py", ".html", ".js", ".css", ".bib", ".typed"}),
        3,
        "code, the report's page, references",
    ),
    "": Part(frozenset({""}), 0.5, "the wheel's own facts and the licence"),
}
"""By its folder; a file belongs to the first that holds it."""
TRIES = (
    ("--version",),
    ("validate", "quickstart"),
    ("papers", "lightsplit/table9"),
    ("board", "images", "--show"),
    ("run", "quickstart", "--set", "schedule.rounds=1", "--out", "first", "-q"),
    ("show", "first"),
)
"""What the built wheel must answer, away from any checkout."""


def find_part(name: str) -> str:
    """Return the folder of `PARTS` that a file of the wheel belongs to."""
    return next(folder for folder in PARTS if not folder or name.startswith(f"{folder}/"))


def list_faults(sizes: Iterable[tuple[str, int]]) -> list[str]:
    """Return what a wheel has that it should not have; files come with their packed sizes."""
    faults, totals = [], dict.fromkeys(PARTS, 0)
    for name, nbytes in sizes:
        part = find_part(name)
        totals[part] += nbytes
        info = part == "" and ".dist-info/" in name
        if not info and PurePosixPath(name).suffix not in PARTS[part].suffixes - {""}:
            faults.append(f"{name}: {part or 'the wheel'} has no such files")
    over = {
        part: total / 1e6 for part, total in totals.items() if total > PARTS[part].megabytes * 1e6
    }
    faults += [
        f"{part}: {size:.1f} MB, more than {PARTS[part].megabytes}" for part, size in over.items()
    ]
    return faults + [f"{part}: nothing is there" for part in PARTS if part and not totals[part]]


def describe_contents(wheel: Path) -> str:
    """Return a line for each part of a wheel: its packed size, and why it ships."""
    totals = dict.fromkeys(PARTS, 0)
    for name, nbytes in read_sizes(wheel):
        totals[find_part(name)] += nbytes
    lines = (
        f"{size / 1e6:6.2f} MB  {part or '*.dist-info'}: {PARTS[part].why}"
        for part, size in totals.items()
    )
    return "\n".join(lines)


def read_sizes(wheel: Path) -> list[tuple[str, int]]:
    """Return a wheel's files with their packed sizes."""
    with ZipFile(wheel) as packed:
        return [(each.filename, each.compress_size) for each in packed.infolist()]


def cut_changelog(text: str, version: str, day: str) -> str:
    """Return the changelog whose newest part is this version's, as of this day."""
    head = f"## {version} ({UNRELEASED})"
    if text.count(head) != 1:
        raise SystemExit(f"CHANGELOG.md: a heading '{head}' is needed, once")
    return text.replace(head, f"## {version} ({day})")


def cut_citation(text: str, version: str, day: str) -> str:
    """Return CITATION.cff with this version and day."""
    text = re.sub(r"^date-released: .*\n", "", text, flags=re.M)
    return re.sub(r"^version: .*$", f"version: {version}\ndate-released: {day}", text, flags=re.M)


def cut(root: Path, version: str) -> None:
    """Write the version into the changelog and the citation, commit and tag."""
    day = datetime.now(UTC).date().isoformat()
    for name, change in {"CHANGELOG.md": cut_changelog, "CITATION.cff": cut_citation}.items():
        file = root / name
        file.write_text(change(file.read_text(), version, day))
    call("git", "commit", "--quiet", "-am", f"Release {version}", folder=root)
    call("git", "tag", "-a", f"v{version}", "-m", f"simsplit {version}", folder=root)


def build(root: Path, dist: Path, *, isolated: bool) -> Path:
    """Build sdist and wheel of a tagged tree, check both, and return the wheel."""
    tag = call("git", "describe", "--exact-match", "--tags", folder=root).strip()
    if call("git", "status", "--porcelain", "--untracked-files=no", folder=root):
        raise SystemExit("the tree has changes that no commit has")
    if f"## {tag.removeprefix('v')} (20" not in (root / "CHANGELOG.md").read_text():
        raise SystemExit(f"CHANGELOG.md: no part of {tag.removeprefix('v')} with its day")
    alone = () if isolated else ("--no-isolation",)
    call(sys.executable, "-m", "build", "--outdir", str(dist), *alone, str(root), folder=root)
    files = sorted(map(str, dist.iterdir()))
    call(sys.executable, "-m", "twine", "check", "--strict", *files, folder=root)
    (wheel,) = dist.glob(f"simsplit-{tag.removeprefix('v')}-*.whl")
    if faults := list_faults(read_sizes(wheel)):
        raise SystemExit("\n".join(faults))
    return wheel


def attempt(wheel: Path, python: str, folder: Path) -> None:
    """Unpack the wheel and run it away from any checkout, with the packages of a Python."""
    with ZipFile(wheel) as packed:
        packed.extractall(folder / "site")
    where = {"PYTHONPATH": str(folder / "site"), "SIMSPLIT_CACHE": str(folder / "cache")}
    for words in TRIES:
        answer = call(python, "-m", "simsplit", *words, folder=folder, variables=where)
        say(f"simsplit {' '.join(words)}: {len(answer.splitlines())} lines")


def call(*words: str, folder: Path, variables: Mapping[str, str] | None = None) -> str:
    """Run a program and return what it prints; end with its words if it fails."""
    done = subprocess.run(
        words, cwd=folder, env=dict(environ) | dict(variables or {}), text=True, capture_output=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)  # noqa: T201 - a tool's output


def make(root: Path, dist: Path, python: str, *, isolated: bool) -> None:
    """Build, check and try what stands at a tag."""
    wheel = build(root, dist, isolated=isolated)
    say(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB\n{describe_contents(wheel)}")
    with tempfile.TemporaryDirectory() as folder:
        attempt(wheel, python, Path(folder))


def rehearse(version: str, python: str, *, isolated: bool) -> None:
    """Cut, tag, build, check and try this commit's release in a clone that is then removed."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        call("git", "clone", "--quiet", str(ROOT), str(clone), folder=ROOT)
        for key in ("user.name", "user.email"):
            call("git", "config", key, "rehearsal@localhost", folder=clone)
        cut(clone, version)
        make(clone, Path(folder) / "dist", python, isolated=isolated)
    say("Rehearsed: nothing was published, and this checkout is as it was.")


def main(words: list[str] | None = None) -> None:
    """Read the command line and do what it asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("version", nargs="?", help="MAJOR.MINOR.PATCH")
    parser.add_argument("--dry-run", action="store_true", help="in a clone, and nothing stays")
    parser.add_argument("--of-tag", type=Path, metavar="DIST", help="build the tag of HEAD into it")
    parser.add_argument("--no-isolation", action="store_true", help="build with what is installed")
    parser.add_argument("--python", default=sys.executable, help="has what simsplit depends on")
    given = parser.parse_args(words)
    if given.of_tag:
        make(ROOT, given.of_tag.resolve(), given.python, isolated=not given.no_isolation)
        return
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", given.version or ""):
        parser.error(f"version: '{given.version}'; MAJOR.MINOR.PATCH is needed, as in 0.1.0")
    if given.dry_run:
        rehearse(given.version, given.python, isolated=not given.no_isolation)
    else:
        cut(ROOT, given.version)
        say(f"Tagged. `git push origin HEAD v{given.version}` starts the workflow that publishes.")


if __name__ == "__main__":
    main()
