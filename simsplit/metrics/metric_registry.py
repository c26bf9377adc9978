"""This registry has every figure that tables, plots, boards and claims know, each once.

Figures have plain names, such as `mse`. Where a run has several of a kind, a prefix says whose it
is: a split (`test_accuracy`), an attack (`ridge_mse`), a detector (`cosine_payload_auroc`). A word
behind it is a control (`loss_without_trunk`). `find_metric` knows both forms.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Better = Literal["more", "less"]
_SPLITS = ("test_", "validation_")
_FIRST = ("exact_answers", "answers", "accuracy")
"""In this order: a model that writes a class is judged by its answer, not by single tokens."""

MEMBER_RATES = {"tpr_at_1pct": 0.01, "tpr_at_01pct": 0.001}
"""Figure of attacks on members -> the largest share of others that are taken for members."""
MEMBER_AUC = "auc"


@dataclass(frozen=True)
class Metric:
    """A figure: its words, its better way, and how it is written."""

    name: str
    good: Better | None
    """Whether more or less of it is better for the task, for a detector, or for an attacker."""
    heading: str = ""
    """Its name in the head of a table."""
    decimals: int | None = None
    """How many decimals are shown; None for a share, which is shown in per cent with two."""
    of: Literal["task", "attack", "detector", "cost"] = "task"
    """Whose figure it is where no split precedes it."""
    axis: str = ""
    """Its words on an axis, where they are others."""

    @property
    def words(self) -> str:
        """Its name in the head of a table, or in words."""
        return self.heading or self.name.replace("_", " ")

    @property
    def better(self) -> Better | None:
        """The better way; of an attack's figures, that of the client under attack."""
        if self.of != "attack" or self.good is None:
            return self.good
        return "less" if self.good == "more" else "more"

    @property
    def is_share(self) -> bool:
        """Whether it is shown in per cent."""
        return self.decimals is None and self.of in ("task", "attack")


METRICS: dict[str, Metric] = {
    each.name: each
    for each in (
        # of the task
        Metric("accuracy", "more"),
        Metric("balanced_accuracy", "more"),
        Metric("answers", "more"),
        Metric("exact_answers", "more"),
        Metric("loss", "less", decimals=4),
        Metric("error", "less"),
        Metric("perplexity", "less", decimals=1),
        Metric("bleu", "more", decimals=2),
        Metric("code_bleu", "more", decimals=3),
        Metric("attack_success", "less"),
        Metric("attack_success_all", "less", "attack success, all heads"),
        # costs
        Metric("bytes", "less", of="cost"),
        Metric("bytes_total", "less", of="cost", axis="bytes sent"),
        Metric("seconds", "less", of="cost"),
        Metric("simulated", "less", of="cost"),
        Metric("resident", "less", of="cost"),
        # of detectors
        Metric("auroc", "more", "AUROC", of="detector"),
        Metric("tpr_at_1pct_fpr", "more", of="detector"),
        Metric("precision", "more", of="detector"),
        Metric("recall", "more", of="detector"),
        Metric("f1", "more", "F1", of="detector"),
        Metric("fpr", "less", of="detector"),
        # of attacks on inputs
        *(
            metric
            for prefix, words in (("", ""), ("fg_", "foreground "))
            for metric in (
                Metric(f"{prefix}mse", "less", f"{words}MSE", 4, "attack"),
                Metric(f"{prefix}psnr", "more", f"{words}PSNR", 2, "attack"),
                Metric(f"{prefix}ssim", "more", f"{words}SSIM", 3, "attack"),
                Metric(f"{prefix}lpips", "less", f"{words}LPIPS", 3, "attack"),
            )
        ),
        Metric("stretched_mse", "less", "MSE at full brightness", 4, "attack"),
        Metric("correlation", "more", "correlation with the truth", 3, "attack"),
        Metric("label_accuracy", "more", "label accuracy of its simulator", of="attack"),
        *(
            metric
            for prefix, words in (("", ""), ("best_", "best "), ("mean_", "mean "))
            for metric in (
                Metric(f"{prefix}rouge_l", "more", f"{words}ROUGE-L", 3, "attack"),
                Metric(f"{prefix}token_rouge_l", "more", f"{words}ROUGE-L of tokens", 3, "attack"),
                Metric(f"{prefix}meteor", "more", f"{words}METEOR", 3, "attack"),
                Metric(f"{prefix}token_accuracy", "more", f"{words}token accuracy", of="attack"),
            )
        ),
        Metric("batch_rouge_l", "more", "ROUGE-L by batch", 3, "attack"),
        # of attacks on labels
        Metric("auc", "more", "AUC", of="attack"),
        Metric("best_auc", "more", "AUC of the best component", of="attack"),
        Metric("purity", "more", "purity of clusters", of="attack"),
        Metric("leak", "more", of="attack"),
        Metric("chance", None, of="attack"),
        Metric("labels_leak", "more", of="attack", axis="labels inferred by the worst attack"),
        Metric(
            "labels_known_leak", "more", of="attack", axis="labels inferred, a part being known"
        ),
        # of attacks on sessions
        Metric("ap", "more", "AP", 3, "attack"),
        *(
            Metric(f"ap_{side}", "more", f"AP, {side}", 3, "attack", axis=f"AP of {words}")
            for side, words in (
                ("prompt", "prompts"),
                ("response", "responses"),
                ("both", "both ends"),
            )
        ),
        Metric("entity_f1", "more", "entities F1", 3, "attack"),
        Metric("bert_score", "more", "BERTScore", 3, "attack"),
        Metric("bleurt", "more", "BLEURT", 3, "attack"),
        Metric("sessions_ap", "more", "", 3, "attack", "AP of both ends by the strongest attack"),
        Metric("sessions_mp", "more", "", 3, "task", axis="METEOR of what is written (MP)"),
        # of attacks on members
        Metric("tpr_at_1pct", "more", "found at 1 % false alarms", of="attack"),
        Metric("tpr_at_01pct", "more", "found at .1 % false alarms", of="attack"),
        Metric("epsilon", "less", "epsilon at most", 2, "cost"),
        Metric("audited_epsilon", "more", "epsilon at least", 2, "attack"),
        Metric("audited_epsilon_of_weights", "more", "of the model alone", 2, "attack"),
    )
}


def strip_split(figure: str) -> str:
    """Return a figure's name without the split that it is of."""
    return next((figure.removeprefix(each) for each in _SPLITS if figure.startswith(each)), figure)


def find_metric(figure: str) -> Metric | None:
    """Return the metric of a figure: by its whole name, its beginning, or its end; else None.

    A task's figures and costs have controls and parts behind their names, attacks' and detectors'
    figures have whose they are before them.
    """
    name = strip_split(figure)
    if name in METRICS:
        return METRICS[name]
    parts = name.split("_")
    begins = ["_".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]
    ends = ["_".join(parts[count:]) for count in range(1, len(parts))]
    before = (METRICS[each] for each in begins if each in METRICS)
    behind = (METRICS[each] for each in ends if each in METRICS)
    if name != figure:
        return next(before, None)
    owned = (each for each in behind if each.of in ("attack", "detector"))
    return next(owned, None) or next((each for each in before if each.of == "cost"), None)


def find_better(figure: str) -> Better | None:
    """Return whether more or less of a figure is better, or None if neither is.

    An attack's figures are judged from the view of the client under attack.
    """
    if strip_split(figure) != figure:
        return "less" if is_lower_better(figure) else "more"
    metric = find_metric(figure)
    return None if metric is None else metric.better


def find_decimals(figure: str) -> int | None:
    """Return the decimals of a figure or of one of its controls, or None for a share."""
    metric = find_metric(f"test_{figure}")
    return None if metric is None else metric.decimals


def is_lower_better(figure: str) -> bool:
    """Return whether smaller is better: for losses, errors and perplexities, not for other figures.

    Other words may precede or follow, as in test_loss_without_trunk.
    """
    return any(
        name in METRICS and METRICS[name].of == "task" and METRICS[name].good == "less"
        for name in figure.split("_")
    )


def find_headline(columns: Iterable[str], split: str = "test") -> str | None:
    """Return the column that says best how well a split is solved, such as `test_answers`."""
    known = set(columns)
    return next((f"{split}_{name}" for name in _FIRST if f"{split}_{name}" in known), None)


def format_column(column: str) -> str:
    """Return a column's name with spaces, for people."""
    return column.replace("_", " ")
