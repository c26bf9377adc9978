"""This room computes metrics, through thin calls into maintained libraries."""


def is_lower_better(figure: str) -> bool:
    """Return whether smaller is better: for losses, errors and perplexities, not for other figures.

    Other words may precede or follow, as in test_loss_without_trunk.
    """
    return not {"loss", "error", "perplexity"}.isdisjoint(figure.split("_"))
