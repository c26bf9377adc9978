"""What keeps a client out of a stack, and which clients are alike enough for one."""

from collections.abc import Hashable, Iterator

from simsplit.methods.method import Method
from simsplit.methods.stack import Stack, find_declaring
from simsplit.parties.client import Client
from simsplit.parties.client_end import ClientEnd
from simsplit.parties.feed import keep_batch
from simsplit.parties.learner import Learner
from simsplit.parties.server_end import ServerEnd
from simsplit.parties.stacked_adapters import find_unadapted, reads_texts
from simsplit.parties.stacked_learner import STEPS

_WHOLE = (
    "transform",
    "stand_in",
    "compute_task_loss",
    "read_outputs",
    "compute_tail_loss",
    "accept",
    "state",
)
"""Hooks of methods that change batches, judge gradients or see a whole step: none is stacked."""


def find_obstacle(client: Client) -> str | None:
    """Return why a client's steps cannot be stacked; None if they can."""
    return next(_list_obstacles(client), None)


def _list_obstacles(client: Client) -> Iterator[str]:
    training = client.training
    end, phase = training.end, training.phase
    feed = training.feeds[phase.source]
    if training.poisons or feed.change is not keep_batch:
        yield "malicious clients train one by one"
    if not (phase.gradients and phase.returns and phase.task and phase.crosses):
        yield f"in phase {phase.name} gradients do not cross"
    if end.private is not None or training.account is not None or feed.drawn_by is not None:
        yield "private learning clips and counts each client's samples"
    if training.accumulate > 1:
        yield "mini-batches cross in parts"
    if _has_own_functions(end, ClientEnd):
        yield "the topology has client functions of its own"
    yield from find_unstacked_methods(end.stack.get_methods())
    for learner in end.learners:
        yield from find_unstacked_learning(learner)


def _has_own_functions(end: ClientEnd | ServerEnd, base: type) -> bool:
    """Return whether a topology's end makes or takes a leg by no function of the base."""
    used = (*type(end).makes.values(), *type(end).takes.values())
    return any(function not in vars(base).values() for function in used)


def list_trunk_obstacles(end: ServerEnd) -> Iterator[str]:
    """Yield what keeps the server's copies of its trunk out of a stack."""
    if _has_own_functions(end, ServerEnd):
        yield "the topology has server functions of its own"
    if end.entries:
        yield "clients' cuts differ"
    yield from find_unstacked_lifts(end.stack)
    yield from find_unstacked_learning(end.learner)


def find_unstacked_lifts(stack: Stack) -> Iterator[str]:
    """Yield what keeps the server's side of methods out of a stack of trunks, by its class."""
    for method in stack.get_methods():
        if method.module is not None:
            yield f"{type(method).__name__} has a part of the server's that learns beside the trunk"
        if find_declaring(method, "state") is not Method:
            yield f"{type(method).__name__} remembers each client's steps at the server"


def find_unstacked_methods(methods: tuple[Method, ...]) -> Iterator[str]:
    """Yield what keeps methods out of a stack, each by its class."""
    for method in methods:
        name = type(method).__name__
        if method.module is not None:
            yield f"{name} learns at the client"
        if method.reaches_head or method.changes_embeddings:
            yield f"{name} reaches into the head"
        for hook in _WHOLE:
            if find_declaring(method, hook) is not Method:
                yield f"{name} has a {hook} of its own"


def find_unstacked_learning(learner: Learner) -> Iterator[str]:
    """Yield what keeps a learner out of a stack."""
    if len(learner.optimizers) > 1 or any(type(o) not in STEPS for o in learner.optimizers):
        yield "an optimizer is neither SGD, Adam nor AdamW"
    if any(o._optimizer_step_pre_hooks for o in learner.optimizers):
        yield "lookahead acts on each client's steps"
    if learner.random:
        yield "dropout draws for each client"
    for module in filter(reads_texts, learner.modules.values()):
        yield from find_unadapted(module)


def describe_form(client: Client) -> Hashable:
    """Return a key that clients have in common whose steps can be one stacked step."""
    training = client.training
    end = training.end
    return (
        type(end),
        training.phase,
        id(training.feeds[training.phase.source].batcher),
        tuple(type(method) for method in end.stack.get_methods()),
        tuple(_describe_learner(learner) for learner in end.learners),
    )


def _describe_learner(learner: Learner) -> Hashable:
    options = [
        (type(optimizer), *((k, v) for k, v in optimizer.param_groups[0].items() if k != "params"))
        for optimizer in learner.optimizers
    ]
    form = [
        (segment, name, weight.shape, weight.dtype, weight.requires_grad)
        # Weights that never learn are the same tensors in all clients of one stack.
        + (() if weight.requires_grad else (id(weight),))
        for segment, module in learner.modules.items()
        for name, weight in module.named_parameters()
    ]
    return tuple(options), tuple(form), learner.clip_norm, learner.proximal, len(learner._anchor)
