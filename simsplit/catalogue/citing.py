"""Papers of a scenario's parts, as BibTeX; `references.bib` has them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from simsplit.config import Config
from simsplit.scenario import Scenario

REFERENCES = Path(__file__).with_name("references.bib")
_OWN = """@software{{simsplit,
  title = {{simsplit: a multi-client split-learning simulator}},
  author = {{{{The simsplit authors}}}},
  version = {{{version}}},
  year = {{2026}},{note}
}}"""
_PARTS = re.compile(r"^  parts = \{(.*)\},\n", re.MULTILINE)
_FIELD = re.compile(r"^  (\w+) = \{(.*)\},$", re.MULTILINE)


@dataclass(frozen=True)
class Reference:
    """A paper, and the parts that it is of."""

    key: str
    bibtex: str
    parts: frozenset[str]
    """Parts by list and kind, such as `methods/lightsplit`."""

    @property
    def fields(self) -> dict[str, str]:
        """The entry's fields: title, author, year, ..."""
        return dict(_FIELD.findall(self.bibtex))


def cite_software(version: str, commit: str | None = None) -> str:
    """Return simsplit's own entry; `commit` is that of the folder in which a run was made."""
    note = "" if commit is None else f"\n  note = {{run in a folder at commit {commit}}},"
    return _OWN.format(version=version, note=note)


@cache
def read_references() -> tuple[Reference, ...]:
    """Return the papers on record."""
    entries = re.split(r"\n(?=@)", REFERENCES.read_text(encoding="utf-8"))[1:]
    return tuple(map(_read_entry, entries))


def _read_entry(text: str) -> Reference:
    key = text[text.index("{") + 1 : text.index(",")]
    (parts,) = _PARTS.findall(text)
    named = frozenset(each.strip() for each in parts.split(","))
    return Reference(key, _PARTS.sub("", text).strip(), named)


def list_parts(scenario: Scenario) -> frozenset[str]:
    """List the parts that a scenario is made of, by list and kind."""
    malicious = scenario.clients.malicious
    strategy = getattr(scenario.aggregation, "strategy", None)
    named: dict[str, Iterable[Config]] = {
        "methods": scenario.method,
        "attacks": scenario.attacks,
        "detectors": scenario.detectors,
        "poisons": malicious.poison if malicious else (),
        "models": (scenario.model,),
        "aggregations": (scenario.aggregation,),
        "strategies": () if strategy is None else (strategy,),
    }
    return frozenset(f"{name}/{part.kind_name}" for name, of in named.items() for part in of)


def choose_references(parts: Iterable[str]) -> tuple[Reference, ...]:
    """Return the papers of parts, in the order of the record."""
    wanted = set(parts)
    return tuple(each for each in read_references() if each.parts & wanted)
