"""A probe for attributes: what crosses tells more of a sample than the task needs.

As Melis et al. ("Exploiting unintended feature leakage in collaborative learning", 2019) do with
gradients, the attacker labels auxiliary samples by the attribute, such as a patient's sex, has them
encoded by the same head, and fits a linear classifier: to smashed data, and to the gradients of
features where these cross.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from simsplit.attacks.attack import AttackConfig, Done, KeepingAttack, payloads
from simsplit.attacks.knowledge import Knowledge, is_mixed
from simsplit.attacks.member_attack import flatten_message
from simsplit.attacks.regression import classify
from simsplit.attacks.threat import Knows, Sees, Threat
from simsplit.attacks.views import views_of
from simsplit.legs import Leg
from simsplit.methods.method import ANYTHING, Modality
from simsplit.needs import Given, Need, Needs
from simsplit.packets import Packet


class AttributeProbeConfig(AttackConfig):
    """A linear classifier of what crosses, for an attribute that the task does not ask for."""

    kind: Literal["attribute_probe"] = "attribute_probe"
    attribute: str | None = None
    """A column of a table; `slant` or `brightness` of images; `topic` of texts. Numbers are above
    or below their median. null: the first of these that the data have."""
    views: tuple[Literal["smashed", "gradients"], ...] = Field(
        default=("smashed", "gradients"), min_length=1
    )
    """What it reads; gradients are left out where none of single samples cross."""
    threat: ClassVar[Threat] = Threat((Sees.MESSAGES,), (Knows.PUBLIC, Knows.QUERIES))
    recovers: ClassVar[str] = "attributes"
    modalities: ClassVar[frozenset[Modality]] = ANYTHING
    effort: ClassVar[tuple[str, ...]] = ()

    @property
    def needs(self) -> Needs:
        """Return the needs of its threat; a classifier learns from a row of each sample."""
        rows = [Need(Given.SAMPLES, "views", Leg.SMASHED)] if "smashed" in self.views else []
        return (*super().needs, *rows)

    # None: its judge gives it the packets of the targets beside those of auxiliary samples.
    num_epochs: ClassVar[int] = 0

    def build(self, known: Knowledge) -> "AttributeProbe":
        return AttributeProbe(self, known)


class AttributeProbe(KeepingAttack):
    """An attack that learns an attribute of auxiliary samples, and reads that of the targets."""

    config: AttributeProbeConfig

    def __init__(self, config: AttributeProbeConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self.guesses_by_view: dict[str, Tensor] = {}
        self._public: Sequence[Packet] = ()
        self._own: Sequence[Packet] = ()
        self._values = torch.empty(0)

    def tell(self, public: Sequence[Packet], values: Tensor, own: Sequence[Packet]) -> None:
        """Receive packets of auxiliary samples, their attribute, and packets of the targets."""
        self._public, self._values, self._own = public, values, own

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        del targets
        crossed = {packet.leg for packet in self._own}
        crosses = Leg.FEATURES_GRAD in crossed and not is_mixed(self.known, Leg.FEATURES_GRAD)
        self.guesses_by_view = {}
        for view in self.config.views:
            if view == "smashed" or crosses:
                known, read = (self._make_rows(view, each) for each in (self._public, self._own))
                scores = classify(known, self._values[: len(known)], read)
                self.guesses_by_view[view] = scores.argmax(1)
        yield 1, 1

    def _make_rows(self, view: str, packets: Sequence[Packet]) -> Tensor:
        """Return a row of each sample."""
        if view == "gradients":
            return views_of(self.known, packets, ["gradient"])[0].rows
        return torch.cat([flatten_message(self.known, each) for each in payloads(packets)])
