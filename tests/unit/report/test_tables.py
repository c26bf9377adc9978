import csv
import io
import math

import pytest
from rich.console import Console

from simsplit.report.tables import Table, find_best, write_mean

TABLE = Table(
    "A [title]", ("name", "words", "number"), [("a|b", "x, y", "1"), ("c", "[z]", "23")], "llr"
)


def render(table, width=80):
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table.rich(width), highlight=False)
    return captured.get()


def test_text_stands_left_and_numbers_right():
    lines = [line.rstrip() for line in render(TABLE).splitlines() if line.strip()]
    assert lines[0] == "A [title]"
    assert lines[1].split() == ["name", "words", "number"]
    assert lines[3:] == [" a|b    x, y         1", " c      [z]         23"]


def test_without_a_word_the_first_column_is_text():
    assert Table("", ("a", "b", "c"), []).align == "lrr"
    assert Table("", ("a",), []).align == "l"


def test_brackets_are_not_markup():
    assert "[smashed]" in render(
        Table("", ("[a]", "b"), [("x", "[smashed]"), ("[/bold]", "[red]")])
    )
    assert "[/bold]" in render(Table("", ("a",), [("[/bold]",)]))


def test_long_cells_fold_beside_a_first_column_kept_whole():
    table = Table("", ("field", "meaning"), [("a_rather_long_name", "word " * 40)], "ll")
    lines = render(table, 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert sum("a_rather_long_name" in line for line in lines) == 1


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_number_is_broken_whatever_the_width(width):
    """What does not fit beside the texts stands below, beside as many as tell rows apart."""
    names = tuple(f"figure number {n}" for n in range(9))
    rows = [(f"run{row}", "a setting of its own", *(f"{row}{n}.25 ± 1.50" for n in range(9)))
            for row in range(3)]  # fmt: skip
    table = Table("title", ("run", "setting", *names), rows, "ll" + "r" * 9)
    parts = table.split_to_fit(width)
    assert [part.title for part in parts] == ["title", *[""] * (len(parts) - 1)]
    text = "".join(render(part, width) for part in parts)
    assert max(map(len, text.splitlines())) <= width
    for row in rows:
        assert text.count(row[0]) == len(parts)
        assert all(text.count(cell) == 1 for cell in row[2:])
    assert (len(parts) == 1) == (width == 200)


WIDE = {
    "texts": Table(
        "",
        ("table", "what it shows", "tiers", "verdict"),
        [("lightsplit/table12", "Reconstruction-resistant words", "small", "unsettled 1 of 9")],
        "llll",
    ),
    "numbers before texts": Table(
        "",
        ("place", "defence", *(f"leak within {n} points" for n in (1, 3, 5)), "worst attack"),
        [("1", "a defence of several words", *["0.85 ± 0.13"] * 3, "vocabulary_matching")],
        "rlrrrl",
    ),
}
"""Shapes of the widest tables that are printed: those of papers, and of boards."""


@pytest.mark.parametrize("table", WIDE.values(), ids=WIDE)
@pytest.mark.parametrize("width", [50, 60, 80, 200])
def test_a_wide_table_folds_before_anything_is_cut(table, width):
    parts = table.split_to_fit(width)
    lines = "".join(render(part, width) for part in parts).splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    for text in (*table.columns, *table.rows[0]):
        assert set(text.split()) <= set(words)
    assert (len(parts) == 1) == (width == 200 or (width == 80 and table is WIDE["texts"]))


@pytest.mark.parametrize("width", [30, 45, 60])
def test_a_long_name_folds_where_a_number_would_be_cut(width):
    name = "handover (weights and the optimizer's moments)"
    table = Table("", ("leg", "bytes", "packets"), [(name, "1,105,920", "26")])
    text = "".join(render(part, width) for part in table.split_to_fit(width))
    assert max(map(len, text.splitlines())) <= width
    assert {"1,105,920", "26", "moments)"} <= set(text.split())


@pytest.mark.parametrize(
    ("values", "written"),
    [([3.9444e-05], "3.94e-05"), ([0.0721], "0.0721"), ([0.0, 0.0], "0.0000 ± 0.0000")],
)
def test_a_small_error_is_not_written_as_none(values, written):
    assert float(write_mean("mse", values).split()[0]) == pytest.approx(float(written.split()[0]))


def test_markdown():
    assert TABLE.text("markdown") == (
        "| name | words | number |\n| --- | --- | ---: |\n| a\\|b | x, y | 1 |\n| c | [z] | 23 |"
    )


def test_pages_of_our_own_may_have_links():
    assert "[a](b.md)" in Table("", ("a",), [("[a](b.md)",)]).markdown(links=True)


def test_csv_reads_back():
    rows = list(csv.reader(io.StringIO(TABLE.text("csv"))))
    assert rows == [list(TABLE.columns), *map(list, TABLE.rows)]


def test_latex():
    assert TABLE.text("latex").splitlines() == [
        r"\begin{tabular}{llr}",
        r"\toprule",
        r"name & words & number \\",
        r"\midrule",
        r"a\textbar{}b & x, y & 1 \\",
        r"c & [z] & 23 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


@pytest.mark.parametrize(
    ("cell", "escaped"),
    [
        ("a & b", r"a \& b"),
        ("10%", r"10\%"),
        ("$x_1$", r"\$x\_1\$"),
        ("#1", r"\#1"),
        ("{a}", r"\{a\}"),
        ("~", r"\textasciitilde{}"),
        ("R^T", r"R\textasciicircum{}T"),
        ("a\\b", r"a\textbackslash{}b"),
        ("\\{~}", r"\textbackslash{}\{\textasciitilde{}\}"),
        ("1.0 ± 0.1", r"1.0 $\pm$ 0.1"),
        ("a < b", r"a \textless{} b"),
        ("3 | 3", r"3 \textbar{} 3"),
    ],
)
def test_latex_escapes_every_special_character_once(cell, escaped):
    table = Table("", ("a", cell), [("x", cell)])
    lines = table.latex().splitlines()
    assert lines[2] == rf"a & {escaped} \\"
    assert lines[4] == rf"x & {escaped} \\"


HOSTILE = {
    "<script>alert(1)</script>": ("&lt;script>alert(1)&lt;/script>", None),
    "<!-- a": ("&lt;!-- a", None),
    "[a](javascript:b)": (r"[a\](javascript:b)", None),
    "![a](http://b)": (r"![a\](http://b)", None),
    "a\n| b |": (r"a \| b \|", None),
    "=cmd|' /C calc'!A0": (r"=cmd\|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
    "+1+cmd|' /C calc'!A0": (r"+1+cmd\|' /C calc'!A0", "'+1+cmd|' /C calc'!A0"),
    "-2*HYPERLINK(1)": (None, "'-2*HYPERLINK(1)"),
    "@SUM(1)": (None, "'@SUM(1)"),
    "\t=1": ("\t=1", "'\t=1"),
    "-0.50 ± 0.10": (None, None),
    "-1.2e-05": (None, None),
    "+0.39 [-1.18, 1.96]": (None, None),
    "a < b <= c": (None, None),
}
"""Cells, with what is written of them in Markdown and in CSV; None: the same."""


@pytest.mark.parametrize(("cell", "written"), HOSTILE.items())
def test_names_of_others_are_no_markup_and_no_formulas(cell, written):
    table = Table("", ("name", cell), [(cell, "1")])
    markdown, plain = (new or cell for new in written)
    lines = table.text("markdown").splitlines()
    assert lines == [f"| name | {markdown} |", "| --- | ---: |", f"| {markdown} | 1 |"]
    assert list(csv.reader(io.StringIO(table.text("csv"), newline=""))) == [
        ["name", plain],
        [plain, "1"],
    ]
    assert len(table.text("latex").splitlines()) == 7


def test_the_best_of_a_column_is_bold_where_the_seeds_resolve_it():
    columns = ("name", "accuracy", "loss", "bytes", "same", "unknown", "close")
    ways = {"accuracy": "more", "loss": "less", "bytes": "less", "same": "more", "close": "more"}

    def make(accuracy, loss, nbytes, close):
        figures = {"accuracy": accuracy, "close": close, "unknown": accuracy}
        made = {name: dict(enumerate(values)) for name, values in figures.items()}
        return made | {"loss": {0: loss}, "bytes": {0: nbytes}, "same": {0: 1.0}}

    numbers = [
        make((0.90, 0.92, 0.91), 0.1, 20.0, (0.90, 0.92, 0.91)),
        make((0.80, 0.83, 0.81), 0.2, 10.0, (0.91, 0.90, 0.90)),
        make((0.70, 0.71, 0.72), 0.3, math.nan, (0.70, 0.71, 0.72)),
    ]
    # One seed settles a count of bytes and no loss; two close accuracies are not told apart.
    assert find_best(columns, numbers, ways, ("bytes",)) == {(0, 1), (1, 3)}
    # Differences of +.1, +.1, -.14: the best mean is not ahead on every seed.
    numbers = [make((0.9, 0.9, 0.7), 0.1, 1, (1,)), make((0.8, 0.8, 0.84), 0.2, 2, (1,))]
    assert (0, 1) not in find_best(columns, numbers, ways)


def test_who_is_behind_on_the_seeds_that_both_have_is_not_bold():
    """The first has the better mean, but only by two seeds that the second lacks."""
    numbers = [{"a": {0: 0.5, 1: 0.5, 2: 0.9, 3: 0.9}}, {"a": {0: 0.6, 1: 0.61}}]
    assert not find_best(("a",), numbers, {"a": "more"})
    negated = [{"a": {seed: -value for seed, value in each["a"].items()}} for each in numbers]
    assert not find_best(("a",), negated, {"a": "less"})
    ahead = [{"a": {0: 0.7, 1: 0.7, 2: 0.9}}, numbers[1]]
    assert find_best(("a",), ahead, {"a": "more"}) == {(0, 0)}


def test_a_table_writes_its_bold_cells():
    table = Table("t", ("a", "b"), [("x_1", "5%"), ("y", "3%")], bold=frozenset({(0, 1)}))
    assert table.markdown().splitlines()[2:] == ["| x_1 | **5%** |", "| y | 3% |"]
    assert table.latex().splitlines()[4:6] == [r"x\_1 & \textbf{5\%} \\", r"y & 3\% \\"]
    assert table.csv().splitlines()[1] == "x_1,5%"
    assert table.heading.startswith("t; in bold")
    assert TABLE.heading == TABLE.title


def test_an_empty_table_has_its_header():
    table = Table("", ("a", "b"), [])
    assert table.csv() == "a,b"
    assert table.markdown() == "| a | b |\n| --- | ---: |"
    assert r"a & b \\" in table.latex()
    assert "a" in render(table)
