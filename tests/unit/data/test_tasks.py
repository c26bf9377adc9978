"""Labels of texts: numbers, or the names of classes."""

import pytest

from simsplit.data.tasks import Classification
from simsplit.errors import DataError

TASK = Classification(prompt="{text}", names=("bad", "good"))


@pytest.mark.parametrize("labels", [[0, 1], ["bad", "good"], [0.0, 1.0], [False, True]])
def test_a_label_is_a_number_or_a_name(labels: list[object]) -> None:
    pieces = TASK.make_pieces([{"text": "x", "label": label} for label in labels], "here")
    assert [piece.label for piece in pieces] == [0, 1]
    assert [type(piece.label) for piece in pieces] == [int, int]
    assert [piece.answer for piece in pieces] == [" bad", " good"]


@pytest.mark.parametrize("label", [2, -1, "fine", None, 0.5])
def test_other_labels_are_refused_with_the_allowed_ones(label: object) -> None:
    with pytest.raises(DataError, match=r"row 0:.*0 to 1.*bad, good"):
        TASK.make_pieces([{"text": "x", "label": label}], "here")
