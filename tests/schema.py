"""The schema of scenario files, made once for all tests of a process: it takes a second."""

import functools

from jsonschema import Draft202012Validator

from simsplit.scenario import file_schema


@functools.cache
def validator() -> Draft202012Validator:
    """Build a validator of files that name no parts of plugins."""
    return Draft202012Validator(file_schema())
