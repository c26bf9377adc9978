"""Cases that are one test hide none of each other."""

import pytest
from pace import together


def test_all_failures_are_named_with_their_messages(tmp_path):
    seen = []

    @together([1, 2, 3], "ab")
    def check(number, letter, tmp_path):
        seen.append((number, letter, tmp_path))
        if letter == "b":
            with pytest.raises(ValueError, match="never"):
                pass
        assert number != 2

    with pytest.raises(
        BaseExceptionGroup, match=r"^4 of 6 cases: 1, b; 2, a; 2, b; 3, b$"
    ) as error:
        check(tmp_path=tmp_path)
    assert len(seen) == 6
    assert {path for *_, path in seen} == {tmp_path}
    first, second, *_ = error.value.exceptions
    assert (first.__notes__, second.__notes__) == (["the case: 1, b"], ["the case: 2, a"])
    assert "2 != 2" in str(second)


def test_no_case_is_no_test():
    with pytest.raises(AssertionError, match="no case"):
        together([])
