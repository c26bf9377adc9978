"""How good what came out is: thin calls into kept libraries."""


def falls(figure: str) -> bool:
    """Whether smaller is better: of losses, errors and perplexities; everything else rises.

    Words may follow that say how it was come by, as in test_loss_without_trunk.
    """
    return not {"loss", "error", "perplexity"}.isdisjoint(figure.split("_"))
