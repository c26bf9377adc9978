"""Each sentence that a user sees stands in one golden list, and no test repeats it."""

import pytest
from sentences import GOLDEN, list_frozen, list_sentences, write_list

MOST = 13
"""So many strings repeat a sentence: columns and rows of tables, and one of Ray's own messages."""

SENTENCE = " ".join(("must", "have", "at", "least"))

CODE = '''
"""Toys."""

class NoiseConfig(Config):
    """Noise on what is sent."""

    scale: float = 1.0
    """Its scale, a factor."""

def scaled(self, factor):
    """Return it scaled."""
    assert factor, "the factor is zero"
    if factor < 0:
        raise DataError(f"the factor of {self.config.word} is below zero: {counted(factor)}")
    say("nothing " "to scale")
    return "scaled"
'''


def test_the_golden_list_is_that_of_the_code():
    assert GOLDEN.read_text(encoding="utf-8") == write_list(), (
        "sentences changed; look at them in the diff after: python tools/sentences.py --write"
    )


def test_tests_repeat_no_sentence():
    frozen = list_frozen()
    assert len(frozen) <= MOST, "\n".join(
        ["assert the field, values and names instead, with tests/gists.py:", *frozen]
    )


@pytest.mark.parametrize(("name", "of_commands"), [("noise.py", False), ("commands.py", True)])
def test_what_a_sentence_is(tmp_path, name, of_commands):
    (tmp_path / name).write_text(CODE)
    assert list(list_sentences(tmp_path / name)) == [
        "Noise on what is sent.",
        "Its scale, a factor.",
        *(["Return it scaled."] if of_commands else []),
        "the factor of {word} is below zero: {factor}",
        "nothing to scale",
    ]


@pytest.mark.parametrize(
    ("test", "frozen"),
    [
        (f'assert "method.0: {SENTENCE}" in said', 1),
        (f'pytest.raises(ValueError, match=f"{{field}}: {SENTENCE} one")', 1),
        ('assert says(said, "method.0: ... at least one")', 0),
        (f'assert found, "or it {SENTENCE}"', 0),
        (f'pytest.param(3, id="{SENTENCE}")', 0),
        (f'"""A list {SENTENCE} one."""', 0),
    ],
)
def test_what_freezes_a_sentence(tmp_path, test, frozen):
    (tmp_path / "test_it.py").write_text(test)
    assert len(list_frozen(tmp_path)) == frozen
