"""The format of transcripts, as a page: its files, its columns, and the JSON Schema of its facts."""

import json

from making.markup import code, fence, fold, plain, table
from simsplit.config import Config, read_meanings
from simsplit.wires.facts import (
    COLUMNS,
    SAMPLE_COLUMNS,
    VERSION,
    ImageFacts,
    ServerHoldings,
    TranscriptFacts,
)
from simsplit.wires.tensor_file import DTYPES, MOST_TENSOR

_HEAD = f"""\
# Transcripts

A transcript is a recorded wire: a folder with what crossed between clients and a server. This is version {VERSION} of its format.
[Record any split system](../howto/record.md) says how to write one; any program may, since all files are YAML, CSV and
[safetensors](https://huggingface.co/docs/safetensors). Nothing is ever unpickled.

```text
wire/
  transcript.yaml             what it is: the fields below
  packets.csv                 a row for each packet
  packets-00000.safetensors   tensors of packets, in as many files as needed
  truth/                      inputs and labels by the ids of samples; for judges alone
    samples.csv
    samples-00000.safetensors
  reference/                  the same samples without the defence, as a transcript of its own; optional
```

A reader refuses links, names with folders, and whatever does not fit the file that it stands in. A file is read by parts; a tensor
that is read at once has at most {MOST_TENSOR // 2**20} MiB. Packets with numbers that are not finite are left out and counted. Types of tensors:
{", ".join(code(name) for name in DTYPES)}.
"""
_PACKETS = {
    "client": "the client's number",
    "round": "the round",
    "step": "the step; packets of one step belong together",
    "leg": "`smashed`, `features`, `features_grad`, `smashed_grad`, `labels`, ...",
    "phase": "empty or `train`; `evaluate`; `targets`: samples that a client encoded for attacks",
    "session": "the session's number, if a session takes several passes",
    "position": "tokens of the session that earlier passes had",
    "file": "the file with its tensors, in this folder",
    "tensors": "the tensors' names in the file, separated by spaces",
    "first": "its first row of these tensors; empty: it has all of them",
    "rows": "its number of rows, if `first` is set",
    "ids": "whole numbers that name its samples, separated by spaces; empty: not known",
}
_SAMPLES = {
    "file": "the file in `truth/`",
    "inputs": "the tensor with the samples' inputs; images are pixels as bytes, or as the head gets them",
    "labels": "the tensor with their labels",
    "ids": "the samples' ids, in the order of rows",
}


def page() -> str:
    """Return the format's page."""
    schema = json.dumps(TranscriptFacts.model_json_schema(), indent=2)
    return "\n\n".join(
        [
            _HEAD,
            *_list_fields("transcript.yaml", TranscriptFacts),
            *_list_fields("image", ImageFacts),
            *_list_fields("knows", ServerHoldings),
            "## packets.csv",
            table(("column", "meaning"), [(code(each), _PACKETS[each]) for each in COLUMNS]),
            "## truth/samples.csv",
            table(("column", "meaning"), [(code(each), _SAMPLES[each]) for each in SAMPLE_COLUMNS]),
            "## JSON Schema",
            fold("The schema of `transcript.yaml`", fence(schema, "json")),
        ]
    )


def _list_fields(title: str, config: type[Config]) -> tuple[str, str]:
    """Return the section of a config: a row for each field."""
    meanings = read_meanings(config)
    fields = config.model_fields
    rows = [(code(name), plain(meanings.get(name, "").replace("\n", " "))) for name in fields]
    return f"## {title}", table(("field", "meaning"), rows)
