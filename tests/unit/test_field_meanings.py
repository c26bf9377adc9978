"""What fields mean is read from the docstrings below them, as pydantic would read it."""

from pydantic import BaseModel, ConfigDict, create_model

from simsplit.config import Config, read_meanings
from simsplit.methods import METHODS


class _Pair(Config):
    first: int = 1
    """What comes first,
    on two lines.
    """
    second: int = 2
    silent: int = 3


class _Own(_Pair):
    second: int = 4
    """What comes next."""

    class Inner(Config):
        """A config in another."""

        deep: int = 5
        """What lies within."""


class _Alike(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)
    first: int = 1
    """What comes first,
    on two lines.
    """
    second: int = 2
    """What comes next."""


def test_docstrings_are_read_as_pydantic_reads_them():
    expected = {name: field.description for name, field in _Alike.model_fields.items()}
    assert read_meanings(_Own) == expected
    assert read_meanings(_Own.Inner) == {"deep": "What lies within."}
    assert "second" not in read_meanings(_Pair)


def test_the_schema_says_what_fields_mean_and_made_classes_inherit_it():
    made = create_model("_Own", __base__=_Own, silent=(int, 6))
    for config in (_Own, made):
        fields = config.model_json_schema()["properties"]
        meanings = {
            name: each["description"] for name, each in fields.items() if "description" in each
        }
        assert meanings == read_meanings(_Own)


def test_every_field_of_a_method_means_something():
    silent = {
        f"{kind}.{name}"
        for kind, config in METHODS.items()
        for name in config.model_fields.keys() - read_meanings(config).keys() - {"kind"}
    }
    assert silent == set()
