"""The gallery: every scenario that ships, by the question that it answers."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from making.markup import code, fence, fold, plain, table
from simsplit.scenario import has_sweep
from simsplit.scenario.shipped import SUFFIX, Shipped, describe_all, find_folder

PICTURES = Path(__file__).parents[1] / "gallery"

_HEAD = """\
# Gallery

Each scenario ships with the package and is found by its name. `simsplit list scenarios` prints
the same list, and `simsplit new mine.yaml --from quickstart` writes a copy to change.
"""
QUESTIONS = {
    "Where to begin": ("quickstart", "everything", "watched"),
    "What does a method cost, and what does it hide?": (
        "table",
        "digits-table",
        "cuts",
        "convergence",
        "cifar10-fast",
        "cifar10-fast-table",
    ),
    "What does an attack recover?": ("reconstruction", "labels", "hospitals"),
    "What crosses when language models are split?": (
        "mixguard",
        "p3eft",
        "generation",
        "generation-defences",
        "smollm",
        "smollm-generation",
    ),
    "Who poisons training, and who is caught?": (
        "backdoor",
        "poisons",
        "caught",
        "caught-root",
        "caught-samples",
        "late",
        "skewed",
    ),
    "How do schedules and networks differ?": ("asynchronous", "phones", "splitfed", "vit"),
    "What if the columns are divided among parties?": ("vertical", "vertical-images"),
    "How many clients can there be?": (
        "scaling",
        "sixteen",
        "sixteen-cifar10",
        "crowd",
        "ten-thousand",
        "hundred-thousand",
        "million",
    ),
}
"""Question -> the scenarios that answer it, as readers should meet them."""
_SEEDS = ("sweep.grid.seed=[50, 51, 52]",)
_TENTH = (
    "data.train_samples=5000",
    "data.test_samples=2000",
    "schedule.rounds=100",
    "train.lr_schedule.warmup=23",
    "train.precision=fp32",
    "evaluate.every=20",
)
SHORT: Mapping[str, Sequence[str]] = {
    "poisons": _SEEDS,
    "caught": _SEEDS,
    "caught-root": _SEEDS,
    "caught-samples": _SEEDS,
    "late": _SEEDS,
    "skewed": ("sweep.seed=[30, 31, 32]",),
    "sixteen": ("sweep.grid.seed=[0]",),
    "watched": ("sweep.grid.seed=[40]",),
    "cifar10-fast": _TENTH,
    "cifar10-fast-table": ("sweep.grid.seed=[0]", *_TENTH),
    "sixteen-cifar10": (
        "sweep.grid.seed=[0]",
        "data.train_samples=2000",
        "data.test_samples=1000",
        "schedule.rounds=40",
        "train.lr_schedule.warmup=9",
        "train.precision=fp32",
        "evaluate.every=20",
    ),
}
"""Of pictures that are drawn of a shorter run, the fields that are set for it."""
_PAPERS = """\
## Tables and figures of papers

Full size, and in `small/` for two CPU cores. Data sets are yours to give:
[A paper's table](howto/papers.md).
"""


def page() -> str:
    """Make an entry per scenario under its question, and a table of the ones that repeat papers."""
    described = {each.name: each for each in describe_all()}
    papers = [(code(name), plain(each.shows)) for name, each in described.items() if "/" in name]
    parts = [_HEAD]
    for question, names in QUESTIONS.items():
        parts += [f"## {question}", *(_entry(described[name]) for name in names)]
    return "\n\n".join([*parts, _PAPERS, table(("scenario", "what it shows"), papers)])


def _entry(shipped: Shipped) -> str:
    text = (find_folder() / f"{shipped.name}{SUFFIX}").read_text(encoding="utf-8")
    command = "sweep" if has_sweep(Path(shipped.name)) else "run"  # `extends` may bring one
    parts = [
        f"### {shipped.name}",
        plain(shipped.shows),
        f"Takes {plain(shipped.takes)}." if shipped.takes else "",
        fence(f"simsplit {command} {shipped.name}"),
        _picture(shipped),
        fold(f"{shipped.name}{SUFFIX}", fence(text, "yaml")),
    ]
    return "\n\n".join(part for part in parts if part)


def _picture(shipped: Shipped) -> str:
    """Show what `make gallery` drew of a scenario; the text says what there is to see."""
    lies = (PICTURES / f"{shipped.name}.svg").is_file()
    says = plain(shipped.shows).rstrip(".").replace("[", "(").replace("]", ")")
    if not lies:
        return ""
    fields = " ".join(f"--set {field!r}" for field in SHORT.get(shipped.name, ()))
    shorter = f"\n\nThe picture is of a shorter run: {code(fields)}." if fields else ""
    return f"![Results of {shipped.name}: {says}](gallery/{shipped.name}.svg){shorter}"
