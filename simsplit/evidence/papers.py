"""Tables of papers by name, from the claims beside each paper's scenarios; boards are like them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from simsplit.errors import SimsplitError, format_list, suggest
from simsplit.evidence.claims import TIERS, Claim, Claims, Tier, load_claims
from simsplit.scenario.shipped import BOARDS, CLAIMS, find_folder


@dataclass(frozen=True)
class PaperTable:
    """A table or figure of a paper, with its claim; or a track of the board, `boards`."""

    paper: str
    """The folder of the paper, such as `lightsplit`."""
    name: str
    claim: Claim
    folder: Path
    """The folder of the paper's scenarios."""
    models: Mapping[str, str] = field(default_factory=dict)
    """Folder of a model that the paper's scenarios name -> the command that makes it."""

    @property
    def full_name(self) -> str:
        """The name that commands take, such as `lightsplit/table9`."""
        return f"{self.paper}/{self.name}"

    @property
    def command(self) -> Sequence[str]:
        """The words of the command that measures it."""
        if self.paper == BOARDS:
            return ("simsplit", "board", self.name)
        return ("simsplit", "reproduce", self.full_name)

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers that have scenarios, the cheapest first."""
        return tuple(tier for tier in TIERS if self.claim.measured.get(tier))

    def choose_tier(self, wanted: Tier | None) -> Tier:
        """Return the wanted tier, or the cheapest; raise SimsplitError if the table has none."""
        if not self.tiers:
            why = self.claim.out_of_reach or self.claim.describes
            raise SimsplitError(f"{self.full_name} has no scenario that measures it: {why}")
        if wanted is not None and wanted not in self.tiers:
            known = format_list(self.tiers)
            raise SimsplitError(f"{self.full_name} has no tier '{wanted}', it has: {known}")
        return wanted or self.tiers[0]


@cache
def load_papers() -> Mapping[str, Claims]:
    """Load the claims of every paper, by the name of its folder."""
    files = sorted((find_folder() / "papers").glob(f"*/{CLAIMS}"))
    return {file.parent.name: load_claims(file) for file in files}


def list_tables(paper: str | None = None) -> list[PaperTable]:
    """List all tables, or those of one paper, in the papers' own order; refuse unknown ones."""
    papers = load_papers()
    if paper is not None and paper not in papers:
        known = format_list(papers, 20)
        raise SimsplitError(
            f"unknown paper '{paper}'{suggest(paper, papers) or ','} known: {known}"
        )
    return [
        PaperTable(folder, name, claim, find_folder() / "papers" / folder, claims.models)
        for folder, claims in papers.items()
        if paper in (None, folder)
        for name, claim in claims.tables.items()
    ]


def find_table(name: str) -> PaperTable:
    """Find a table by the name that commands take, such as `lightsplit/table9`; refuse others."""
    tables = {table.full_name: table for table in list_tables()}
    if (paper_table := tables.get(name)) is not None:
        return paper_table
    alike = [full for full in tables if full.endswith(f"/{name}")]
    hint = f", did you mean {format_list(alike)}?" if alike else suggest(name, tables)
    raise SimsplitError(f"unknown table '{name}'{hint}; `simsplit papers` lists all tables")
