"""Tables show the first private texts, each above what every attack read of it."""

import re

from simsplit.report.tables import Table
from simsplit.results import Run
from simsplit.results.recovered_files import load_sessions, load_texts
from simsplit.results.recovered_kinds import KINDS, PROMPT, RESPONSE, entitle, find_kinds


def tabulate_texts(run: Run, most: int = 3) -> Table:
    """Tabulate the first private texts, each above what every attack recovered of it."""
    rows: list[tuple[str, ...]] = []
    texts = load_texts(run.path) if "texts" in find_kinds(run.leaks) else None
    for number, group in [] if texts is None else texts[texts["text"] < most].groupby("text"):
        rows.append((str(number), "(private)", shorten(group["private"].iloc[0])))
        attacks = group[~group["attack"].isin(KINDS["texts"].guesses)]
        made = zip(attacks["attack"], attacks["recovered"], strict=True)
        rows += [("", str(attack), shorten(text)) for attack, text in made]
    return Table("recovered texts", ("text", "by", "content"), rows, "lll")


def tabulate_dialogues(run: Run, most: int = 2) -> Table:
    """Tabulate the first prompts and responses, each above what every attack read of it."""
    texts, judged = load_sessions(run.path), run.sessions
    rows: list[tuple[str, ...]] = []
    roles = {} if judged.empty else dict(zip(judged["attack"], judged["role"], strict=True))
    numbers = [] if texts.empty else sorted(texts["session"].unique())[:most]
    for number in numbers:
        group = texts[texts["session"] == number]
        private = group.iloc[0]
        sides = (shorten(private[f"private_{side}"], 60) for side in (PROMPT, RESPONSE))
        rows.append((str(number), "(private)", *sides))
        for _, row in group[~group["attack"].isin(KINDS["sessions"].guesses)].iterrows():
            read = (shorten(row[side], 60) for side in (PROMPT, RESPONSE))
            title = entitle("sessions", str(row["attack"]), str(roles.get(row["attack"])))
            rows.append(("", title, *read))
    return Table("sessions as they were read", ("session", "by", PROMPT, RESPONSE), rows, "llll")


def shorten(text: object, width: int = 100) -> str:
    """Return a text on one line, cut to a number of characters."""
    # a tokenizer's stray bytes decode to no characters; one mark replaces a sequence of them
    words = " ".join(re.sub(r"\ufffd+", "\ufffd", str(text)).split())
    return words if len(words) <= width else f"{words[: width - 1]}…"
