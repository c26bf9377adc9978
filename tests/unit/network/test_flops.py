import torch
from torch import nn

from simsplit.network.clock import count_flops


def test_a_linear_layer_by_hand():
    layer, x = nn.Linear(7, 11), torch.zeros(5, 7)
    assert count_flops(lambda: layer(x))[0] == 2 * 5 * 7 * 11


def test_a_convolution_by_hand():
    layer, x = nn.Conv2d(3, 8, kernel_size=5, padding=2, stride=2), torch.zeros(4, 3, 16, 16)
    assert count_flops(lambda: layer(x))[0] == 2 * 4 * (8 * 8) * 8 * (3 * 5 * 5)


def test_a_backward_pass_counts_as_two_forward_ones():
    layer, x = nn.Linear(7, 11, bias=False), torch.zeros(5, 7, requires_grad=True)
    forward, _ = count_flops(lambda: layer(x))
    assert count_flops(lambda: layer(x).sum().backward())[0] == 3 * forward


def test_nothing_is_nothing():
    assert count_flops(lambda: "told") == (0, "told")
