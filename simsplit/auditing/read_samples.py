"""The samples that an attack has read best and worst are shown, beside what they were."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from simsplit.auditing.audit_verdicts import AuditFinding
from simsplit.report.canvas import save_figure
from simsplit.results import Run
from simsplit.results.leak_table import ORIGINALS
from simsplit.results.recovered_files import load_images, load_sessions, load_texts
from simsplit.results.recovered_kinds import BOTH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EACH = 5
"""Samples of each kind that are shown, the best-read and the worst-read ones."""
PICTURE = "figures/best-and-worst.png"


@dataclass(frozen=True)
class ReadSample:
    """One sample: how well it was read, and as a text what it was and what was read."""

    target: int
    value: float
    is_best: bool
    """Whether it is among the best-read ones."""
    private: str = ""
    read: str = ""


def choose_finding(findings: Sequence[AuditFinding]) -> AuditFinding | None:
    """Choose the attack on inputs whose samples are shown: the one that has read most."""
    of_inputs = [each for each in findings if each.kind != "labels"]
    return max(of_inputs, key=lambda each: (each.is_above_guess, each.gain), default=None)


def list_samples(run: Run, finding: AuditFinding) -> list[ReadSample]:
    """List the samples that an attack has read best and worst, the best first."""
    leaks = run.leaks
    own = leaks[(leaks["attack"] == finding.attack) & (leaks["metric"] == finding.metric)]
    own = own[own["kind"] == finding.kind]
    if finding.kind == "sessions":
        own = own[own["view"] == BOTH]
    down = not finding.measure.less_is_read
    ordered = own.sort_values(["value", "target"], ascending=[not down, True])
    shown = min(EACH, len(ordered) // 2) or len(ordered)
    places = [*range(shown), *range(max(shown, len(ordered) - shown), len(ordered))]
    chosen = [
        ReadSample(int(ordered["target"].iloc[n]), float(ordered["value"].iloc[n]), n < shown)
        for n in places
    ]
    return _add_texts(run, finding, chosen)


def _add_texts(run: Run, finding: AuditFinding, chosen: list[ReadSample]) -> list[ReadSample]:
    """Add what texts were, and what was read of them."""
    folder = run.path / "attacks" / finding.attack
    if finding.kind == "texts":
        table = load_texts(folder)
        own = table[table["attack"] == finding.attack].set_index("text")
        private, read = own["private"], own["recovered"]
    elif finding.kind == "sessions":
        table = load_sessions(folder)
        own = table[table["attack"] == finding.attack].set_index("session")
        private = own["private_prompt"] + " | " + own["private_response"]
        read = own["prompt"] + " | " + own["response"]
    else:
        return chosen
    return [
        replace(each, private=str(private[each.target]), read=str(read[each.target]))
        for each in chosen
    ]


def save_samples(run: Run, finding: AuditFinding, samples: Sequence[ReadSample]) -> Path | None:
    """Draw the best- and worst-read images into the run's figures; None for other samples."""
    if finding.kind != "images" or not samples:
        return None
    return save_figure(draw_samples(run, finding, samples), run.path / PICTURE)


def draw_samples(run: Run, finding: AuditFinding, samples: Sequence[ReadSample]) -> "Figure":
    """Draw images as they were above what an attack has read, the best-read ones first."""
    from matplotlib.figure import Figure

    loaded = load_images(run.path / "attacks" / finding.attack)
    pictures = {"private": loaded[ORIGINALS], "read": loaded[finding.attack]}
    figure = Figure(figsize=(1.1 * len(samples) + 1.0, 3.0))
    grid = figure.subplots(2, len(samples), squeeze=False)
    for axes, (label, images) in zip(grid, pictures.items(), strict=True):
        for ax, each in zip(axes, samples, strict=True):
            image = images[each.target].transpose(1, 2, 0)
            ax.imshow(
                image[..., 0] if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=255
            )
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
        axes[0].set_ylabel(label, rotation=0, ha="right", va="center")
    for ax, each in zip(grid[0], samples, strict=True):
        place = "best" if each.is_best else "worst"
        ax.set_title(f"{place}\n{finding.metric.upper()} {finding.write(each.value)}", fontsize=8)
    figure.subplots_adjust(wspace=0.06, hspace=0.06)
    return figure
