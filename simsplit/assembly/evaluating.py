"""What a scenario's evaluation takes: the evaluator, and what has models write texts."""

from functools import partial

from simsplit.assembly.supplies import Supplies
from simsplit.evaluation import Evaluator
from simsplit.evaluation.writing import Pen, Writer
from simsplit.models.language import CausalLM
from simsplit.scenario import Scenario
from simsplit.scenario.sessions import writes_in_sessions
from simsplit.schedules.exchange import Exchange


def evaluator_for(supplies: Supplies, exchange: Exchange) -> Evaluator:
    """Build what scores the models of an exchange's clients."""
    scenario, aim, vocabulary = supplies.scenario, supplies.aim, supplies.data.vocabulary
    own_models = scenario.clients.heads == "per_client"
    return Evaluator(
        scenario.evaluate,
        exchange,
        {split: supplies.samples(split) for split in scenario.splits},
        range(scenario.clients.count) if own_models else None,
        scenario.seed,
        metrics=scenario.metrics,
        wanted=None if aim is None else aim.wanted,
        choices=None if vocabulary is None else vocabulary.choices,
        reader=scenario.text_reader() if scenario.reads_texts else None,
        writer=writer_for(scenario, exchange),
        own=scenario.plugins.of("METRICS"),
        malicious=scenario.malicious,
    )


def writer_for(scenario: Scenario, exchange: Exchange) -> Writer | None:
    """Build what has clients' models write; None where they write nothing."""
    pen = pen_for(scenario)
    return None if pen is None else Writer(**vars(pen), exchange=exchange)


def pen_for(scenario: Scenario) -> Pen | None:
    """Return how clients' models write; None where they write nothing."""
    model = scenario.model
    if not isinstance(model, CausalLM):
        return None
    reader, evaluate = model.reader(), scenario.evaluate
    read = (reader.end, reader.pad, model.measures()[2])
    return Pen(scenario.seed, *read, evaluate.sampling, partial(writes_in_sessions, scenario))
