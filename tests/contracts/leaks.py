"""A victim that leaks all it has, and the same with its payloads replaced by noise.

Its head passes pixels on unchanged, so whatever an attack's networks are, they have little to
learn: one that cannot recover these images recovers none. An active attack has a head to teach
instead, which obeys whatever gradient it is answered with.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from simsplit.attacks import Attack, AttackConfig, Knowledge, Knows
from simsplit.attacks.knowledge import Pretrained
from simsplit.data.batches import Batcher
from simsplit.data.samples import Samples
from simsplit.legs import Leg
from simsplit.methods import MethodConfig
from simsplit.methods.stack import build_stack
from simsplit.models.fresh import InputShape, LaidOut, Segments, Shape
from simsplit.packets import Packet
from simsplit.parties.feed import Feed
from simsplit.seeds import rng_for

CPU = torch.device("cpu")
IMAGE, CUT, BATCH = (1, 8, 8), (1, 8, 8), 16


class Leaky(LaidOut):
    """Pixels are not negative, so what leaves this head is what went in."""

    kind: Literal["leaky"] = "leaky"

    def compute_shapes(self, input_shape: InputShape) -> tuple[Shape, Shape]:
        return CUT, (64,)

    def make_segments(self, input_shape: InputShape, num_classes: int) -> Segments:
        return Segments(
            nn.PReLU(), nn.Sequential(nn.Flatten(), nn.Linear(64, 64)), nn.Linear(64, 10)
        )


@dataclass
class Setting:
    """A victim, what the server knows, and the images that it is after."""

    head: nn.Module
    known: Knowledge
    private: Samples
    truth: Tensor

    def pixels(self, rows: Tensor) -> Tensor:
        return (self.private.inputs[rows].float() / 255).to(self.known.device)

    def labels(self, rows: Tensor | slice) -> Tensor:
        return self.private.labels[rows].to(self.known.device)

    def obey(self, rows: Tensor, gradient: Tensor) -> None:
        """Let the victim take a step."""
        if gradient.any():
            self.head(self.pixels(rows)).backward(gradient)
            with torch.no_grad():
                for weight in self.head.parameters():
                    weight -= 0.01 * weight.grad.sign()
                    weight.grad = None

    def mean_error(self) -> float:
        """Compute the error of the best guess without any attack."""
        mean = self.private.inputs.float().mean(0) / 255
        return float((mean - self.truth).square().mean())


def build_setting(
    methods: tuple[MethodConfig, ...] = (), *, vanilla: bool = False, device: torch.device = CPU
) -> Setting:
    digits = load_digits()
    images = torch.from_numpy(digits.images / 16 * 255).round().byte()[:, None]
    labels = torch.from_numpy(digits.target).long()
    private, public = (
        Samples(images[rows], labels[rows]) for rows in (slice(800), slice(800, 1600))
    )
    model = Leaky().build(IMAGE, 10, seed=0)
    for part in (model.head, model.trunk, model.tail):
        part.to(device)
    stack = build_stack(methods, "server", (CUT, (64,)), 3, device)
    unit = ((0.0,), (1.0,))
    batcher = Batcher(public, mean=unit[0], std=unit[1], device=device)
    known = Knowledge(
        trunk=model.trunk,
        tail=model.tail if vanilla else None,
        stack=stack,
        model=Leaky(),
        methods=methods,
        shapes=(CUT, (64,)),
        image=IMAGE,
        classes=10,
        auxiliary=Feed(batcher, torch.arange(800), batch_size=BATCH, seed=1, client=0),
        mean=unit[0],
        std=unit[1],
        seed=7,
        device=device,
        pretrained=Pretrained(lambda owner: getattr(model, owner), vocabulary=0),
    )
    truth = (private.inputs[:BATCH].float() / 255).to(device)
    return Setting(model.head, known, private, truth)


def _taught() -> nn.Module:
    head = nn.Conv2d(1, 1, 1)
    nn.init.constant_(head.weight, -0.5)
    nn.init.constant_(head.bias, 2.0)
    return head


def packet(sent: Tensor, leg: Leg, number: int) -> Packet:
    return Packet(0, leg, 1, number, (sent,))


def recover_targets(config: AttackConfig, here: Setting, *, steps: int, noise: bool) -> Tensor:
    """Return the targets that an attack recovers after so many steps of training."""
    attack = config.build(here.known)
    if config.threat.acts:
        here.head = _taught().to(here.known.device)
    follow(attack, here, steps=steps, noise=noise)
    if Knows.WEIGHTS in config.threat.knows:
        attack.receive_head({f"head/{n}": t for n, t in here.head.state_dict().items()})
    if config.queries:
        attack.study(_queries(here, noise=noise))
    targets = [packet(_encode(here, here.truth, noise, -1), Leg.SMASHED, 0)]
    if here.known.tail is not None:
        targets.append(packet(here.labels(slice(BATCH)), Leg.LABELS, 0))
    for _ in attack.work(targets):
        pass
    return attack.recovered


def follow(attack: Attack, here: Setting, *, steps: int, noise: bool, first: int = 0) -> None:
    """Show an attack training steps as they cross the wire; the victim itself need not learn."""
    for number in range(first, first + steps):
        rows = torch.randint(800, (BATCH,), generator=rng_for(0, "rows", number))
        sent = _encode(here, here.pixels(rows), noise, number)
        attack.show(0, here.pixels(rows))
        attack.observe(packet(sent, Leg.SMASHED, number))
        if here.known.tail is not None:
            attack.observe(packet(here.labels(rows), Leg.LABELS, number))
        reply = attack.answer(packet(torch.zeros_like(sent), Leg.SMASHED_GRAD, number))
        if not noise:
            here.obey(rows, reply.tensors[0])
        attack.observe(reply)


def _encode(here: Setting, pixels: Tensor, noise: bool, number: int) -> Tensor:
    if noise:
        return torch.rand(pixels.shape, generator=rng_for(0, "noise", number)).to(pixels)
    with torch.no_grad():
        return here.head(pixels)


def _queries(here: Setting, *, noise: bool) -> list[tuple[Packet, Tensor]]:
    assert here.known.auxiliary is not None
    results = []
    for number in range(20):
        pixels = here.known.public(number).inputs
        results.append((packet(_encode(here, pixels, noise, number), Leg.SMASHED, number), pixels))
    return results
