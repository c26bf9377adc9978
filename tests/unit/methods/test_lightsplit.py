"""LightSplit and the learned 1x1: the paper's sizes, what is announced, and what is refused."""

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from simsplit.errors import ProtocolError, ScenarioError
from simsplit.legs import Leg
from simsplit.methods import MethodConfig, Site, Step
from simsplit.methods.learned1x1 import Learned1x1Config
from simsplit.methods.lightsplit import LightSplit, LightSplitConfig

CPU = torch.device("cpu")
RESNET, MICRONNET, SIMPLECNN = (64, 8, 8), (29, 14, 14), (20, 12, 12)


def site(side: str, shape: tuple[int, ...] = (8, 3, 2), leg: Leg = Leg.SMASHED, seed=0) -> Site:
    return Site(side, leg, shape, seed, CPU, "method.0")


def halves(config: MethodConfig, seed: int = 0) -> tuple[LightSplit, LightSplit]:
    client, server = config.build(site("client", seed=7)), config.build(site("server", seed=seed))
    client.receive_announcement(server.announce())
    return client, server


def step() -> Step:
    return Step(0, 0, 0, 0)


def values(batch: int = 5) -> Tensor:
    return torch.randn(batch, 8, 3, 2, generator=torch.Generator().manual_seed(0))


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("shape", "hidden", "k", "parameters"),
    [
        (RESNET, 512, 512, 2_364_928),
        (RESNET, 2048, 512, 9_447_424),
        (MICRONNET, 128, 710, 824_500),
        (SIMPLECNN, 128, 360, 417_984),
    ],
)
def test_learned_lift_has_the_papers_parameters(shape, hidden, k, parameters):
    config = LightSplitConfig(ratio=8, lift="learned", hidden=hidden, projection="hadamard")
    assert config.compute_sent_shape(shape, "method.0") == (k,)
    assert count(config.build(site("server", shape)).module) == parameters
    assert config.build(site("client", shape)).module is None


def test_the_client_lifts_on_the_feature_leg():
    config = LightSplitConfig(lift="learned", hidden=4, legs=("features",))
    assert config.build(site("server", (40,), Leg.FEATURES)).module is None
    assert count(config.build(site("client", (40,), Leg.FEATURES)).module) == 24 + 8 + 200


@pytest.mark.parametrize(
    ("fields", "k"),
    [({}, 512), ({"ratio": 16}, 256), ({"ratio": 32}, 128), ({"ratio": 3}, 1365), ({"k": 7}, 7)],
)
def test_k_is_the_floor(fields, k):
    assert LightSplitConfig(**fields).compute_sent_shape(RESNET, "method.0") == (k,)


def test_fixed_lift_is_the_projection_and_back():
    client, server = halves(LightSplitConfig(ratio=4))
    R = client.projection.matrix
    z = values()
    sent = client.encode(z, step())
    torch.testing.assert_close(sent, z.flatten(1) @ R)
    lifted = server.lift(sent, step())
    torch.testing.assert_close(lifted, (z.flatten(1) @ R @ R.T).view(z.shape))


@pytest.mark.parametrize(
    ("fields", "nbytes"),
    [
        ({}, 8),
        ({"projection": "hadamard"}, 8),
        ({"broadcast": "matrix"}, 48 * 6 * 4),
        ({"broadcast": "matrix", "projection": "uniform", "k": 5}, 48 * 5 * 4),
    ],
)
def test_clients_share_the_servers_projection(fields, nbytes):
    config = LightSplitConfig(**fields)
    client, server = halves(config)
    assert sum(tensor.nbytes for tensor in server.announce()) == nbytes
    sent = client.encode(values(), step())
    assert torch.equal(sent, server.projection.project(values().flatten(1)))
    other, _ = halves(config, seed=1)
    assert not torch.equal(other.encode(values(), step()), sent)


def test_a_client_that_heard_nothing_says_so():
    client = LightSplitConfig().build(site("client"))
    with pytest.raises(ProtocolError, match="announced"):
        client.encode(values(), step())


@pytest.mark.parametrize(
    ("fields", "shape", "field", "values"),
    [
        (
            {"ratio": 8192},
            RESNET,
            "method.0.ratio",
            ("4096 values", "got 8192"),
        ),
        ({"ratio": 4096.5}, RESNET, "method.0.ratio", ("4096 values", "got 4096.5")),
        ({}, (4,), "method.0.ratio", ("4 values", "got 8")),
        ({"k": 4097}, RESNET, "method.0.k", ("4096 values", "got 4097")),
        ({"k": 12345678}, RESNET, "method.0.k", ("got 12345678",)),
        (
            {"projection": "hadamard"},
            (2039,),
            "method.0.projection",
            ("at most 1024", "2039 = 1 x 2039", "gaussian"),
        ),
    ],
)
def test_impossible_sizes_are_the_users_to_mend(fields, shape, field, values):
    config = LightSplitConfig(**fields)
    with pytest.raises(ScenarioError) as caught:
        config.compute_sent_shape(shape, "method.0")
    assert caught.value.field == field
    assert all(value in caught.value.reason for value in values)
    with pytest.raises(ScenarioError):
        config.build(site("server", shape))


def test_the_limits_themselves_are_allowed():
    assert LightSplitConfig(ratio=4096).compute_sent_shape(RESNET, "method.0") == (1,)
    assert LightSplitConfig(k=4096).compute_sent_shape(RESNET, "method.0") == (4096,)
    assert LightSplitConfig(projection="hadamard", k=2).compute_sent_shape(
        (2, 1021), "method.0"
    ) == (2,)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ratio": 8, "k": 8}, "ratio or k"),
        ({"projection": "hadamard", "broadcast": "matrix"}, "broadcast.*seed"),
        ({"ratio": 0.5}, "greater than or equal to 1"),
        ({"k": 0}, "greater than or equal to 1"),
        ({"legs": ["labels"]}, "'smashed' or 'features'"),
    ],
)
def test_contradictory_fields_are_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        LightSplitConfig(**fields)


@pytest.mark.parametrize(
    ("channels", "ratio", "kept"), [(64, 8, 8), (29, 8, 3), (20, 16, 1), (20, 32, 1), (64, 3, 21)]
)
def test_learned1x1_keeps_the_floor_of_the_channels(channels, ratio, kept):
    config, shape = Learned1x1Config(ratio=ratio), (channels, 5, 5)
    assert config.compute_sent_shape(shape, "method.0") == (kept, 5, 5)
    assert count(config.build(site("client", shape)).module) == (channels + 1) * kept
    assert count(config.build(site("server", shape)).module) == (kept + 1) * channels


def test_learned1x1_mixes_channels_at_each_position_alone():
    method = Learned1x1Config(ratio=4).build(site("client"))
    z = values().requires_grad_()
    method.encode(z, step())[:, :, 1, 0].sum().backward()
    touched = z.grad.abs().sum((0, 1)) > 0
    assert touched.tolist() == [[False, False], [True, False], [False, False]]
