"""The fields of a scenario about clients, and about how both sides train."""

import math
from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from simsplit.client_names import LONGEST, ClientNames, clean_name, find_repeated
from simsplit.config import Config
from simsplit.errors import ScenarioError, SimsplitError
from simsplit.machine import Precision
from simsplit.models.joins import Join
from simsplit.parties.client_cuts import ClientCuts, read_cuts
from simsplit.parties.dp_config import DpConfig
from simsplit.parties.optimizers import ConstantLr, LrSchedule, Optimizer, SgdConfig
from simsplit.poisons.malicious import MaliciousConfig


class ClientsConfig(Config):
    """How many clients there are, and which segments they share."""

    count: int = Field(default=10, ge=1)
    """Number of clients."""
    names: tuple[str, ...] | None = None
    """Names of the clients in order, such as `[Bonn, Graz, Oslo]`, for tables and pictures; null:
    those that data with `partition: natural` give, or numbers."""
    cut: ClientCuts | None = None
    """Where clients' heads end, if not all at the model's own cut: a value of its `cut` (or `head`)
    for all; a list with one for each client; or a mapping from devices (`network.device`) or
    clients' names, such as `{phone: 1, workstation: 4}`, where others have the model's own, which
    must be the shallowest. The server's trunk is entered where a head ends, and heads are averaged
    where they overlap. null: one cut.
    """
    heads: Literal["shared", "per_client"] = "shared"
    """One head handed from client to client (SCH), or each client its own (PCH)."""
    tail: Literal["own", "shared"] | None = None
    """One tail for each client (own), or one for all (shared); null: as for `heads`. It may be
    `shared` while heads are per client."""
    handover: Literal["state", "weights"] = "state"
    """What is handed over of a shared segment: weights and the optimizer's moments (state), or the
    weights alone (moments then stay with each client)."""
    start: Literal["same", "own"] = "same"
    """Whether per-client segments start from the same weights, or each from its own draw."""

    quorum: int | None = Field(default=None, ge=1)
    """The fewest clients with which a run continues: it stops where detectors' responses, or on
    real machines expulsions, leave fewer. On real machines a client that stays away for longer than
    `serve --patience` is left out if as many remain; null: the run waits, and then stops.
    """

    malicious: MaliciousConfig | None = None
    """Malicious clients, and their poisons; null: none."""

    @field_validator("names", mode="before")
    @classmethod
    def _read_names(cls, value: object) -> object:
        # YAML reads a name such as 3 as a number
        return [str(each) for each in value] if isinstance(value, list | tuple) else value

    @field_validator("names")
    @classmethod
    def _check_names(
        cls, value: tuple[str, ...] | None, others: ValidationInfo
    ) -> tuple[str, ...] | None:
        if value is None:
            return None
        names, count = tuple(map(clean_name, value)), others.data.get("count", len(value))
        if len(names) != count:
            raise ValueError(f"must name each of {count} clients, got {len(names)} names")
        if "" in names:
            raise ValueError(f"entry {names.index('')} is blank; give each client a name")
        for place, name in enumerate(names):
            # Commands take a client by its name or its number.
            if name.isdecimal() and int(name) != place and int(name) < count:
                raise ValueError(
                    f"entry {place} is the number of another client, got '{name}'; add a word to it"
                )
        if (twice := find_repeated(names)) is not None:
            raise ValueError(
                f"entries {twice[0]} and {twice[1]} are alike, got '{names[twice[1]]}' "
                f"({LONGEST} characters of a name count)"
            )
        return names

    @field_validator("cut", mode="before")
    @classmethod
    def _read_cuts(cls, value: object) -> object:
        return read_cuts(value)

    @model_validator(mode="after")
    def _refuse_own_tail(self) -> Self:
        if self.heads == "shared" and self.tail == "own":
            raise ValueError(
                "tail: own needs heads: per_client (a shared head takes its tail along)"
            )
        return self

    @model_validator(mode="after")
    def _refuse_too_large_quorum(self) -> Self:
        if self.quorum is not None and self.quorum > self.count:
            raise ValueError(f"quorum: must be at most count, {self.count}, got {self.quorum}")
        return self

    @property
    def shares_tail(self) -> bool:
        """Whether one tail is handed from client to client."""
        return self.heads == "shared" or self.tail == "shared"


class VerticalConfig(Config):
    """Parties with columns of the same samples: who has the labels, and how heads are joined."""

    labels: Literal["party", "server"] = "party"
    """party: one party has labels and tail, and gets the trunk's features. server: that party sends
    its labels with each batch, and the server has the tail."""
    party: str | None = Field(default=None, min_length=1)
    """The party that has the labels, by its name or number; null: the last one."""
    join: Join = "concat"
    """How the server joins what the parties' heads put out: side by side (concat), or as a sum or
    mean, for which heads must put out as much as each other."""
    absent: Literal["wait", "zeros", "last"] = "wait"
    """What the server does in a step that a party misses. wait: the step is not taken. zeros: zeros
    stand for what the party would send. last: what the party last sent of each sample does, and
    zeros for a sample of which it has sent nothing."""

    @field_validator("party", mode="before")
    @classmethod
    def _read_party(cls, value: object) -> object:
        # YAML reads a name such as 3 as a number
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    def find_party(self, names: tuple[str, ...], known: int | None, count: int) -> int:
        """Return the number of the party that has the labels; `known` is what the data say.

        Raise ScenarioError if no party of so many has that name.
        """
        if self.party is None:
            return count - 1 if known is None else known
        try:
            return ClientNames(names).find(self.party)
        except SimsplitError as error:
            raise ScenarioError("vertical.party", str(error)) from None


class TrainConfig(Config):
    """Batches, optimizers of the two sides, and numerical precision."""

    batch_size: int = Field(default=64, ge=1)
    """Samples per mini-batch; the last one of an epoch may be smaller."""
    accumulate: int = Field(default=1, ge=1)
    """Number of parts in which each mini-batch crosses; both sides learn once, from all of them. So
    memory need only hold the activations of one. It must divide `batch_size`. Batch normalisation,
    and methods that compare or mix samples, see each part alone."""
    drop_last: bool = False
    """Whether to leave out a smaller last batch; a client with less than one batch keeps it."""
    group_by_length: bool = False
    """Whether to batch texts of similar length, in random order, to have little padding."""
    client: Optimizer = SgdConfig(lr=0.01, momentum=0.9)
    """The optimizer of heads, tails and the client's part of methods."""
    server: Optimizer = SgdConfig(lr=0.01, momentum=0.9)
    """The optimizer of the trunk and the server's part of methods."""
    lr_schedule: LrSchedule = ConstantLr()
    """How both learning rates change over rounds."""
    clip_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Maximum gradient norm of each side; null: gradients are not clipped."""
    dp: DpConfig | None = None
    """Differential privacy of the weights that clients learn (DP-SGD), such as {clip: 1, epsilon:
    8}; null: they learn without noise."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of a label that is spread over all classes in training; for images and tables."""
    precision: Precision = "fp32"
    """bf16 computes under autocast. A packet is as wide as the output of the head or the trunk:
    2 bytes a value from a convolution, 4 from a transformer, whose residual sum stays in fp32.
    Layers that methods add do not change it; the method `cast` sends fewer bytes."""
    checkpointing: bool = False
    """Whether activations are computed again in the backward pass, block by block, instead of kept:
    less memory for one more forward pass, and the same results."""
    channels_last: bool = False
    """Whether to store images in channels-last layout, which is faster on some processors."""

    @property
    def draws(self) -> bool:
        """Whether clients draw batches, which may be empty."""
        return self.dp is not None and self.dp.sampling == "poisson"

    def count_most_rows(self) -> int:
        """Return the most samples that a batch has; a drawn batch has more once in 10^15 draws."""
        if not self.draws:
            return self.batch_size
        return self.batch_size + math.ceil(9 * math.sqrt(self.batch_size)) + 30
