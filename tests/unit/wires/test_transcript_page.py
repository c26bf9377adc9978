"""The page of the format says what the package writes and reads."""

from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError

from simsplit.config import read_meanings
from simsplit.wires.facts import COLUMNS, SAMPLE_COLUMNS, VERSION, ImageFacts, TranscriptFacts

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_has_every_column_and_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    from making.transcripts import page

    text = page()
    assert f"version {VERSION}" in text
    for name in (*COLUMNS, *SAMPLE_COLUMNS, *TranscriptFacts.model_fields):
        assert f"| `{name}` | " in text, name
    for config in (TranscriptFacts, ImageFacts):
        assert read_meanings(config).keys() >= config.model_fields.keys()


def test_the_schema_holds_what_is_written(wire: Path) -> None:
    schema = Draft202012Validator(TranscriptFacts.model_json_schema())
    written = yaml.safe_load((wire / "transcript.yaml").read_text())
    schema.validate(written)
    for changed in ({"version": 2}, {"modality": "sounds"}, {"extra": 1}):
        with pytest.raises(ValidationError):
            schema.validate({**written, **changed})
    header = (wire / "packets.csv").read_text().splitlines()[0]
    assert header == ",".join(COLUMNS)
    header = (wire / "truth" / "samples.csv").read_text().splitlines()[0]
    assert header == ",".join(SAMPLE_COLUMNS)
