"""Whether head and tail learn a language model's one table of tokens together, or a copy each.

A tied model has one table for both (see `simsplit.models.tied`). Where one optimizer cannot learn
it for both, each end learns a copy, as a run then says.
"""

from collections.abc import Iterator, Mapping

from torch import Tensor

from simsplit.errors import RunError
from simsplit.methods.stack import Stack
from simsplit.models.fresh import CutNetwork
from simsplit.models.language import LanguageConfig
from simsplit.models.tied import COPY, can_tie, list_learning
from simsplit.scenario import Scenario


def has_one_table(scenario: Scenario, model: CutNetwork) -> bool:
    """Return whether the model's head and tail have one table of tokens in the whole model."""
    config = scenario.model
    tied = isinstance(config, LanguageConfig) and config.is_tied
    return tied and can_tie(model.head, model.tail)


def explain_copies(scenario: Scenario, model: CutNetwork, client: Stack) -> str:
    """Explain why the ends of a tied model have a table each; empty if they can have one."""
    why = next(_list_obstacles(scenario, model, client), None)
    if why is None:
        return ""
    return (
        "the model embeds tokens and predicts them with one table (tie_word_embeddings), of which "
        f"head and tail have a copy each here: {why}"
    )


def refuse_copies(state: Mapping[str, Tensor], *, is_tied: bool) -> None:
    """Raise RunError if a checkpoint has a tail's own table of tokens, and ends now have one."""
    if is_tied and any(name.endswith(COPY) for name in state):
        raise RunError(
            "the run began when head and tail learned a copy each of the model's one table of "
            "tokens, and now they learn one; start a new run with another --out"
        )


def _list_obstacles(scenario: Scenario, model: CutNetwork, client: Stack) -> Iterator[str]:
    """Yield what keeps one optimizer from learning the table for both ends."""
    learning = list_learning(model.head, model.tail)
    if not learning:  # the copies stay equal
        return
    if "tail" in scenario.crossings.served:
        yield f"under topology {scenario.topology} clients have the head, and the server the tail"
    if len(learning) == 1:
        yield f"only that of the {learning[0]} learns (model.learns)"
    clients = scenario.clients
    if clients.heads == "per_client" and clients.shares_tail:
        yield "each client has a head of its own, and all share the tail (clients.tail: shared)"
    main = client.make_training_phase()
    between = [] if main.interleaved is None else [main.interleaved.phase]
    for phase in (*client.plan_phases(scenario.schedule.rounds or 1), main, *between):
        if ("head" in phase.learns) != ("tail" in phase.learns):
            still = "head" if "tail" in phase.learns else "tail"
            yield f"in phase {phase.name} a method keeps the {still} as it is, and the other learns"
