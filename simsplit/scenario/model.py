"""The scenario: a frozen model of one YAML file, which checks everything that it can before a run.

A user's mistake raises a ScenarioError that names the field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from pydantic import ValidationError, ValidationInfo, field_validator, model_validator

from simsplit.client_names import ClientNames
from simsplit.config import expand_kind
from simsplit.data import DataInfo, Prepared, prepare
from simsplit.data.portions import Joint
from simsplit.data.simulated import simulate_clients
from simsplit.errors import ScenarioError, blame
from simsplit.methods.stack import compute_sent_shapes
from simsplit.models.fresh import Shape, SplitConfig
from simsplit.models.text_model import TextModel
from simsplit.scenario.fields import ScenarioFields
from simsplit.scenario.files import dump
from simsplit.scenario.findings import Occasion
from simsplit.scenario.kinds import fill_kinds
from simsplit.scenario.messages import explain, refuse_misread
from simsplit.scenario.refusals import refuse
from simsplit.scenario.setting import mixes_texts
from simsplit.scenario.vertical_rules import fill_parties
from simsplit.schedules.aggregation import AveragingConfig


@dataclass(frozen=True)
class LeastClients:
    """The fewest clients with which a run continues, the field that decides it, and its words."""

    count: int = 1
    field: str = "clients.count"
    reason: str = ""
    """Empty if nothing but the run itself needs a client."""
    counts_flagged: bool = False
    """Whether clients that detectors have flagged count too."""


class Scenario(ScenarioFields):
    """The complete description of one experiment: two runs of it give the same tables."""

    def __init__(self, **values: Any) -> None:  # noqa: ANN401 - configs, or plain values
        """Check fields, given as configs or plain values; raise ScenarioError for wrong ones."""
        model = type(self)
        filled = fill_parties(fill_kinds(values, model))
        try:
            super().__init__(**filled)
        except ValidationError as error:
            raise explain(error, model, filled) from None
        refuse_misread(filled, self)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other fields, checked as a whole."""
        if not update:
            return super().model_copy(deep=deep)
        # pydantic's own copy would not check the changed fields.
        kept = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**kept | dict(update))

    def __getitem__(self, field: str) -> Any:  # noqa: ANN401 - plain values
        """Return a field as plain values: `scenario["clients"]["count"]`."""
        if field not in type(self).model_fields:
            raise KeyError(field)
        return self.model_dump(mode="json", include={field})[field]

    def __contains__(self, field: object) -> bool:
        return field in type(self).model_fields

    def keys(self) -> list[str]:
        """Return the names of the fields, so that `dict(scenario)` has them as plain values."""
        return list(type(self).model_fields)

    def get(self, field: str, default: Any = None) -> Any:  # noqa: ANN401
        """Return a field as plain values, or the default if there is no such field."""
        return self[field] if field in type(self).model_fields else default

    def items(self) -> list[tuple[str, Any]]:
        """Return the fields' names, and their plain values."""
        return [*self.model_dump(mode="json").items()]

    @property
    def least_clients(self) -> LeastClients:
        """The fewest clients with which a run continues, if no detector has flagged any."""
        return max(self.client_limits, key=lambda limit: limit.count)

    @property
    def client_limits(self) -> list[LeastClients]:
        """The limits on how many clients a run may lose.

        A robust average of fewer clients than its strategy needs would not be robust, and a
        detector that responds would flag nobody, so the run stops instead.
        """
        limits = [LeastClients()]
        if (quorum := self.clients.quorum) is not None:
            limits.append(LeastClients(quorum, "clients.quorum", "clients.quorum"))
        if isinstance(self.aggregation, AveragingConfig) and self.aggregation.strategy.needed > 1:
            strategy, field = self.aggregation.strategy, "aggregation.strategy"
            reason = f"{field}: {strategy.kind_name}"
            limits.append(LeastClients(strategy.needed, field, reason))
        for number, detector in enumerate(self.detectors):
            if detector.response != "none":
                field = f"detectors.{number}"
                reason = f"{field}: {detector.kind_name}"
                # a simulation may flag all but one: the detector has done its work on the others
                limits.append(LeastClients(detector.least_clients, field, reason, True))
        return limits

    _expand_kind = field_validator("engine", "aggregation", "schedule", "model", mode="before")(
        expand_kind
    )

    @field_validator("model")
    @classmethod
    def _choose_draw(cls, model: SplitConfig, fields: ValidationInfo) -> SplitConfig:
        """Tell the model the seed, by which it may be one of several draws."""
        return model.at_seed(fields.data.get("seed", 0))

    @field_validator("method", "detectors", "attacks", "observers", mode="before")
    @classmethod
    def _expand_kinds(cls, value: object) -> object:
        return [*map(expand_kind, value)] if isinstance(value, list) else value

    @model_validator(mode="after")
    def _refuse_misfits(self) -> Self:
        """Raise ScenarioError for parts that do not fit each other."""
        refuse(Occasion.READ, self)
        with blame("source"):
            info = self.data.describe()
        # Shapes of a model that is not on this machine are checked when it has been downloaded,
        # unless no model of its kind can read the samples.
        if info is not None and (
            self.model.is_available_offline or isinstance(self.model, TextModel) != info.texts
        ):
            self.shapes(info)
        return self

    def shapes(self, info: DataInfo) -> tuple[tuple[Shape, Shape], tuple[Shape, Shape]]:
        """Return the shapes (cut, features) in the model, and the shapes that cross the wire.

        Raise ScenarioError if the model cannot read samples of this shape.
        """
        refuse(Occasion.SAMPLES, self, info)
        if info.parts:
            whole = self.model.join_shapes(info.parts, self.joining.join)
        else:
            whole = self.model.compute_shapes(info.shape)
        refuse(Occasion.SHAPES, self, info, whole)
        if info.parts:
            return whole, self.list_party_shapes(info)[self.label_party][1]
        return whole, compute_sent_shapes(self.method, whole)

    def list_party_shapes(
        self, info: DataInfo
    ) -> list[tuple[tuple[Shape, Shape], tuple[Shape, Shape]]]:
        """Return each party's shapes (cut, features), and the shapes that cross the wire."""
        shapes = [self.model.compute_shapes(part) for part in info.parts]
        return [
            (each, compute_sent_shapes(self.select_methods(party), each))
            for party, each in enumerate(shapes)
        ]

    def prepare_data(self) -> Prepared:
        """Return the scenario's data, loaded and divided among the clients."""
        reader = self.text_reader() if self.reads_texts else None
        mixes, shadow = mixes_texts(self.method), self.data.shadow
        seed, count = self.seed if shadow is None else shadow, self.clients.count
        data = prepare(self.data, count, seed, reader, mixes=mixes)
        if shadow == self.seed:
            raise ScenarioError("data.shadow", f"must differ from seed, got {shadow} for both")
        if shadow is not None:
            data = simulate_clients(data, self.data, count, self.seed)
        data = self.cut_portions(data)
        own = self.clients.names
        named = data if own is None else replace(data, client_names=ClientNames(own))
        return self.plant(named)

    def plant(self, data: Prepared) -> Prepared:
        """Return data with what audits among the attacks plant in the targets' client's part."""
        for index, attack in enumerate(self.attacks):
            data = attack.plant(data, self.targets.client, self.seed, f"attacks.{index}")
        return data

    def cut_portions(self, data: Prepared) -> Prepared:
        """Return data with what each party has of a sample, where clients are parties."""
        partition = self.data.partition
        return data.cut(partition, self.label_party) if isinstance(partition, Joint) else data

    def yaml(self) -> str:
        """Return the complete scenario as YAML, in the form that is saved with a run."""
        return dump(self.model_dump(mode="json"))

    def identity(self) -> str:
        """Return the fields that a checkpoint must agree with, as text."""
        return dump(self.select_identity())

    def select_identity(self) -> dict[str, Any]:
        """Return all fields except the ones that a resumed run may change."""
        values = self.model_dump(mode="json")
        for name in ("output", "checkpoint", "threads", "device", "stop", "engine", "observers"):
            del values[name]
        # Stacked clients' losses differ by rounding, so a run keeps to one way.
        if self.inline_engine.stack != "off":
            values["engine.stack"] = self.inline_engine.stack
        # The same results with less memory, so a run that ran out of it can be resumed.
        del values["train"]["checkpointing"]
        _leave_out_added(values)
        # The weights come from the checkpoint, so a network's first weights do not count.
        if values["model"].get("architecture"):
            del values["model"]["digest"]
        elif values["model"]["kind"] == "given":
            del values["model"]["architecture"]
        # A longer run may resume a shorter one unless its learning rates depend on the length, or
        # the noise that a budget allows.
        budget = self.train.dp is not None and self.train.dp.epsilon is not None
        if not (self.train.lr_schedule.stretches or budget):
            for name in ("rounds", "epochs"):
                del values["schedule"][name]
        return values


def _leave_out_added(values: dict[str, Any]) -> None:
    """Remove fields that came later where all is as before, so that older runs can be resumed.

    The tables of clients with names or cuts have these.
    """
    for name in ("names", "cut"):
        if values["clients"][name] is None:
            del values["clients"][name]
    for method in values["method"]:
        if method["by"] is None:
            del method["by"]
    if values["noise"] == "cpu":
        del values["noise"]
