"""No figure that looks measured stands on a page by hand: each comes from a row.

What rows give stands between marks, or in blocks that `docs/made_blocks.py` writes, in the remarks
on papers' tables too. The page of costs has timings, each under its command.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "RESULTS.md", "CONTRIBUTING.md")),
    *sorted(DOCS.glob("*.md")),
    *sorted((DOCS / "howto").glob("*.md")),
    *sorted((DOCS / "results").glob("*.md")),
    *sorted((DOCS / "results" / "remarks").glob("*/*.md")),
]
_MADE = re.compile(
    r"<!-- figure: .*?<!-- end -->|<!-- made: (.*?) -->.*?<!-- end: \1 -->|```.*?```|`[^`\n]*`",
    re.DOTALL,
)
"""What is written from rows, and what is no prose: commands, examples of output, options."""
_SHARE = r"(?<![\w.])(?:\.\d+|0\.\d\d+|1\.00)(?![\w.])"
"""A share as results are written: .87, 0.436, 1.00; settings such as 0.1 look otherwise."""
_PER_CENT = r"\d[\d.]* ?%"
_MEASURES = "accura|success|rouge|ssim|meteor|perplexity|correlation|f1|auc|takes hold|reads|tells"
FIGURES = (
    re.compile(r"\d ± ?\.?\d|†"),
    re.compile(r"(?<![\w.])\d[\d,]* of \d[\d,]*(?= (?:attack|honest|client|seed)|[^\w]*[|\[;,.)])"),
    re.compile(rf"(?:{_MEASURES})[^|\n.;]{{0,60}}?(?:{_SHARE}|{_PER_CENT})", re.IGNORECASE),
    re.compile(rf"(?:{_SHARE}|{_PER_CENT})[^|\n.;]{{0,12}}(?:accuracy|ROUGE|SSIM|METEOR|F1|AP\b)"),
)
"""How measured figures look: a mean with its interval, a count of some, a measure and its value."""
CELLS = re.compile(rf"\| *\**(?:{_SHARE}|{_PER_CENT}|\d+ / \d+)(?= *(?:\||\[|±))")
"""A cell of a table that begins with a result."""
TIMED = "docs/results/costs.md"
"""The page whose cells are ratios of times, each under the command that takes them."""
REASONED = {
    "with weight 0.01": "a strength of WCC, in threats.md",
    "10 of 1,000 turns": "how the board of the how-to writes a short attack",
    "success above 50 %": "what counts as a backdoor that takes",
    ".05 more in its second half": "when the board names an attack as not converged",
    "An AUC of .55": "an example, of no run",
}
"""What looks like a figure and is none, and why."""


def list_figures(text: str, *, timed: bool = False) -> Iterator[str]:
    """Yield what looks like a measured figure, outside of what rows and commands write."""
    text = _MADE.sub("", text)
    text = re.sub(r"\n(?![|\n#-])", " ", text)  # a sentence goes on over lines
    for phrase in REASONED:
        text = text.replace(phrase, "")
    for line in text.splitlines():
        for pattern in FIGURES if timed else (*FIGURES, CELLS):
            yield from (found[0] for found in pattern.finditer(line))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_figure_on_a_page_comes_from_a_row(page: Path):
    timed = page == ROOT / TIMED
    found = [*list_figures(page.read_text(encoding="utf-8"), timed=timed)]
    assert found == [], "a figure stands between marks that name its row, or goes"


@pytest.mark.parametrize(
    "line",
    [
        "| IID | 10 of 10 [69, 100] | .97 |",
        "Attack success .67, .64, .83, in clean runs .03.",
        "| the same, from the fourth round on | 99 ± 1 |",
        "brings success from 99 % to 4 % [3, 6]",
        "it flags 12 of 15† attackers",
        "after two rounds it reads .95 of CoLA",
        "| `sdar` | .97 | .97 | .97 |",
        "| images, ten classes | 98 / 100 | 91 / 85 |",
        "the quickstart's accuracy\nis 26 %",
        "it ends at about 98 % test accuracy",
        "a party names 65.0 ± 3.8 % of the labels",
    ],
)
def test_what_was_measured_is_noticed(line: str):
    """Lines of pages as they were: each has a figure, and none once it stands between marks."""
    assert [*list_figures(line)]
    assert not [*list_figures(f"<!-- figure: a/b c -->{line}<!-- end -->")]


def test_settings_and_examples_of_output_are_no_figures():
    text = "MNIST at Dirichlet 0.1, ratio 8, a cut of 1.5\n```text\naccuracy 0.97 ± 0.02\n```\n"
    assert [*list_figures(text + "`epsilon: 0.05`, 95 % intervals")] == []


def test_no_reason_outlives_its_phrase():
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [phrase for phrase in REASONED if phrase not in pages] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_begins_with_a_mark(page: Path):
    """Markdown ends a paragraph at a line that begins with a comment."""
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.lstrip().startswith("<!-- figure: ")] == []
