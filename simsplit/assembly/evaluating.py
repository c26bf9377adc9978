"""The evaluator of a scenario is built here, and the writer that has models write texts."""

from functools import partial

from simsplit.assembly.supplies import Supplies
from simsplit.evaluation import Evaluator
from simsplit.evaluation.writing import Pen, Writer
from simsplit.models.language import CausalLM
from simsplit.scenario import Scenario
from simsplit.scenario.sessions import writes_in_sessions
from simsplit.schedules.exchange import Exchange


def build_evaluator(supplies: Supplies, exchange: Exchange) -> Evaluator:
    """Build the evaluator, which scores the models of an exchange's clients."""
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
        writer=build_writer(scenario, exchange),
        own=scenario.plugins.of("METRICS"),
        malicious=scenario.malicious,
    )


def build_writer(scenario: Scenario, exchange: Exchange) -> Writer | None:
    """Build the writer that has clients' models write texts; None if the model writes none."""
    pen = build_pen(scenario)
    return None if pen is None else Writer(**vars(pen), exchange=exchange)


def build_pen(scenario: Scenario) -> Pen | None:
    """Build the settings by which clients' models write; None if the model writes no texts."""
    model = scenario.model
    if not isinstance(model, CausalLM):
        return None
    reader, evaluate = model.make_reader(), scenario.evaluate
    read = (reader.end, reader.pad, model.get_sizes()[2])
    return Pen(scenario.seed, *read, evaluate.sampling, partial(writes_in_sessions, scenario))
