"""What the method contracts run on, with the shapes and bytes that must come of it.

All numbers are worked out by hand for the cut and the batch below: a case that a change makes fail
is mended by working them out again, not by copying what was got.
"""

from collections.abc import Callable
from dataclasses import dataclass

from contracts.method_probes import PROBES, ProbeConfig

from simsplit.methods import METHODS, MethodConfig

CUT, FEATURES = (8, 4, 4), (32,)
BATCH = 6
RAW = (BATCH * 128 * 4, BATCH * 32 * 4)
BOTH = ("smashed", "features")


@dataclass(frozen=True)
class Case:
    """A list of methods and what must come of it."""

    configs: tuple[MethodConfig, ...]
    smashed: tuple[int, ...] = CUT
    """Per sample, the shape after `encode` on the smashed leg."""
    features: tuple[int, ...] = FEATURES
    nbytes: tuple[int, int] = RAW
    """Of a batch, one way, on the smashed and on the feature leg."""
    back: tuple[int, int] | None = None
    """The same of its gradients, where these are other."""
    num_messages: int = 1
    """Of a gradient."""
    rows: Callable[[int], int] = lambda n: n
    """How many rows cross for a batch of n."""
    superposed: bool = False
    """Whether rows are several samples, and as many samples come out as went in."""
    seeded: bool = False
    """Whether the seed that the sides are built from moves what crosses."""
    noisy: bool = False
    """Whether each step draws anew."""
    distorts: bool = False
    """Whether the gradient that returns is not the loss's own."""
    stride: float = 0.003
    """Of the differences that gradients are held against; finer where a method has many kinks."""
    error: float = 0.0
    """Of unpack(pack(x)), at most, as a share of the sample's largest magnitude."""

    def __str__(self) -> str:
        return "+".join(_name(config) for config in self.configs)


def _name(config: MethodConfig) -> str:
    fields = config.model_dump(exclude_defaults=True, exclude={"kind"}).values()
    shown = ["-".join(value) if isinstance(value, tuple) else str(value) for value in fields]
    return ":".join([config.kind, *shown])


def of(kind: str, **fields) -> MethodConfig:
    """Build a registered method's config, or a probe's."""
    return ProbeConfig(kind=kind, **fields) if kind in PROBES else METHODS[kind](**fields)


def lightsplit(smashed: int | None, features: int | None = None, **fields) -> Case:
    """Build a LightSplit case by the values per sample on the legs that it acts on."""
    expected = {"nbytes": (BATCH * (smashed or 128) * 4, BATCH * (features or 32) * 4)}
    expected |= {"smashed": (smashed,)} if smashed else {}
    expected |= {"features": (features,)} if features else {}
    return Case((of("lightsplit", **fields),), seeded=True, **expected)


def cast(to: str, nbytes: tuple[int, int], error: float, **fields) -> Case:
    return Case((of("cast", to=to, **fields),), nbytes=nbytes, error=error, noisy=to == "int8")


def sparse(kind: str, forth: tuple[int, int], back: tuple[int, int], **fields) -> Case:
    config = of(kind, **fields)
    noisy = kind == "randtopk" and config.ratio > 1
    return Case((config,), nbytes=forth, back=back, noisy=noisy, error=1)


def make_superposed(ratio: int) -> Case:
    rows = -(-BATCH // ratio)
    return Case(
        (of("c3sl", ratio=ratio),),
        (128,),
        nbytes=(rows * 128 * 4 + 4, RAW[1]),
        back=(rows * 128 * 4, RAW[1]),
        rows=lambda n: -(-n // ratio),
        superposed=True,
        seeded=True,
    )


def make_quantised(
    bits: int, nbytes: tuple[int, int], back: tuple[int, int] | None = None, **fields
) -> Case:
    noisy = fields.get("rounding") != "nearest"
    fewest = min(bits, fields.get("gradient_bits", bits))
    error = 2 / (2**fewest - 1)  # a level, of a range of at most twice the largest
    config = of("quantise", bits=bits, **fields)
    return Case((config,), nbytes=nbytes, back=back, noisy=noisy, error=error)


def make_rotated(
    bits: int, nbytes: tuple[int, int], back: tuple[int, int] | None = None, **fields
) -> Case:
    config = of("quantise", bits=bits, levels="normal", **fields)
    return Case((config,), nbytes=nbytes, back=back, error=1)


CASES: dict[str, list[Case]] = {
    "raw": [Case((of("raw"),)), Case(())],
    "lightsplit": [
        lightsplit(16),
        lightsplit(128, ratio=1),
        lightsplit(1, ratio=100),
        lightsplit(5, k=5, projection="uniform", broadcast="matrix"),
        lightsplit(21, k=21, projection="hadamard"),  # not a multiple of either factor, 8 and 16
        lightsplit(16, lift="learned", hidden=7),
        lightsplit(None, 5, k=5, legs=("features",)),
        lightsplit(16, 4, legs=BOTH, broadcast="matrix"),
        lightsplit(32, 8, ratio=4, legs=BOTH, projection="hadamard", lift="learned", hidden=7),
    ],
    "learned1x1": [
        Case((of("learned1x1"),), (1, 4, 4), nbytes=(6 * 16 * 4, RAW[1]), seeded=True),
        Case((of("learned1x1", ratio=3),), (2, 4, 4), nbytes=(6 * 32 * 4, RAW[1]), seeded=True),
        Case((of("learned1x1", ratio=99),), (1, 4, 4), nbytes=(6 * 16 * 4, RAW[1]), seeded=True),
        Case((of("learned1x1", legs=BOTH),), (1, 4, 4), (4,), (6 * 16 * 4, 6 * 4 * 4), seeded=True),
    ],
    "cast": [
        cast("fp16", (6 * 128 * 2, RAW[1]), 2**-11),
        cast("bf16", (6 * 128 * 2, RAW[1]), 2**-8),
        cast("int8", (6 * 128 + 6 * 4, RAW[1]), 1 / 127),
        cast("int8", (6 * 128 + 6 * 4, 6 * 32 + 6 * 4), 1 / 127, legs=BOTH),
        cast("fp16", (RAW[0], 6 * 32 * 2), 2**-11, legs=("features",)),
    ],
    "bottlenet": [
        Case((of("bottlenet"),), (1, 4, 4), nbytes=(6 * 16 * 4, RAW[1]), seeded=True),
        Case((of("bottlenet", ratio=2),), (4, 4, 4), nbytes=(6 * 64 * 4, RAW[1]), seeded=True),
    ],
    "topk": [
        # int(128 / 8 * 32 / 39) = 13 values, and 13 indices of 7 bits in 12 bytes
        sparse("topk", (6 * (13 * 4 + 12), RAW[1]), (6 * 13 * 4, RAW[1])),
        sparse("topk", (6 * (16 * 4 + 14), RAW[1]), (6 * 16 * 4, RAW[1]), match="values"),
        # 32 of 128 and 8 of 32: indices of 7 and of 5 bits
        sparse(
            "topk",
            (6 * (32 * 4 + 28), 6 * (8 * 4 + 5)),
            (6 * 32 * 4, 6 * 8 * 4),
            ratio=4,
            match="values",
            legs=BOTH,
        ),
    ],
    "randtopk": [
        sparse("randtopk", (6 * (13 * 4 + 12), RAW[1]), (6 * 13 * 4, RAW[1])),
        sparse("randtopk", (6 * (128 * 4 + 112), RAW[1]), RAW, ratio=1, match="values"),
    ],
    "sparsify": [
        # 7 of 128 values (121 lie below 120.65), 7 indices of 7 bits in 7 bytes, a shape
        sparse("sparsify", (6 * (7 * 4 + 7) + 12, RAW[1]), (6 * 7 * 4, RAW[1])),
        sparse("sparsify", (6 * (128 * 4 + 112) + 12, RAW[1]), RAW, sparsity=0),
    ],
    "c3sl": [make_superposed(1), make_superposed(2), make_superposed(3)],
    "quantise": [
        # codes, two fp32 a sample, three int32
        make_quantised(8, (6 * (128 + 8) + 12, RAW[1])),
        make_quantised(3, (6 * (48 + 8) + 12, RAW[1])),
        make_quantised(1, (6 * (16 + 8) + 12, RAW[1])),
        make_quantised(12, (6 * (192 + 8) + 12, 6 * (48 + 8) + 4), legs=BOTH),
        make_quantised(4, (6 * (64 + 8) + 12, RAW[1]), rounding="nearest"),
        # codes, one fp32 a sample, three int32 and on features one
        make_rotated(1, (6 * (16 + 4) + 12, RAW[1])),
        make_rotated(3, (6 * (48 + 4) + 12, 6 * (12 + 4) + 4), legs=BOTH),
        # gradients of other bits than what they are of
        make_quantised(
            8, (6 * (128 + 8) + 12, RAW[1]), (6 * (32 + 8) + 12, RAW[1]), gradient_bits=2
        ),
        make_rotated(
            2,
            (6 * (32 + 4) + 12, 6 * (8 + 4) + 4),
            (6 * (16 + 4) + 12, 6 * (4 + 4) + 4),
            gradient_bits=1,
            legs=BOTH,
        ),
    ],
    "noise": [
        Case((of("noise"),), noisy=True),
        Case((of("noise", distribution="laplace", unit="batch_std"),), noisy=True),
        Case((of("noise", unit="batch_rms"),), noisy=True),
        Case((of("noise", sigma=0),)),
    ],
    # not clipped, so that gradients are the joint graph's
    "dp_forward": [
        Case((of("dp_forward", sigma=0.1, clip=100),), noisy=True),
        Case((of("dp_forward", sigma=0, clip=1000, relative=False),)),
    ],
    "mid": [
        Case((of("mid"),), seeded=True, noisy=True, stride=0.0003),
        Case((of("mid", weight=0),), seeded=True, noisy=True, stride=0.0003),
    ],
    "dp_sgd": [
        Case((of("dp_sgd", multiplier=1e-9, clip=1000, relative=False),), noisy=True),
        Case((of("dp_sgd", multiplier=0, clip=100),)),
    ],
    "randomised_response": [Case((of("randomised_response"),))],
    "distance_correlation": [
        Case((of("distance_correlation"),)),
        Case((of("distance_correlation", alpha=0),)),
    ],
    "pslf": [
        Case((of("pslf"),), seeded=True),
        Case((of("pslf", epsilon=0, pseudo_classes=2),), seeded=True),
    ],
    "marvell": [
        Case((of("marvell"),), noisy=True, distorts=True),
        Case((of("marvell", sum_kl=None, power=1e-14),), noisy=True),
    ],
    "max_norm": [Case((of("max_norm"),), noisy=True, distorts=True)],
    "cae": [Case((of("cae", steps=20),))],
    "discrete_sgd": [
        Case((of("discrete_sgd"),), distorts=True),
        Case((of("discrete_sgd", bins=1, clip=True),), distorts=True),
    ],
    "grad_perturb": [Case((of("grad_perturb"),))],
    "private_backprop": [
        Case((of("private_backprop"),), num_messages=2, noisy=True),
        Case((of("private_backprop", messages=1),)),
        Case((of("private_backprop", messages=5, scale=2),), num_messages=5, noisy=True),
    ],
    "p3eft": [
        Case((of("p3eft", alpha=0.001),)),
        Case((of("p3eft", alpha=0, messages=3),), num_messages=3, noisy=True),
    ],
    "nopeek": [Case((of("nopeek"),)), Case((of("nopeek", alpha=0),))],
    "splitguard": [
        Case((of("splitguard", after=0, probability=1.0),)),
        Case((of("splitguard", after=1),)),
    ],
    "gradients_scrutinizer": [
        Case((of("gradients_scrutinizer", after=0),)),
        Case((of("gradients_scrutinizer", after=1),)),
    ],
    "shredder": [
        Case((of("shredder"),), noisy=True, seeded=True),
        Case((of("shredder", tensors=1, weight=0),), seeded=True),
    ],
    "wcc": [
        Case((of("wcc"),)),
        Case((of("wcc", weight=0.5, normalise=True),)),
        Case((of("wcc", weight=0),)),
    ],
}

PROBE_CASES = [
    Case((of("support"),), nbytes=(8 * 128 * 4, 8 * 32 * 4), rows=lambda n: n + 2),
    Case((of("twice"), of("wcc")), nbytes=(2 * RAW[0], 2 * RAW[1]), rows=lambda n: 2 * n),
    Case((of("top_half", legs=BOTH),), nbytes=(6 * 64 * 8, 6 * 16 * 8), error=1),
    Case((of("blur"),), num_messages=2, noisy=True),
    Case((of("penalty"),)),
    Case((of("keyed", legs=BOTH),), seeded=True),
    Case((of("warm"),)),
    Case((of("fading"),)),
]

COMPOSITIONS = [
    Case((of("lightsplit"), of("wcc")), (16,), nbytes=(6 * 16 * 4, RAW[1]), seeded=True),
    Case((of("wcc"), of("lightsplit")), (16,), nbytes=(6 * 16 * 4, RAW[1]), seeded=True),
    Case(
        (of("lightsplit", legs=BOTH), of("cast", to="int8", legs=BOTH)),
        (16,),
        (4,),
        (6 * 16 + 6 * 4, 6 * 4 + 6 * 4),
        seeded=True,
        noisy=True,
        error=1 / 127,
    ),
    Case(
        (of("learned1x1", legs=BOTH), of("cast")),
        (1, 4, 4),
        (4,),
        (6 * 16 * 2, 6 * 4 * 4),
        seeded=True,
        error=2**-11,
    ),
    Case((of("learned1x1", ratio=2), of("lightsplit")), (8,), nbytes=(192, RAW[1]), seeded=True),
    Case((of("blur"), of("blur"), of("penalty")), num_messages=4, noisy=True),
    # 4 of 16 projected values: codes of 4 bits, a range, indices of 4 bits, a shape
    Case(
        (of("lightsplit"), of("topk", ratio=4, match="values"), of("quantise", bits=4)),
        (16,),
        nbytes=(6 * (2 + 8 + 2) + 4, RAW[1]),
        back=(6 * (2 + 8) + 4, RAW[1]),
        seeded=True,
        noisy=True,
        error=1,
    ),
    Case(
        (of("c3sl", ratio=3), of("lightsplit")),
        (16,),
        nbytes=(2 * 16 * 4 + 4, RAW[1]),
        back=(2 * 16 * 4, RAW[1]),
        rows=lambda n: -(-n // 3),
        superposed=True,
        seeded=True,
    ),
    # int8 values of the 8 that are kept, their places in int32, a scale
    Case(
        (of("lightsplit"), of("top_half"), of("cast", to="int8")),
        (16,),
        nbytes=(6 * 8 + 6 * 8 * 4 + 6 * 4, RAW[1]),
        seeded=True,
        noisy=True,
        error=1,
    ),
    Case(
        (of("support"), of("keyed"), of("lightsplit", k=3), of("blur"), of("cast", to="bf16")),
        (3,),
        nbytes=(8 * 3 * 2, 8 * 32 * 4),
        rows=lambda n: n + 2,
        num_messages=2,
        seeded=True,
        noisy=True,
        error=2**-8,
    ),
]

EVERY_CASE = [*(case for cases in CASES.values() for case in cases), *PROBE_CASES, *COMPOSITIONS]
