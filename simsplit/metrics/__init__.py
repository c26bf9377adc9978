"""How good what came out is: thin calls into kept libraries."""


def falls(figure: str) -> bool:
    """Whether smaller is better: of losses, errors and perplexities; everything else rises."""
    return figure.endswith(("loss", "error", "perplexity"))
