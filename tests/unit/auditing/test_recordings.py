"""Which samples of a transcript are targets, and the truth as samples."""

import pytest
import torch

from simsplit.auditing.recordings import RecordedStep, choose_samples, get_ids
from simsplit.auditing.truths import choose_scale, make_image_samples, make_text_samples


def steps(*ids: tuple[int, ...]) -> list[RecordedStep]:
    return [RecordedStep(ids=each) for each in ids]


def test_the_last_steps_are_attacked_in_order_and_no_target_is_a_known_input() -> None:
    made = steps((0, 1), (2, 3), (4, 5), (0, 2), (6, 7))
    chosen = choose_samples(made, 4, latest=True, with_pairs=True)
    assert [step.ids for step in chosen.targets] == [(0, 2), (6, 7)]
    assert get_ids(chosen.targets) == [0, 2, 6, 7]
    assert {4, 5} <= {*get_ids(chosen.pairs)}
    assert chosen.counted == 8


def test_at_most_half_of_the_samples_are_targets_where_others_are_to_be_known() -> None:
    made = steps((0, 1, 2, 3, 4, 5, 6, 7))
    assert len(get_ids(choose_samples(made, 64, latest=True, with_pairs=True).targets)) == 4
    assert len(get_ids(choose_samples(made, 64, latest=True, with_pairs=False).targets)) == 8
    made = steps((0, 1, 2), (3, 4, 5), (6, 7))
    chosen = choose_samples(made, 64, latest=False, with_pairs=True)
    assert [step.ids for step in chosen.targets] == [(0, 1, 2), (3,)]
    assert [step.ids for step in chosen.pairs] == [(3, 4, 5), (6, 7)]


def test_a_large_step_is_cut_and_the_first_steps_are_taken_of_targets() -> None:
    made = steps(tuple(range(100)), tuple(range(100, 200)))
    chosen = choose_samples(made, 10, latest=False, with_pairs=False)
    assert get_ids(chosen.targets) == [*range(10)]


@pytest.mark.parametrize(("mean", "std"), [((0.2,), (0.5,)), ((), ())])
def test_pixels_come_back_from_the_values_that_the_head_got(
    mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    values = pixels.float() / 255
    if mean:
        values = (values - mean[0]) / std[0]
    scale = choose_scale(values, mean, std)
    assert torch.equal(make_image_samples(values, None, scale).inputs, pixels)
    assert not scale.note


def test_images_of_an_unknown_scale_are_drawn_from_black_to_white_with_a_note() -> None:
    values = torch.linspace(-2, 3, 16).view(1, 1, 4, 4)
    scale = choose_scale(values, (), ())
    assert scale.note
    made = make_image_samples(values, None, scale).inputs
    assert (int(made.min()), int(made.max())) == (0, 255)


def test_texts_are_padded_and_predict_their_next_tokens() -> None:
    made = make_text_samples([torch.tensor([5, 6, 7]), torch.tensor([8, 9])], None, 0)
    assert made.inputs.tolist() == [[5, 6, 7], [8, 9, 0]]
    assert made.labels.tolist() == [[6, 7, -100], [9, -100, -100]]
