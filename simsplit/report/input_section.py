"""The section on inputs shows recovered images and texts beside the private ones."""

import base64
import io
from collections.abc import Callable, Mapping
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from simsplit.errors import RunError
from simsplit.metrics import METRICS
from simsplit.report.html.markup import Markup, details, figure, join, mark_up, section, tag, void
from simsplit.report.html.subject import Subject
from simsplit.report.input_tables import find_kind, tabulate_convergence, tabulate_recoveries
from simsplit.results import Run
from simsplit.results.leak_table import ATTACK, FLOOR, ORIGINALS, has_role, take_last_judged
from simsplit.results.recovered_files import IMAGES, list_attack_folders, load_images, load_texts
from simsplit.results.recovered_kinds import KINDS

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

_MOST, _TEXTS, _SETTINGS, _WORDS = 10, 6, 12, 80
_FLOORS = KINDS["images"].guesses
_LEAKS = (("mse", min), ("rouge_l", max))
"""The figures of recoveries, and the function that picks the worst one for the client."""


def show_leaks(subject: Subject) -> Markup:
    """Show pictures or texts of each setting's first seed, and the tables of a single run."""
    named = zip(subject.names, subject.firsts, strict=True)
    runs = {name: entry.run for name, entry in named if not entry.run.recovered.empty}
    if not runs:
        return Markup()
    tables = []
    if (one := subject.one) is not None:
        tables = [mark_up(tabulate_recoveries(one)), mark_up(tabulate_convergence(one))]
    of_texts = {name: run for name, run in runs.items() if find_kind(run) == "texts"}
    of_images = {name: run for name, run in runs.items() if find_kind(run) == "images"}
    return section("Recovered", *tables, _draw_pictures(of_images), _show_texts(of_texts))


def conclude_leaks(subject: Subject) -> str:
    """Name the attack that came nearest in any run, beside the best blind guess."""
    clauses = []
    for measure, worst in _LEAKS:
        nearest = []
        for name, row in zip(subject.names, subject.rows, strict=True):
            for entry in row.entries:
                if (pair := _find_nearest(entry.run, measure, worst)) is not None:
                    nearest.append((*pair, name))
        if nearest:
            value, attack, floor, name = worst(nearest, key=lambda each: each[0])
            beside = "" if floor is None else f", a guess without attack {floor:.3g}"
            on = f" on {name}" if len(subject.rows) > 1 else ""
            clauses.append(
                f"worst attack: {attack}{on}, {METRICS[measure].words} {value:.3g}{beside}"
            )
    return "; ".join(clauses)


def _find_nearest(
    run: Run, figure: str, worst: Callable[..., float]
) -> tuple[float, str, float | None] | None:
    """Return the worst value as judged last, its attack, and the best blind guess's value."""
    means = take_last_judged(run.attacks)
    if figure not in means:
        return None
    known = means.dropna(subset=[figure])
    own = has_role(known, ATTACK).set_index("attack")[figure]
    if own.empty:
        return None
    guesses = has_role(known, FLOOR)[figure]
    value = float(worst(own))
    name = str(own.index[list(own).index(value)])
    return value, name.replace("_", " "), float(worst(guesses)) if len(guesses) else None


def _draw_pictures(runs: Mapping[str, Run]) -> Markup:
    """Draw originals above what attacks made of them, a row per attack and setting."""
    held = {name: _load_images(run) for name, run in list(runs.items())[:_SETTINGS]}
    held = {name: images for name, images in held.items() if images}
    if not held:
        return Markup()
    first = next(iter(held.values()))
    attacks = dict.fromkeys(a for images in held.values() for a in images if a != ORIGINALS)
    rows = [_make_row("private", first[ORIGINALS])]
    for attack in sorted(attacks, key=lambda name: name in _FLOORS):  # the guesses last
        for name, images in held.items():
            if attack in images and not (attack in _FLOORS and name != next(iter(held))):
                alone = attack in _FLOORS or len(held) == 1
                title = attack.replace("_", " ")
                rows.append(_make_row(title if alone else f"{title}, {name}", images[attack]))
    caption = (
        "Private images in the first row, below them what each attack made of them; the last rows "
        "are guesses that need no attack."
    )
    grid = tag("table", tag("tbody", *rows), class_="images")
    label = "Recovered images"
    scrolled = tag("div", grid, class_="wide whole", tabindex="0", role="region", aria_label=label)
    return figure(scrolled, caption)


def _load_images(run: Run) -> "dict[str, np.ndarray]":
    """Load a run's images by attack, with those of attacks on the finished run."""
    loaded: dict[str, np.ndarray] = {}
    for folder in (run.path, *list_attack_folders(run.path)):
        if IMAGES.list_all(folder):
            loaded = {**load_images(folder), **loaded}
    return loaded if ORIGINALS in loaded else {}


def _make_row(name: str, images: "np.ndarray") -> Markup:
    cells = []
    for number, image in enumerate(images[:_MOST]):
        words = f"{name}, image {number}"
        cells.append(tag("td", void("img", src=_encode(image), alt=words, width=64, height=64)))
    return tag("tr", tag("th", name, scope="row", class_="text"), *cells)


def _encode(image: "np.ndarray") -> str:
    """Encode a C x H x W image as a data URI."""
    from PIL import Image

    pixels = image.transpose(1, 2, 0).squeeze()
    if pixels.ndim == 3 and pixels.shape[2] not in (3, 4):  # these channels are not colours
        pixels = pixels[..., 0]
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _show_texts(runs: Mapping[str, Run]) -> Markup:
    """Show each private text above what attacks read of it, with its own words marked."""
    parts = []
    for name, run in list(runs.items())[:_SETTINGS]:
        try:
            made = _show_texts_of(load_texts(run.path))
        except RunError:  # the run kept only its figures
            continue
        parts.append(made if len(runs) == 1 else details(name, made))
    if not parts:
        return Markup()
    caption = (
        "Private texts, and what each attack read of them; marked words stand in the private text "
        "in that order."
    )
    return figure(join(parts), caption)


def _show_texts_of(texts: "pd.DataFrame") -> Markup:
    blocks = []
    for number, group in list(texts.groupby("text", sort=True))[:_TEXTS]:
        private = str(group["private"].iloc[0])
        lines = [_make_line("private", tag("span", " ".join(private.split())))]
        known = group[~group["attack"].isin(KINDS["texts"].guesses)]
        for attack, text in zip(known["attack"], known["recovered"], strict=True):
            lines.append(_make_line(str(attack).replace("_", " "), _mark(private, str(text))))
        blocks.append(tag("dl", *lines, class_="texts", aria_label=f"text {number}"))
    return join(blocks)


def _make_line(who: str, text: Markup) -> Markup:
    return join((tag("dt", who), tag("dd", text)))


def _mark(private: str, text: str) -> Markup:
    """Mark the words of a recovered text that the private text has in the same order."""
    here, there = text.split()[:_WORDS], private.split()
    parts: list[object] = []
    at = 0
    for block in SequenceMatcher(None, here, there, autojunk=False).get_matching_blocks():
        before, shared = here[at : block.a], here[block.a : block.a + block.size]
        parts.append(" ".join(before) or None)
        parts.append(tag("mark", " ".join(shared)) if shared else None)
        at = block.a + block.size
    return tag("span", join(parts, " "))
