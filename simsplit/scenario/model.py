"""A scenario: the frozen model that one YAML file becomes, and all that can be checked of it early.

What a user can get wrong is a ScenarioError that names the field.
"""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import ValidationError, field_validator, model_validator

from simsplit.data import DataInfo, Prepared, prepare
from simsplit.data.blaming import blamed
from simsplit.errors import ScenarioError
from simsplit.methods.order import refuse_disorder
from simsplit.methods.stack import sent_shapes
from simsplit.models.fresh import LaidOut, Shape
from simsplit.models.text_model import TextModel
from simsplit.scenario.adversaries import refuse_ambiguous
from simsplit.scenario.controls import refuse_unequal, refuse_unknown
from simsplit.scenario.fields import ScenarioFields
from simsplit.scenario.files import dump
from simsplit.scenario.kinds import with_kinds
from simsplit.scenario.lengths import refuse_overlong
from simsplit.scenario.messages import explain, refuse_misread
from simsplit.scenario.misfits import (
    refuse_as_torch_does,
    refuse_missing_network,
    refuse_other_samples,
    refuse_unknown_metrics,
    refuse_unscorable,
    refuse_unserved,
)
from simsplit.scenario.needs import mixes_texts, refuse_classes, refuse_unmet
from simsplit.scenario.sessions import refuse_sessions


class Scenario(ScenarioFields):
    """One experiment, in full: running it again gives the same tables."""

    def __init__(self, **values: Any) -> None:  # noqa: ANN401 - configs, or plain values
        """Fields as configs or plain values; ScenarioError, by field, where they will not do."""
        model = type(self)
        filled = with_kinds(values, model)
        try:
            super().__init__(**filled)
        except ValidationError as error:
            raise explain(error, model, filled) from None
        refuse_misread(filled, self)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other fields, checked as a whole."""
        if not update:
            return super().model_copy(deep=deep)
        kept = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**kept | dict(update))

    @field_validator("engine", "aggregation", "schedule", "model", mode="before")
    @classmethod
    def _from_word(cls, value: object) -> object:
        return {"kind": value} if isinstance(value, str) else value

    @field_validator("method", "detectors", "attacks", "observers", mode="before")
    @classmethod
    def _from_words(cls, value: object) -> object:
        return [*map(cls._from_word, value)] if isinstance(value, list) else value

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        refuse_unserved(self)
        refuse_unknown_metrics(self)
        refuse_other_samples(self)
        refuse_unscorable(self)
        refuse_unknown(self.evaluate.controls, self.method)
        refuse_sessions(self)
        refuse_unmet(self)
        refuse_disorder(self.method)
        refuse_ambiguous(
            self.detectors, self.attacks, self.clients, self.targets.client if self.attacks else 0
        )
        self.malicious  # noqa: B018 - raises where there is no such choice
        refuse_missing_network(self)
        for side in ("client", "server"):
            refuse_as_torch_does(self, side)
        with blamed("source"):
            info = self.data.describe()
        if info is not None and (self.model.at_hand or self._misfits(info)):
            self.shapes(info)
        return self

    def _misfits(self, info: DataInfo) -> bool:
        """Whether no network of its kind takes such samples, wherever it may be."""
        return isinstance(self.model, TextModel) and not info.texts

    def shapes(self, info: DataInfo) -> tuple[tuple[Shape, Shape], tuple[Shape, Shape]]:
        """(cut, features) as the model has them, and as they cross the wire."""
        if info.texts and not isinstance(self.model, TextModel):
            raise ScenarioError(
                "model.kind",
                f"{self.model.kind} takes images, got texts; use causal_lm or sequence_classifier",
            )
        if isinstance(self.model, LaidOut) and self.model.images_only and len(info.shape) != 3:
            raise ScenarioError(
                "model.kind",
                f"{self.model.kind} takes images, got samples of shape {info.shape}; use mlp",
            )
        refuse_classes(self, info.classes)
        whole = self.model.shapes(info.shape)
        if isinstance(self.model, TextModel):
            refuse_overlong(self.data, self.method, self.model.measures()[2])
        refuse_unequal(self.evaluate.controls, *whole)
        return whole, sent_shapes(self.method, whole)

    def prepared(self) -> Prepared:
        """Its data, loaded and dealt out."""
        reader = self.text_reader() if self.reads_texts else None
        mixes = mixes_texts(self.method)
        return prepare(self.data, self.clients.count, self.seed, reader, mixes=mixes)

    def yaml(self) -> str:
        """The scenario, resolved and complete: what is saved with a run and replays it."""
        return dump(self.model_dump(mode="json"))

    def identity(self) -> str:
        """What a checkpoint must agree with, as text."""
        return dump(self.identified())

    def identified(self) -> dict[str, Any]:
        """All fields but those that a resumed run may change."""
        values = self.model_dump(mode="json")
        for name in ("output", "checkpoint", "threads", "device", "stop", "engine", "observers"):
            del values[name]
        if not self.train.lr_schedule.stretches:
            for name in ("rounds", "epochs"):
                del values["schedule"][name]
        return values
