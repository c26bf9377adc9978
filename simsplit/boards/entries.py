"""A board: a track at a tier beside what is measured of it, and a user's own among it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from simsplit.attacks import AttackConfig
from simsplit.attacks.label_attack import LabelAttackConfig
from simsplit.boards.board_scenarios import BoardScenario, list_cells, list_scenarios
from simsplit.boards.figure_names import DEFENCE, LEAKS, THREAT, name_figures
from simsplit.boards.guests import Guest, refuse_all_refused, refuse_taken
from simsplit.boards.track import Track, load_track, name_attack
from simsplit.errors import SimsplitError
from simsplit.evidence.claims import Claim, Figure, Tier
from simsplit.evidence.evidence_tables import EvidenceTable, KnownRows, put_beside
from simsplit.evidence.measuring_cells import MeasuringCell
from simsplit.evidence.papers import PaperTable
from simsplit.scenario import Scenario
from simsplit.scenario.shipped import BOARDS, find_folder


@dataclass(frozen=True)
class Board:
    """A track at a tier beside all that is measured of it."""

    name: str
    track: Track
    tier: Tier
    table: EvidenceTable
    defences: Mapping[str, Sequence[str]]
    """Name of a defence -> the names of its strengths, a user's own last."""
    attacks: Sequence[str]
    """The names of what attacks, or of the threats in training."""
    configs: Mapping[str, AttackConfig] = field(default_factory=dict)
    """Attack that reads after training -> its config."""
    beside: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """View that places no defence -> the attacks that read by it."""
    own: Sequence[str] = ()
    """The defences and attacks that are the user's."""
    own_options: Sequence[str] = ()
    """The options of the command by which they are given."""
    own_cells: Sequence[MeasuringCell] = ()
    """The cells that measure what is the user's."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Name of a strength -> why the track cannot have it."""
    scenarios: Mapping[str, Scenario] = field(default_factory=dict)
    """Name of a strength -> a scenario that has it."""

    @property
    def bounds(self) -> list[str]:
        """The attacks that know what no server knows."""
        every = self.configs.items()
        return [name for name, each in every if each.whole_threat.is_bound and name in self.attacks]

    @property
    def epochs(self) -> dict[str, int]:
        """Attack -> the number of epochs in which it sees each target, where that is over one."""
        every = self.configs.items()
        return {name: each.num_epochs for name, each in every if each.num_epochs > 1}

    @property
    def known_shares(self) -> dict[str, float]:
        """Attack -> the share of the labels that it knows, where that is more than none."""
        return {
            name: each.known_share
            for name, each in self.configs.items()
            if isinstance(each, LabelAttackConfig) and each.known_share
        }

    @property
    def shorter(self) -> dict[str, str]:
        """Attack that runs for less than what is published -> for how much, in words."""
        return self.track.find_shorter(self.configs)

    def label_attack(self, name: str) -> str:
        """Return an attack's name as tables have it: with a word where it runs for less."""
        return f"{name}, short" if name in self.shorter else name

    def label_defence(self, name: str) -> str:
        """Return a defence's name as tables have it: with a word if it is unreliable."""
        return f"{name}, unreliable" if name in self.track.unreliable else name


def build_board(
    name: str,
    tier: Tier,
    guest: Guest | None = None,
    *,
    seeds: Sequence[int] | None = None,
    known: KnownRows | None = None,
) -> Board:
    """Put a track at a tier beside what is measured of it, with a user's methods and attacks."""
    guest, track = guest or Guest(), load_track(name)
    sized = track.find_tier(tier)
    refuse_taken(track.defences, guest)
    if guest.attacks and (track.threats or track.leak.figures):
        raise SimsplitError(
            f"--attack: nothing is attacked after training on {name}, so an attack would change "
            "nothing there"
        )
    defences = {**track.defences, **guest.strengths}
    refused: dict[str, str] = {}
    scenarios = list(list_scenarios(track, tier, defences, guest, refused))
    refuse_all_refused(guest, refused)
    figures = name_figures(track, [tried.scenario for tried in scenarios])
    claim = _make_claim(track, figures, scenarios)
    table = PaperTable(BOARDS, name, claim, find_folder() / BOARDS, track.models)
    cells: list[MeasuringCell] = []
    own_cells: list[MeasuringCell] = []
    wanted = seeds or sized.seeds
    for tried in scenarios:
        made = list_cells(
            tried, figures, track, guest=guest, takes_min=sized.takes_min, seeds=wanted
        )
        cells += made
        own_cells += made if tried.is_guest else []
    configs = {
        attack.title: attack
        for tried in scenarios
        for attack in tried.scenario.attacks
        if not attack.audited
    }
    leaks = [each.removeprefix(LEAKS) for each in figures if each.startswith(LEAKS)]
    built = put_beside(table, tier, cells, known)
    # rows of a user's method that is not given here are no rows of this board
    settings = {cell.setting for cell in cells}
    built = replace(built, stale=[row for row in built.stale if row.setting in settings])
    if seeds:  # a single seed of the user's is not to stand beside means of three
        built = replace(built, fresh=[row for row in built.fresh if row.seed in seeds])
    return Board(
        name,
        track,
        tier,
        built,
        {each: [one for one in of if one not in refused] for each, of in defences.items()},
        [*track.threats] or leaks,
        configs,
        beside={
            view: [title for title, each in configs.items() if view in each.view_groups]
            for view in track.leak.views[1:]
        },
        own=[*guest.strengths, *map(name_attack, guest.attacks)],
        own_options=guest.write_options(),
        own_cells=own_cells,
        refused=refused,
        scenarios={tried.axes[DEFENCE]: tried.scenario for tried in scenarios},
    )


def _make_claim(
    track: Track, figures: Mapping[str, Figure], scenarios: Sequence[BoardScenario]
) -> Claim:
    """Make a claim whose rows are the strengths and threats; nobody has printed figures of them."""
    axes = [DEFENCE, *([THREAT] if track.threats else [])]
    lines = dict.fromkeys(", ".join(tried.axes[axis] for axis in axes) for tried in scenarios)
    return Claim(
        title=track.title,
        says=track.says,
        figures=figures,
        printed="\n".join([", ".join(axes), *lines]),
        describes=track.says,
    )
