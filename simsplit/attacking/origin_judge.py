"""The judge of attacks on origins knows which client each message came from.

The guess without any attack is the client that sends most, right for one message of K where all
send as many. Where an attack cannot name clients, its clusters get the clients that fit best, and
so do clusters at random, which are right more often.
"""

from collections.abc import Mapping

import numpy as np

from simsplit.assembly import Assembly
from simsplit.attacking.attack_judge import AttackJudge, KindScores, make_cells
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
        rows: list[Row] = []
        floors: dict[tuple[str, str], Row] = {}
        for name, attack in attacks.items():
            for view, told in attack.origins.items():
                truth, guesses = told.truth.numpy(), told.guesses.numpy()
                place = {"round": number, "kind": "origins", "view": view}
                if attack.config.names:
                    floor, hits = EVEN, match_equal(guesses, truth)
                    # Who sends most is known without reading a packet.
                    chance = Interval(*[np.bincount(truth).max() / len(truth)] * 3)
                else:
                    floor, hits = CLUSTERS, match_clusters(guesses, truth)
                    rng = numpy_rng_for(self.seed, "origins", view)
                    chance = simulate_chance(truth, match_clusters, rng)
                cells = make_cells("accuracy", measure_share(hits), len(truth))
                rows.append({**place, "attack": name, "role": ATTACK, **cells})
                cells = make_cells("accuracy", chance, len(truth))
                floors[floor, view] = {**place, "attack": floor, "role": FLOOR, **cells}
        return KindScores([*rows, *floors.values()])
