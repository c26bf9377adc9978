"""What attacks recovered: images and texts beside the private ones, and their figures."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from simsplit.errors import RunError
from simsplit.report.html.markup import Markup, details, figure, joined, section, tag, void
from simsplit.report.html.subject import Subject
from simsplit.report.html.table_markup import table
from simsplit.report.input_tables import converging, tabulate_recoveries
from simsplit.results import Run
from simsplit.results.input_results import FLOORS, ORIGINALS, judged_last
from simsplit.results.kept import IMAGES, afterwards, load_images, load_texts

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

_MOST, _TEXTS, _SETTINGS = 10, 6, 12
_LEAKS = (("mse", min), ("rouge_l", max))
"""What recoveries are judged by, and which end of it is the worst for who is attacked."""


def leaks(subject: Subject) -> Markup:
    """Pictures or texts of each setting's first seed, and of one run its tables."""
    runs = {
        name: entry.run
        for name, entry in zip(subject.names, subject.firsts, strict=True)
        if not entry.run.recovered.empty
    }
    if not runs:
        return Markup()
    tables = []
    if subject.one is not None:
        tables = [table(tabulate_recoveries(subject.one)), table(converging(subject.one))]
    of_texts = {name: run for name, run in runs.items() if "text" in run.recovered}
    of_images = {name: run for name, run in runs.items() if "image" in run.recovered}
    return section("Recovered", *tables, _pictures(of_images), _texts(of_texts))


def conclude_leaks(subject: Subject) -> str:
    """Say which attack came nearest in any run, beside the best guess that needs none."""
    several = len(subject.rows) > 1
    clauses = []
    for measure, worst in _LEAKS:
        found = []
        for name, row in zip(subject.names, subject.rows, strict=True):
            for entry in row.entries:
                if (pair := _nearest(entry.run, measure, worst)) is not None:
                    found.append((*pair, name))
        if found:
            value, attack, floor, name = worst(found, key=lambda each: each[0])
            title = {"mse": "MSE", "rouge_l": "ROUGE-L"}[measure]
            beside = "" if floor is None else f", a guess without attack {floor:.3g}"
            on = f" on {name}" if several else ""
            clauses.append(f"worst attack: {attack}{on}, {title} {value:.3g}{beside}")
    return "; ".join(clauses)


def _nearest(
    run: Run, figure: str, worst: Callable[..., float]
) -> tuple[float, str, float | None] | None:
    """(value, attack, the best guess's) at the last judgement."""
    means = judged_last(run.attacks)
    if figure not in means:
        return None
    known = means[figure].dropna()
    own = known[~known.index.isin(FLOORS)]
    if own.empty:
        return None
    guesses = known[known.index.isin(FLOORS)]
    value = float(worst(own))
    name = str(own.index[list(own).index(value)])
    return value, name.replace("_", " "), float(worst(guesses)) if len(guesses) else None


def _pictures(runs: Mapping[str, Run]) -> Markup:
    """Originals above what attacks made of them, a row an attack and setting."""
    held = {name: _images(run) for name, run in list(runs.items())[:_SETTINGS]}
    held = {name: images for name, images in held.items() if images}
    if not held:
        return Markup()
    first = next(iter(held.values()))
    attacks = dict.fromkeys(a for images in held.values() for a in images if a != ORIGINALS)
    rows = [_row("private", first[ORIGINALS])]
    for attack in sorted(attacks, key=lambda name: name in FLOORS):  # the guesses last
        for name, images in held.items():
            if attack in images and not (attack in FLOORS and name != next(iter(held))):
                alone = attack in FLOORS or len(held) == 1
                told = attack.replace("_", " ")
                rows.append(_row(told if alone else f"{told}, {name}", images[attack]))
    caption = (
        "Private images in the first row, below them what each attack made of them; the last rows "
        "are guesses that need no attack."
    )
    grid = tag("table", tag("tbody", *rows), class_="images")
    label = "Recovered images"
    drawn = tag("div", grid, class_="wide whole", tabindex="0", role="region", aria_label=label)
    return figure(drawn, caption)


def _images(run: Run) -> "dict[str, np.ndarray]":
    """By attack, those made on the finished run among them."""
    found: dict[str, np.ndarray] = {}
    for folder in (run.path, *afterwards(run.path)):
        if IMAGES.all_of(folder):
            found = {**load_images(folder), **found}
    return found if ORIGINALS in found else {}


def _row(name: str, images: "np.ndarray") -> Markup:
    cells = [
        tag(
            "td",
            void("img", src=_inlined(image), alt=f"{name}, image {number}", width=64, height=64),
        )
        for number, image in enumerate(images[:_MOST])
    ]
    return tag("tr", tag("th", name, scope="row", class_="text"), *cells)


def _inlined(image: "np.ndarray") -> str:
    """A C x H x W image as a data URI."""
    from PIL import Image

    pixels = image.transpose(1, 2, 0).squeeze()
    if pixels.ndim == 3 and pixels.shape[2] not in (3, 4):  # channels that are no colours
        pixels = pixels[..., 0]
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _texts(runs: Mapping[str, Run]) -> Markup:
    """Each private text above what was read of it; words that are in it are marked."""
    parts = []
    for name, run in list(runs.items())[:_SETTINGS]:
        try:
            made = _of_run(load_texts(run.path))
        except RunError:  # a run of which only the figures were kept
            continue
        parts.append(made if len(runs) == 1 else details(name, made))
    if not parts:
        return Markup()
    caption = (
        "Private texts, and what each attack read of them; marked words stand in the private text "
        "in that order."
    )
    return figure(joined(parts), caption)


def _of_run(texts: "pd.DataFrame") -> Markup:
    blocks = []
    for number, group in list(texts.groupby("text", sort=True))[:_TEXTS]:
        private = str(group["private"].iloc[0])
        lines = [_line("private", tag("span", " ".join(private.split())))]
        known = group[~group["attack"].isin(FLOORS)]
        for attack, text in zip(known["attack"], known["recovered"], strict=True):
            lines.append(_line(str(attack).replace("_", " "), _marked(private, str(text))))
        blocks.append(tag("dl", *lines, class_="texts", aria_label=f"text {number}"))
    return joined(blocks)


def _line(who: str, text: Markup) -> Markup:
    return joined((tag("dt", who), tag("dd", text)))


def _marked(private: str, text: str) -> Markup:
    """A recovered text, with the words that the private one has in the same order marked."""
    here, there = text.split()[:_WORDS], private.split()
    blocks = SequenceMatcher(None, here, there, autojunk=False).get_matching_blocks()
    parts: list[object] = []
    at = 0
    for block in blocks:
        parts += [*_plain(here[at : block.a]), *_plain_marks(here[block.a : block.a + block.size])]
        at = block.a + block.size
    return tag("span", joined(parts, " "))


_WORDS = 80


def _plain(words: Sequence[str]) -> list[object]:
    return [" ".join(words)] if words else []


def _plain_marks(words: Sequence[str]) -> list[object]:
    return [tag("mark", " ".join(words))] if words else []
