"""An attacker simulates clients: it divides its auxiliary data as the run divides private data.

No private sample, label or size of a client's own is in what it gets.
"""

from dataclasses import replace

import numpy as np

from simsplit.data.data_config import DataConfig
from simsplit.data.partitions import Iid, Natural
from simsplit.data.preparing import Prepared, measure_shares
from simsplit.data.samples import Samples
from simsplit.errors import ScenarioError
from simsplit.seeds import numpy_rng_for

_FEWEST = 8
"""The fewest auxiliary samples that make clients, auxiliary data of theirs and targets."""


def simulate_clients(data: Prepared, config: DataConfig, num_clients: int, seed: int) -> Prepared:
    """Return data as a run would have them if the auxiliary samples were all that there is.

    A quarter is test data, of which no client learns; as large a part as the attacker's own share
    of all samples, but at most half of the rest, stays auxiliary; clients divide what is left.

    Raises:
        ScenarioError: where the auxiliary samples are too few, or are no samples as clients have.
    """
    own = data.auxiliary
    assert own is not None, "the scenario's checks refuse tuning without auxiliary data"
    _refuse_unlike(own, data.train)
    if len(own) < max(_FEWEST, 4 * num_clients):
        raise ScenarioError(
            "data.auxiliary",
            f"holds {len(own)} samples, too few to simulate {num_clients} clients",
        )
    order = numpy_rng_for(seed, "data", "simulated").permutation(len(own))
    test, rest = np.split(order, [len(own) // 4])
    share = min(0.5, len(own) / (len(own) + len(data.train)))
    auxiliary, private = np.split(rest, [max(2, round(share * len(rest)))])
    train, known = own.take(np.sort(private)), own.take(np.sort(auxiliary))
    support = known
    if data.support is not own:  # what clients mix in is theirs alone
        half = len(known) // 2
        known, support = known.take(np.arange(half, len(known))), known.take(np.arange(half))
    # an attacker does not know who has which samples
    natural = isinstance(config.partition, Natural)
    partition = Iid() if natural else config.partition
    return replace(
        data,
        train=train,
        validation=None,
        auxiliary=known,
        support=support,
        test=own.take(np.sort(test)),
        canaries=None,
        parts=partition.deal(train.groups, num_clients, seed),
        info=replace(data.info, shares=measure_shares(train, data.info.classes)),
    )


def _refuse_unlike(own: Samples, private: Samples) -> None:
    """Raise ScenarioError for auxiliary samples on which nobody could train as clients do."""
    same = own.inputs.shape[1:] == private.inputs.shape[1:]
    if not same or (own.texts is None) != (private.texts is None):
        raise ScenarioError(
            "data.public",
            f"has samples of shape {tuple(own.inputs.shape[1:])}, but simulated clients would "
            f"learn from them, and clients' samples have shape {tuple(private.inputs.shape[1:])}",
        )
