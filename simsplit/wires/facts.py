"""This module defines the facts of a transcript (`transcript.yaml`) and the rows of its tables."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, FiniteFloat, ValidationError, field_validator

from simsplit.config import Config
from simsplit.errors import RunError, format_list
from simsplit.foreign import strip_controls
from simsplit.legs import ClientId, Leg

VERSION = 1
"""The version of the format; it grows with each change that an older reader would misread."""
FACTS, PACKETS, SAMPLES = "transcript.yaml", "packets.csv", "samples.csv"
TRUTH, REFERENCE = "truth", "reference"
"""Folders below a transcript's."""
Modality = Literal["images", "texts", "table", "vectors"]
Content = Literal["cut", "embeddings", "gradients", "other"]
Pixels = Annotated[int, Field(ge=1, le=2**14)]
Divisor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
MOST_CLASSES = 10_000_000
"""Classes that facts name, at most; labels may be larger numbers, which are no classes."""
MOST_IDS = 2**53
"""A sample's id is below this number, so that every program reads it exactly."""


class ImageFacts(Config):
    """What the server knows of images."""

    channels: int = Field(ge=1, le=1024)
    """Channels of an image: 1 of grey ones, 3 of coloured ones."""
    size: tuple[Pixels, Pixels]
    """Height and width, in pixels."""
    mean: tuple[FiniteFloat, ...] = Field(default=(), max_length=1024)
    """What was subtracted from each channel before the head, of pixels between 0 and 1."""
    std: tuple[Divisor, ...] = Field(default=(), max_length=1024)
    """What each channel was divided by after that."""


class ServerHoldings(Config):
    """What the server has, as paths below the transcript's folder; null: it has none.

    A path that leads elsewhere is given to the audit by its user, never by a transcript.
    """

    model: str | None = None
    """The client's network, where the server knows it: its weights in a safetensors file, or a
    folder with these and `layers.yaml`, a list of layers of `torch.nn` with their options."""
    module: str | None = None
    """The name of the client's part in that network, such as encoder."""
    public: str | None = None
    """Of texts: a folder with the public model that they were encoded with."""
    auxiliary: str | None = None
    """A folder with samples like the private ones, which the server has too."""
    pairs: str | None = None
    """A folder with a transcript whose inputs the server knows: its own `truth` is public."""

    @field_validator("model", "public", "auxiliary", "pairs")
    @classmethod
    def _refuse_outside(cls, path: str | None) -> str | None:
        """Refuse a path that is not plainly below the folder."""
        if path is not None and not all(is_plain_name(part) for part in path.split("/")):
            raise ValueError(
                f"'{path[:100]}' must be a path below the transcript's folder, without '..'; give "
                "what lies elsewhere to the audit"
            )
        if path is not None and TRUTH in path.split("/"):
            raise ValueError(f"'{path[:100]}' is below {TRUTH}, which judges alone read")
        return path


def is_plain_name(name: str) -> bool:
    """Return whether a part of a path is a visible name without control characters."""
    return bool(name) and not name.startswith(".") and "\\" not in name and name.isprintable()


class TranscriptFacts(Config):
    """What a transcript says of itself: its file `transcript.yaml`."""

    version: Literal[1] = 1
    """The format's version."""
    modality: Modality = "vectors"
    """The kind of samples that the clients hold."""
    legs: tuple[str, ...] = Field(default=("smashed",), min_length=1, max_length=64)
    """The legs that were recorded, by simsplit's names: smashed (what a client sends), features
    (what it gets back), features_grad, smashed_grad, labels and others."""
    content: dict[str, Content] = Field(default={}, max_length=64)
    """What the tensors of a leg are, if they are not values at a cut: embeddings of tokens, or
    rows of gradients."""
    image: ImageFacts | None = None
    """For images: their form, and how they were normalised."""
    tokenizer: str | None = Field(default=None, max_length=200)
    """For texts: the tokenizer's name, or its folder; it is only shown, and never fetched."""
    columns: tuple[str, ...] = Field(default=(), max_length=4096)
    """For a table: its columns."""
    classes: int | None = Field(default=None, ge=1, le=MOST_CLASSES)
    """Number of classes, if samples have labels."""
    knows: ServerHoldings = ServerHoldings()
    """What the server has beside the packets."""
    recorder: str = Field(default="", max_length=200)
    """What wrote the transcript, with its version."""
    status: Literal["recording", "complete", "cut"] = "complete"
    """complete; cut: the end is missing, and `ended` says why; recording: nobody has closed it, so
    its last packets may be missing."""
    ended: str = Field(default="", max_length=400)
    """Why packets are missing at the end."""

    @field_validator("legs", "content")
    @classmethod
    def _refuse_unknown(cls, legs: Iterable[str]) -> Iterable[str]:
        """Refuse a leg that this program does not know."""
        for leg in legs:
            Leg(leg[:100])
        return legs


def check_facts(values: Any, where: str = FACTS) -> TranscriptFacts:  # noqa: ANN401 - YAML
    """Return facts from plain values; raise RunError with the field that is wrong."""
    if not isinstance(values, dict):
        raise RunError(f"{where}: must hold a mapping, got {type(values).__name__}")
    try:
        return TranscriptFacts.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = strip_controls(".".join(str(each)[:60] for each in first["loc"]))
        known = f"; fields: {format_list(TranscriptFacts.model_fields, 20)}"
        extra = known if first["type"] == "extra_forbidden" else ""
        raise RunError(f"{where}: {place}: {first['msg']}{extra}") from None


class PacketRow(NamedTuple):
    """One row of `packets.csv`: a packet, and the place of its tensors."""

    client: ClientId
    round: int
    step: int
    leg: str
    phase: str
    """train, evaluate, or targets: samples that a client encoded for attacks to recover."""
    session: int | None
    """The session's number, if it takes several passes."""
    position: int
    """Tokens of the session that earlier passes had."""
    file: str
    tensors: tuple[str, ...]
    """The names of its tensors in the file."""
    first: int | None
    """The packet's first row of the tensors; None: it has all rows of them."""
    rows: int | None
    ids: tuple[int, ...]
    """The ids of its samples, if they are known."""

    @classmethod
    def parse(cls, cells: Mapping[str | None, Any]) -> "PacketRow":
        """Read a line of the table; raise ValueError with the column that is wrong."""
        return cls(
            client=parse_count(cells, "client"),
            round=parse_count(cells, "round"),
            step=parse_count(cells, "step"),
            leg=Leg(_parse_word(cells, "leg")),
            phase=_parse_word(cells, "phase", "train"),
            session=_parse_optional(cells, "session"),
            position=_parse_optional(cells, "position") or 0,
            file=_parse_word(cells, "file"),
            tensors=tuple(_parse_word(cells, "tensors").split(" ")),
            first=_parse_optional(cells, "first"),
            rows=_parse_optional(cells, "rows"),
            ids=parse_ids(cells),
        )


COLUMNS = PacketRow._fields
SAMPLE_COLUMNS = ("file", "inputs", "labels", "ids")
"""Columns of the truth's table, a row for each batch of samples; an empty cell: it has none."""


def parse_ids(cells: Mapping[str | None, Any]) -> tuple[int, ...]:
    """Read the ids of a line."""
    text = cells.get("ids") or ""
    return tuple(_parse_number(each, "ids") for each in text.split(" ")) if text else ()


def parse_count(cells: Mapping[str | None, Any], column: str) -> int:
    """Read a whole number of a line; raise ValueError with the column."""
    return _parse_number(cells.get(column) or "", column)


def check_number(field: str, number: float) -> None:
    """Raise RunError for a number that no reader of a table would take."""
    if not (0 <= number < MOST_IDS and number == int(number)):
        raise RunError(f"{field}: must be a whole number from 0 to 2**53, got {number}")


def _parse_optional(cells: Mapping[str | None, Any], column: str) -> int | None:
    return parse_count(cells, column) if cells.get(column) else None


def _parse_number(text: str, column: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 17 and int(text) < MOST_IDS):
        raise ValueError(f"{column}: must be a whole number from 0 to 2**53, got '{text[:40]}'")
    return int(text)


def _parse_word(cells: Mapping[str | None, Any], column: str, default: str = "") -> str:
    word = cells.get(column) or default
    if not word or len(word) > 2000:
        raise ValueError(f"{column}: must have 1 to 2,000 letters, got {len(word):,}")
    return str(word)
