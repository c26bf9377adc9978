"""An outline: data in the form that a run would have, from the description of their source.

Data that are at hand and small are read. Of others only the shape and the number of samples are
known, so samples are random, and stand for all that a client has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from simsplit.assembly.dry_step import draw_samples
from simsplit.client_names import NO_NAMES, ClientNames
from simsplit.data import DataInfo, DataSet, Prepared, Samples
from simsplit.data.client_parts import MadeParts
from simsplit.data.given_texts import TextGiven
from simsplit.data.partitions import Drawn, Exponential, Iid, Linear, MainLabel, Natural
from simsplit.data.passed_objects import GivenSource
from simsplit.data.preparing import divide
from simsplit.data.samples import IGNORED, SplitSizes, TextInfo
from simsplit.data.texts import PythonDocs, TextTable
from simsplit.errors import ScenarioError, blame
from simsplit.models.tokenizers import Reader
from simsplit.scenario import Scenario
from simsplit.scenario.setting import mixes_texts
from simsplit.seeds import numpy_rng_for

MOST_READ = 20_000
"""The most texts of files that are read without being asked for."""
_EVEN = (Drawn, Exponential, Iid, Linear, MainLabel)
"""Partitions that give each client as many samples whatever their labels are."""
BALANCED = "the classes of data.source are taken to be equally frequent"
EQUAL = "the clients that data.source names are taken to have equally many samples"
MIXED = "bytes are an estimate: other texts are drawn into a batch, which is as long as the longest"
AS_MANY = "public texts are taken to be as many as those of data.source; their `rows` says how many"
LONGEST = "every text is taken to have data.source.length tokens, the most that it can have"


@dataclass(frozen=True)
class Outline:
    """Data as a run would have them, and how many there are."""

    data: Prepared
    """A few random samples, unless the data were read; `parts` are as long as in a run."""
    counts: Mapping[str, int]
    """The number of samples of each split."""
    nbytes: int
    """Bytes of all samples that a run holds."""
    was_read: bool
    """Whether the samples are those of the run."""
    notes: tuple[str, ...] = ()
    """What was assumed."""


def outline_data(scenario: Scenario, *, read: bool) -> Outline:
    """Outline a scenario's data; `read` reads them, wherever they are."""
    with blame("source"):
        if not (read or _is_at_hand(scenario)):
            return _describe_data(scenario)
        data = scenario.prepare_data()
    counts = {name: len(each) for name, each in _list_splits(data).items()}
    notes = (MIXED,) if mixes_texts(scenario.method) else ()
    return Outline(data, counts, data.nbytes, was_read=True, notes=notes)


def _is_at_hand(scenario: Scenario) -> bool:
    """Return whether the data are on this machine and take no time to read."""
    source = scenario.data.source
    if isinstance(source, TextTable):
        others = (scenario.data.public, scenario.data.support)
        if not all(other is None or isinstance(other, PythonDocs) for other in others):
            return False
        sizes = source.count_samples()
        few = sizes is not None and max(sizes) <= MOST_READ
        return few or isinstance(source, PythonDocs | TextGiven)
    return isinstance(source, GivenSource) or getattr(source, "is_quick", False)


def _describe_data(scenario: Scenario) -> Outline:
    config, notes = scenario.data, list[str]()
    info = config.describe()
    if info is None:
        raise ScenarioError(
            "data.source", "has shapes that are not known before it is read; read it: --read-data"
        )
    sizes = _count_samples(scenario, notes)
    if not isinstance(config.partition, _EVEN) or config.even is not None:
        notes.append(EQUAL if isinstance(config.partition, Natural) else BALANCED)
    reader = scenario.text_reader() if scenario.reads_texts else None
    if reader is not None:
        notes.append(LONGEST)
    if any(map(_is_unknown, (config.public, config.support))):
        notes.append(AS_MANY)
    masked = reader is not None and reader.both_ways
    clients = scenario.clients.count
    # One value a sample is enough to divide them.
    splits = [_make_small(info, size, clients, masked=masked) for size in sizes]
    names = tuple(map(str, range(info.classes)))
    divided = divide(
        config.model_copy(update={"classes": None}),
        DataSet(config.source.kind, splits[0], splits[1], names),
        clients,
        scenario.seed,
        reader,
        mixes=mixes_texts(scenario.method),
        read_public=lambda source, _: _make_small(
            info, _count_public(source, sizes.train), clients, masked=masked
        ),
    )
    return _fill(scenario, divided, replace(info, shares=divided.info.shares), reader, notes)


def _count_samples(scenario: Scenario, notes: list[str]) -> SplitSizes:
    """Return the number of samples of the source, or raise ScenarioError for what is missing."""
    config = scenario.data
    sizes = config.source.count_samples()
    if sizes is None:
        train, test = config.train_samples, config.test_samples
        if train is None or test is None:
            raise ScenarioError(
                f"data.{'train' if train is None else 'test'}_samples",
                "is needed, since the number of samples is not known before data are read; set "
                "it, or read them: --read-data",
            )
        notes.append("data.source is taken to have data.train_samples and data.test_samples")
        return SplitSizes(train, test)
    whole = config.source.describe()
    if config.classes is not None and whole is not None:
        share = len(config.classes) / whole.classes
        notes.append(BALANCED)
        return SplitSizes(*(round(share * size) for size in sizes))
    return sizes


def _is_unknown(source: TextTable | None) -> bool:
    """Return whether the number of texts of a public source is not known."""
    if source is None or isinstance(source, PythonDocs) or source.rows:
        return False
    return source.count_samples() is None


def _count_public(source: TextTable, otherwise: int) -> int:
    """Return the number of texts of a public source; `otherwise` if it is not known."""
    if isinstance(source, PythonDocs):
        count: int = source.read_table("train")[0].num_rows
        return min(count, source.rows or count)
    sizes = source.count_samples()
    # Without a number of rows the clients' own texts stand for them.
    return source.rows or otherwise if sizes is None else sizes.train


def _make_small(info: DataInfo, count: int, clients: int, *, masked: bool) -> Samples:
    """Make blank samples with a value for each channel, of equally frequent classes."""
    classes = torch.arange(count) % info.classes
    owners = np.arange(count) % clients
    if info.texts:
        blank = torch.zeros(count, 1, dtype=torch.int64)
        ones = torch.ones(count, dtype=torch.int64)
        texts = TextInfo(ones, torch.zeros_like(ones), classes, masked=masked)
        return Samples(blank, blank, texts, owners)
    if len(info.shape) == 3:
        shape = (count, info.shape[0], 1, 1)
        return Samples(torch.zeros(shape, dtype=torch.uint8), classes, owners=owners)
    return Samples(torch.zeros(count, 1), classes, owners=owners)


def _fill(
    scenario: Scenario,
    divided: Prepared,
    info: DataInfo,
    reader: Reader | None,
    notes: Sequence[str],
) -> Outline:
    """Replace blank samples by as many random ones of the true shape as a batch can have."""
    sizes = [scenario.train.batch_size, scenario.evaluate.batch_size, 2 * info.classes]
    sizes += [method.public_batch_size or 0 for method in scenario.method]
    counts = {name: len(each) for name, each in _list_splits(divided).items()}
    if scenario.data.source.modality == "tables" and len(info.shape) == 3:
        raise ScenarioError("data.source", "is to be read: --read-data")
    made = {
        name: _draw_samples(scenario, name, min(count, max(sizes)), info, reader)
        for name, count in counts.items()
    }
    parts = _shorten_rows(divided.parts, len(made["train"]))
    one = next(iter(made.values()))
    a_sample = (one.inputs.nbytes + one.labels.nbytes) // len(one)
    names = scenario.clients.names
    filled = replace(
        divided,
        client_names=NO_NAMES if names is None else ClientNames(names),
        info=info,
        parts=parts,
        train=made["train"],
        test=made["test"],
        validation=made.get("validation"),
        auxiliary=made.get("auxiliary"),
        support=made.get("support"),
    )
    filled, assumed = scenario.cut_portions(filled), tuple(dict.fromkeys(notes))
    return Outline(filled, counts, a_sample * sum(counts.values()), was_read=False, notes=assumed)


def _shorten_rows(parts: Sequence[np.ndarray], limit: int) -> Sequence[np.ndarray]:
    """Return parts of the same sizes, with rows below a limit."""
    if isinstance(parts, MadeParts):
        rows = np.arange(parts.size) % limit
        return MadeParts(len(parts), parts.size, lambda _: rows)
    return [np.arange(len(part)) % limit for part in parts]


def _draw_samples(
    scenario: Scenario, split: str, count: int, info: DataInfo, reader: Reader | None
) -> Samples:
    if reader is None:
        return draw_samples(scenario, "outline", split, count, info)
    rng = numpy_rng_for(scenario.seed, "outline", split)
    classes = torch.arange(count) % info.classes
    inputs = torch.from_numpy(rng.integers(0, reader.size, (count, *info.shape)))
    labels = torch.full_like(inputs, IGNORED)
    if reader.classifies:
        labels[:, 0 if reader.both_ways else -1] = classes
    else:
        labels[:, :-1] = inputs[:, 1:]
    lengths = torch.full((count,), inputs.shape[1])
    source = scenario.data.source
    left = isinstance(source, TextTable) and source.padding == "left"
    texts = TextInfo(lengths, lengths // 2, classes, left=left, masked=reader.both_ways)
    return Samples(inputs, labels, texts)


def _list_splits(data: Prepared) -> dict[str, Samples]:
    names = ("train", "validation", "auxiliary", "support", "test")
    return {name: each for name in names if (each := getattr(data, name)) is not None}
