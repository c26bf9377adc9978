"""The Markdown pages of the repository and the site, and a check of all that they have one type.

Commands go through the command line's own parser, scenarios and `--set` through the scenario model,
and each page is followed from top to bottom: what it shows or attacks, it must have run before.
Nothing is trained.
"""

import ast
import doctest
import inspect
import os
import re
import shlex
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import dropwhile, groupby
from pathlib import Path
from typing import Any

import click
import typer
from typer.main import get_command

import simsplit
from simsplit.__main__ import app
from simsplit.catalogue import tabulate_catalogue
from simsplit.commands.options import load_plugins, parse_pairs
from simsplit.deploy.terms import refuse_undeployable
from simsplit.results import SCENARIO, SWEEP
from simsplit.running.directories import choose_run_directory
from simsplit.scenario import Scenario, Sweep, has_sweep, load_scenario, load_sweep
from simsplit.scenario.schema import start_file
from simsplit.sweep.plan import choose_sweep_directory

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TOP = ("README.md", "RESULTS.md", "CONTRIBUTING.md")
ELSEWHERE = ("examples/plugins/README.md", "deploy/flower/README.md")
SHELL = ("", "sh", "bash")
"""Languages of fences that hold commands."""
HISTORY = ("changes.md",)
"""Pages that tell of commands as they once were."""
UNCHECKED = ("text", "json", "py")
"""Languages of fences with nothing to type; `py` is a signature, made from the code."""
OTHERS = {
    *("docker", "flower-superlink", "flower-supernode", "flwr", "git", "lint-imports", "mkdocs"),
    *("mlflow", "mypy", "ray", "ruff", "source", "tensorboard", "wandb"),
}
"""Programs of others, whose words are not checked."""
_FENCE = re.compile(r"^( *)```+ *(\S*)[^\n]*\n(.*?)^\1```+ *$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`(simsplit [^`\n]+)`")
_PLACEHOLDER = re.compile(r"\b[A-Z]([A-Z_/]*|=.*)$")


class PageError(AssertionError):
    """Something on a page does not hold; says where and why."""


@dataclass(frozen=True)
class Page:
    """A page: the file it is from (or would be), and its text."""

    name: str
    text: str

    @property
    def is_checked(self) -> bool:
        """Whether it has anything that one types."""
        return any(True for _ in self.spans) or any(
            language not in UNCHECKED for language, _ in self.fences
        )

    @property
    def fences(self) -> Iterator[tuple[str, str]]:
        """Each block of code: its language, and what is in it."""
        for _, language, inside in _FENCE.findall(self.text):
            yield language.strip("{}."), textwrap.dedent(inside)

    @property
    def spans(self) -> Iterator[str]:
        """Each command of simsplit within a sentence."""
        for span in _SPAN.findall(_FENCE.sub("", self.text)):
            yield span.replace("\\|", "|")


@cache
def pages() -> dict[str, Page]:
    """Return every page by its name: written by hand, or made from the package."""
    texts = {f"docs/{path}": text for path, text in make_pages() if path not in HISTORY}
    return hand_written() | {name: Page(name, text) for name, text in texts.items()}


@cache
def hand_written() -> dict[str, Page]:
    """Return every page that is written by hand, by its name."""
    files = [ROOT / name for name in (*TOP, *ELSEWHERE)] + sorted(DOCS.rglob("*.md"))
    names = [file.relative_to(ROOT).as_posix() for file in files if file.exists()]
    return {name: Page(name, (ROOT / name).read_text(encoding="utf-8")) for name in names}


@cache
def make_pages() -> list[tuple[str, str]]:
    """Return the pages that the site makes from the package: their paths and their texts."""
    sys.path.insert(0, str(DOCS))
    try:
        return [*import_module("making").pages()]
    finally:
        sys.path.remove(str(DOCS))


@cache
def list_pictures() -> list[str]:
    """List the paths of the pictures that the site draws."""
    sys.path.insert(0, str(DOCS))
    try:
        return [*import_module("making").list_pictures()]
    finally:
        sys.path.remove(str(DOCS))


def command_lines(block: str) -> Iterator[list[str]]:
    """Yield the words of each command of a block, without comments and variables before it."""
    for line in block.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        try:
            words = [*lexer]
        except ValueError as error:
            raise PageError(f"{line}: {error}") from None
        for is_between, part in groupby(words, lambda word: word in (";", "&&", "|")):
            command = [*dropwhile(re.compile(r"[A-Z_]+=").match, part)]
            if command and not is_between:
                yield command


@dataclass
class Reader:
    """Follows a page in a folder of its own, as a newcomer would."""

    folder: Path
    page: Page
    cells: dict[Path, Scenario] = field(default_factory=dict)
    """The runs of sweeps, whose scenarios are written when they are read: there are hundreds."""

    def follow(self) -> None:
        """Check every block and every command of the page."""
        for name in ("scenarios", "examples", "docs", "deploy", "simsplit", "tests"):
            (self.folder / name).symlink_to(ROOT / name)
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            for language, inside in self.page.fences:
                self._block(language, inside)
            for span in self.page.spans:
                self._span(span)
        finally:
            os.chdir(before)

    def _block(self, language: str, inside: str) -> None:
        if language in SHELL:
            for words in command_lines(inside):
                self._at(shlex.join(words), self._command, words)
        elif language == "yaml":
            self._at(inside, self._scenario_text, inside)
        elif language == "python":
            self._at(inside, check_python, _include(inside))
        elif language == "pycon":
            examples = doctest.DocTestParser().get_examples(inside)
            names = ", ".join(simsplit.__all__)
            code = "\n".join(each.source for each in examples)
            self._at(inside, check_python, f"from simsplit import {names}\n{code}")
        elif language not in UNCHECKED:
            raise PageError(f"{self.page.name}: a block of {language!r}, which nothing checks")

    def _at(self, what: str, check: Any, *given: Any) -> None:
        try:
            check(*given)
        except (Exception, SystemExit) as error:  # of whatever kind: it is a reader's
            raise PageError(f"{self.page.name}: {what.strip()}\n  {error}") from error

    def _command(self, words: list[str]) -> None:
        program, rest = words[0], words[1:]
        if program == "python" and rest[:2] == ["-m", "simsplit"]:
            program, rest = "simsplit", rest[2:]
        if program == "simsplit":
            self._simsplit(rest)
        elif program == "pip":
            _check_extras(rest)
        elif program == "make":
            known = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert set(rest) <= set(known), f"make knows {', '.join(known)}"
        elif program == "python":
            assert rest[0] == "-m" or (ROOT / rest[0]).exists(), f"no {rest[0]}"
        elif program == "cd":
            pass
        else:
            assert program in OTHERS, f"{program} is no program that a page may name"

    def _simsplit(self, words: list[str]) -> None:
        name, given = parse_command(words)
        check = getattr(self, f"_check_{name}", None)
        if check is not None:
            check(**given)

    def _span(self, span: str) -> None:
        """Check a command in a sentence: it may leave out its arguments, and is not run."""
        words = shlex.split(span)
        if words[1].startswith("-"):
            return
        try:
            name, given = parse_command(words[1:])
        except (click.MissingParameter, click.exceptions.Exit):
            return
        except click.UsageError as error:
            raise PageError(f"{self.page.name}: {span}\n  {error.format_message()}") from error
        if name in ("run", "sweep", "validate") and not _PLACEHOLDER.search(str(given["file"])):
            changes = [each.replace("...", "/data") for each in given["set_"] or []]
            given["set_"] = [each for each in changes if not _PLACEHOLDER.search(each)]
            self._at(span, self._load, name, given)

    # What each command would read or write

    def _load(self, name: str, given: dict[str, Any]) -> Scenario | Sweep:
        file, overrides = given["file"], parse_pairs(list(given["set_"] or ()))
        plugins = load_plugins(list(given["plugin"] or ()))
        if name == "validate" and has_sweep(file, overrides):
            name = "sweep"
        if name == "sweep":
            return load_sweep(file, overrides, plugins)
        return load_scenario(file, overrides, plugins)

    def _check_run(self, **given: Any) -> None:
        scenario = self._load("run", given)
        assert isinstance(scenario, Scenario)
        folder = choose_run_directory(scenario, given["out"], resume=given["resume"])
        assert not given["resume"] or folder.exists(), f"nothing was run in {folder} before"
        self._wrote(folder, scenario)

    def _check_sweep(self, **given: Any) -> None:
        swept = self._load("sweep", given)
        assert not isinstance(swept, Scenario)
        folder = choose_sweep_directory(swept, given["out"], resume=given["resume"])
        for cell in swept.cells:
            self.cells[folder / cell.name] = cell.scenario
            (folder / cell.name).mkdir(parents=True, exist_ok=True)
            (folder / cell.name / SCENARIO).touch()
        (folder / SWEEP).write_text("")

    def _wrote(self, folder: Path, scenario: Scenario) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SCENARIO).write_text(scenario.yaml())

    def _check_validate(self, **given: Any) -> None:
        self._load("validate", given)

    def _check_new(self, *, name: str | None, from_: str, **rest: Any) -> None:
        if name is not None:
            start_file(name, from_, Path())
        del rest

    def _check_list(self, *, what: str | None, plugin: Any, **rest: Any) -> None:
        tabulate_catalogue(what, load_plugins(list(plugin or ())))
        del rest

    def _check_serve(self, **given: Any) -> None:
        scenario = load_scenario(given["file"], parse_pairs(list(given["set_"] or ())))
        refuse_undeployable(scenario)
        self._wrote(Path(given["out"] or scenario.output.root / scenario.name), scenario)

    def _check_join(self, **given: Any) -> None:
        refuse_undeployable(load_scenario(given["approve"], parse_pairs(list(given["set_"] or ()))))

    _check_check = _check_join

    def _check_attack(self, **given: Any) -> None:
        changes = parse_pairs(list(given["set_"] or ()))
        outside = ("targets.", "data.")
        fields = {n if n.startswith(outside) else f"attacks.0.{n}": v for n, v in changes.items()}
        overrides = {"attacks": "[]", "attacks.0.kind": given["kind"], **fields}
        known = load_plugins(list(given["plugin"] or ()))
        for folder in self._runs([given["run_dir"]]):
            if folder in self.cells:
                self._wrote(folder, self.cells[folder])
            load_scenario(folder / SCENARIO, overrides, known)

    def _check_show(self, **given: Any) -> None:
        self._runs([given["run_dir"]])

    _check_chat = _check_export = _check_watch = _check_show

    def _check_compare(self, **given: Any) -> None:
        self._runs(given["run_dirs"])

    _check_report = _check_compare

    def _runs(self, named: list[Path]) -> list[Path]:
        results = [path for each in named for path in Path().glob(str(each))]
        runs = [path for path in results if (path / SCENARIO).exists() or (path / SWEEP).exists()]
        words = ", ".join(map(str, named))
        assert runs, f"no run lies in {words}: nothing on this page has made one there"
        return runs

    def _scenario_text(self, text: str) -> None:
        """Check a scenario, or a part of one, which is merged over the quickstart."""
        whole = re.search(r"^(name|extends):", text, re.MULTILINE)
        file = self.folder / "snippet.yaml"
        file.write_text(text if whole else f"extends: quickstart\n{text}")
        if name := re.search(r"^name: (\w+)$", text, re.MULTILINE):
            (self.folder / f"{name[1]}.yaml").write_text(text)  # a reader saves it by that name
        load_sweep(file) if has_sweep(file) else load_scenario(file)


@cache
def _make_group() -> Any:
    return get_command(app)


def parse_command(words: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the name of a command and its parameters, as the command line reads them."""
    group: Any = _make_group()
    context = typer.Context(group, info_name="simsplit")
    while hasattr(group, "commands"):
        name, command, words = group.resolve_command(context, list(words))
        context = command.make_context(name, list(words), parent=context)
        group, words = command, [*context._protected_args, *context.args]
    return str(command.name or name), dict(context.params)


def check_python(text: str) -> None:
    """Compile it, import what it imports, and bind the calls of what comes from simsplit."""
    tree = ast.parse(text)
    known: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                import_module(each.name)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            known |= {
                each.asname or each.name: _import_name(node.module, each) for each in node.names
            }
    ours = {name: made for name, made in known.items() if _is_ours(made)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (made := _find_called(node.func, ours)) is not None:
            keywords = {each.arg: None for each in node.keywords if each.arg}
            inspect.signature(made).bind(*[None for _ in node.args], **keywords)


def _import_name(module: str, name: ast.alias) -> Any:
    made = getattr(import_module(module), name.name, None)
    return import_module(f"{module}.{name.name}") if made is None else made


def _is_ours(made: Any) -> bool:
    return str(getattr(made, "__module__", "")).startswith("simsplit")


def _find_called(function: ast.expr, known: dict[str, Any]) -> Any:
    """Return the function or class of ours that a call names, or None."""
    if isinstance(function, ast.Name):
        return known.get(function.id)
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        owner = known.get(function.value.id)
        return None if owner is None else getattr(owner, function.attr)
    return None


def _include(text: str) -> str:
    """Return the text of a file that a page includes, or the block itself."""
    if named := re.fullmatch(r'--8<-- "(\S+)"\s*', text):
        return (ROOT / "examples" / "plugins" / named[1]).read_text(encoding="utf-8")
    return text


def _check_extras(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extras in re.findall(r"^(?:\.|simsplit)\[([\w,]+)\]", "\n".join(words), re.MULTILINE):
        unknown = set(extras.split(",")) - set(project["optional-dependencies"])
        assert not unknown, f"no extra {', '.join(unknown)}"
    assert not [word for word in words if word.startswith("simsplit")], "there is no release yet"
