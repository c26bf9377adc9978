"""The options of an audit that decide its figures, and what its user says that the server knows."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simsplit.errors import SimsplitError, suggest
from simsplit.wires.transcript import Transcript

KNOWS = ("model", "factory", "module", "head", "tail", "run", "pairs")
"""What a user may say that the server knows."""


@dataclass(frozen=True)
class AuditOptions:
    """The options of an audit that decide its figures."""

    path: Path
    knows: Mapping[str, Any]
    public: str | None
    targets: int
    client: int | None
    seed: int
    device: str
    reference: bool = False
    """Whether the transcript's reference is attacked: the same samples without the defence."""
    samples: tuple[int, ...] = ()
    """The ids of the samples that are attacked in the reference; empty: some are chosen."""

    def __post_init__(self) -> None:
        if self.targets < 1:
            raise SimsplitError(f"targets: must be at least 1, got {self.targets}")
        for name in self.knows:
            if name not in KNOWS:
                raise SimsplitError(
                    f"--knows: unknown '{name}'{suggest(name, KNOWS) or ','} allowed: "
                    f"{', '.join(KNOWS)}"
                )

    @property
    def name(self) -> str:
        """The folder's name, in letters that a run's name may have."""
        letters = [
            each if each.isascii() and each.isalnum() else "-" for each in self.path.absolute().name
        ]
        return "".join(letters).strip("-") or "wire"

    def get_number(self, name: str, default: int) -> int:
        """Return a number that the server knows; raise SimsplitError for what is none."""
        value = str(self.knows.get(name, default))
        if not value.isdecimal():
            raise SimsplitError(f"--knows: {name} must be a whole number, got '{value}'")
        return int(value)

    def count_pairs(self, default: int) -> int:
        """Return how many recorded inputs are known at most, where another wire is not named."""
        return default if self.names_pairs else self.get_number("pairs", default)

    @property
    def names_pairs(self) -> bool:
        """Whether `pairs` names another wire, and is no number."""
        return not str(self.knows.get("pairs", "0")).isdecimal()

    def find_pairs(self, transcript: Transcript) -> Path | None:
        """Find the transcript whose inputs are known; None: this one's other samples are.

        The reference's attacks learn what crosses without the defence, so of the other transcript
        they need the reference.
        """
        value = self.knows.get("pairs")
        if value is None:
            held = transcript.find_holding(transcript.facts.knows.pairs)
            return None if held is None else self._refuse_itself(held)
        if not self.names_pairs:
            return None
        if not Path(str(value)).is_dir():
            raise SimsplitError(
                "--knows: pairs must be a whole number, or a folder with a transcript and its "
                f"truth, got '{value}'"
            )
        found = self._refuse_itself(Path(str(value)))
        return None if self.reference and not Transcript.open(found).has_reference else found

    def _refuse_itself(self, pairs: Path) -> Path:
        """Raise SimsplitError if known inputs are those of the wire that is audited."""
        if pairs.resolve() in (self.path.resolve(), (self.path / "transcript").resolve()):
            raise SimsplitError(
                f"--knows: pairs: {pairs} is what is audited, and an attack would learn from its "
                "own targets; give a number, for samples beside them, or another transcript"
            )
        return pairs
