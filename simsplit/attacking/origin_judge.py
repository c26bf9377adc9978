"""The judge of attacks on origins knows which client each message came from.

A guess without any attack is right for one message of K. Where an attack cannot name clients, its
clusters get the clients that fit best, and so do clusters at random, which are right more often.
"""

from collections.abc import Mapping

import numpy as np

from simsplit.assembly import Assembly
from simsplit.attacking.attack_judge import AttackJudge, KindScores
from simsplit.attacks.site_inference import SiteInference
from simsplit.data import Prepared
from simsplit.metrics.leaks import (
    Interval,
    match_clusters,
    match_equal,
    measure_share,
    simulate_chance,
)
from simsplit.results.leak_table import ATTACK, FLOOR, Row
from simsplit.results.member_leaks import CLUSTERS, EVEN
from simsplit.scenario import Scenario
from simsplit.seeds import numpy_rng_for


class OriginJudge(AttackJudge[SiteInference]):
    """The judge of attacks on origins."""

    def __init__(self, scenario: Scenario, data: Prepared, parts: Assembly) -> None:
        del data, parts
        self.seed = scenario.seed

    def score(self, number: int, attacks: Mapping[str, SiteInference]) -> KindScores:
        """Return a row for each attack and view, and for the guess without an attack."""
        scores, place = KindScores(), {"round": number, "kind": "origins"}
        floors: dict[tuple[str, str], Row] = {}
        for name, attack in attacks.items():
            match = match_equal if attack.options.names else match_clusters
            for view, told in attack.origins.items():
                truth, guesses = told.truth.numpy(), told.guesses.numpy()
                own = measure_share(match(guesses, truth))
                row = {"attack": name, "role": ATTACK, "view": view}
                scores.rows.append({**place, **row, **_make_cells(own, len(truth))})
                floor = EVEN if attack.options.names else CLUSTERS
                rng = numpy_rng_for(self.seed, "origins", view)
                share = 1 / len(np.unique(truth))
                chance = (
                    Interval(share, share, share)
                    if attack.options.names
                    else simulate_chance(truth, match_clusters, rng)
                )
                row = {"attack": floor, "role": FLOOR, "view": view}
                floors[floor, view] = {**place, **row, **_make_cells(chance, len(truth))}
        scores.rows += floors.values()
        return scores


def _make_cells(hits: Interval, samples: int) -> Row:
    return {"metric": "accuracy", **hits._asdict(), "samples": samples}
