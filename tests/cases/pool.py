"""Cases of the pool family."""

import math
from typing import Any

import numpy as np

from tests.support import Case, Draw, distinct, fixed, normal

_INT32, _UINT8 = np.dtype(np.int32), np.dtype(np.uint8)


def _signed(*shape: int) -> Draw:
    """Magnitudes at least 1/8 apart with any sign and away from 0: no kinks for a norm or for its maximum."""

    def make(rng: np.random.Generator) -> np.ndarray:
        size = math.prod(shape)
        magnitude = (rng.permutation(size).reshape(shape) + 4) / 8
        return magnitude * rng.choice([-1.0, 1.0], shape)

    return Draw(make)


# id, shape, options, reason: what every windowed pooling is held to.
_WINDOWS: list[tuple[str, tuple[int, ...], dict[str, Any], str]] = [
    ("2d", (2, 3, 7, 5), {"kernel_size": 2}, "the stride is the window; odd extents leave a rest"),
    ("overlapping", (2, 2, 9, 11), {"kernel_size": 3, "stride": 2, "padding": 1}, "the pool of residual networks"),
    ("stride-1", (1, 2, 5, 6), {"kernel_size": 3, "stride": 1, "padding": 1}, "same extent, much overlap"),
    ("1d", (2, 3, 13), {"kernel_size": 3, "stride": 2}, "one spatial axis"),
    (
        "3d",
        (1, 2, 5, 4, 6),
        {"kernel_size": (2, 3, 2), "stride": (2, 1, 3), "padding": (0, 1, 1)},
        "three axes, each its own options",
    ),
    ("last", (2, 7, 5, 3), {"kernel_size": (3, 2), "padding": 1, "layout": "channels_last"}, "channels last"),
    (
        "last-3d",
        (1, 4, 5, 4, 2),
        {"kernel_size": 2, "stride": 1, "layout": "channels_last"},
        "channels last, three axes",
    ),
    ("dilated", (1, 2, 9, 8), {"kernel_size": 3, "stride": 2, "dilation": (2, 1), "padding": (2, 1)}, "taps apart"),
    (
        "missed",
        (1, 2, 2),
        {"kernel_size": 2, "stride": 1, "dilation": 4, "padding": 3},
        "windows that no element lies in",
    ),
    ("ceil", (2, 2, 8, 6), {"kernel_size": 3, "stride": 2, "ceil_mode": True}, "a last window that is cut"),
    (
        "ceil-padded",
        (1, 2, 7, 6),
        {"kernel_size": (3, 2), "stride": 3, "padding": 1, "ceil_mode": True},
        "cut beyond the padding",
    ),
    (
        "ceil-dropped",
        (1, 1, 4, 5),
        {"kernel_size": 2, "stride": (3, 4), "padding": 1, "ceil_mode": True},
        "a start in the padding after",
    ),
    ("ceil-short", (1, 2, 2), {"kernel_size": 3, "stride": 2, "ceil_mode": True}, "an input shorter than the window"),
    ("pairs", (1, 2, 6, 7), {"kernel_size": 3, "stride": 2, "padding": ((0, 1), (2, 0))}, "padding on one side"),
    ("same", (1, 2, 7, 6), {"kernel_size": (4, 3), "stride": 2, "padding": "same"}, "the odd element after"),
    (
        "same-lower",
        (1, 2, 7, 6),
        {"kernel_size": (4, 3), "stride": 2, "padding": "same_lower"},
        "the odd element before",
    ),
    ("valid", (1, 2, 7, 6), {"kernel_size": 3, "stride": 2, "padding": "valid"}, "no padding, in words"),
    ("one-sided", (2, 2, 5, 3), {"kernel_size": (3, 1), "stride": 1}, "an axis on which nothing happens"),
    ("identity", (2, 2, 3, 2), {"kernel_size": 1}, "nothing happens on either axis"),
    ("skipping", (1, 2, 7, 8), {"kernel_size": 1, "stride": 3}, "elements that no window looks at"),
    ("global", (2, 3, 5, 4), {"kernel_size": (5, 4)}, "one window over everything"),
    ("large", (1, 2, 13, 4), {"kernel_size": (9, 3), "stride": (3, 1), "padding": (2, 1)}, "more taps than outputs"),
    (
        "large-dilated",
        (1, 2, 26),
        {"kernel_size": 9, "stride": 4, "dilation": 3, "padding": 5},
        "more taps than outputs, taps apart",
    ),
    ("ones", (1, 1, 1, 1), {"kernel_size": 3, "padding": 1}, "every extent 1"),
    ("zero-batch", (0, 3, 7, 5), {"kernel_size": 2}, "a batch of nothing"),
    ("zero-channels", (2, 0, 7, 5), {"kernel_size": 3, "padding": 1}, "no channels"),
]

_ADAPTIVE: list[tuple[str, tuple[int, ...], dict[str, Any], str]] = [
    ("2d", (2, 3, 7, 11), {"output_size": (3, 4)}, "windows of several lengths that overlap"),
    ("dividing", (2, 2, 6, 8), {"output_size": (3, 2)}, "windows that tile the input"),
    ("global", (2, 3, 5, 4), {"output_size": 1}, "one window over everything"),
    ("1d", (2, 3, 13), {"output_size": 5}, "one spatial axis"),
    ("3d", (1, 2, 5, 4, 6), {"output_size": (2, 4, 4)}, "three axes"),
    ("last", (2, 7, 5, 3), {"output_size": (3, 2), "layout": "channels_last"}, "channels last"),
    ("kept", (1, 2, 5, 7), {"output_size": (None, 3)}, "an axis that keeps its extent"),
    ("growing", (1, 2, 3, 5), {"output_size": (7, 8)}, "more outputs than inputs: elements in several windows"),
    ("few-windows", (1, 1, 29, 23), {"output_size": (3, 2)}, "fewer windows than elements in each"),
    ("empty-output", (1, 2, 4, 5), {"output_size": (0, 2)}, "no outputs"),
    ("zero-batch", (0, 3, 7, 5), {"output_size": 2}, "a batch of nothing"),
]


def _volume(options: dict[str, Any], rank: int) -> int:
    size = options["kernel_size"]
    return math.prod(size) if isinstance(size, tuple) else size**rank


def _windowed(op: str, draw: Any) -> list[Case]:
    return [
        # A window that misses the input has the maximum -inf, which finite differences cannot handle.
        Case(
            op,
            id_,
            (draw(*shape),),
            options,
            reason,
            _volume(options, len(shape) - 2),
            gradient=draw is not distinct or id_ != "missed",
        )
        for id_, shape, options, reason in _WINDOWS
    ]


def _adapted(op: str, draw: Any) -> list[Case]:
    return [Case(op, id_, (draw(*shape),), options, reason, reduction=144) for id_, shape, options, reason in _ADAPTIVE]


_WITHOUT_PADDING: list[Case] = [
    Case(
        "avg_pool",
        f"{case.id}-without-padding",
        case.arrays,
        case.options | {"count_include_pad": False},
        f"{case.reason}; the padding does not count",
        reduction=case.reduction,
    )
    for case in _windowed("avg_pool", normal)
    if case.options.get("padding") or case.options.get("ceil_mode")
]

_INTEGERS = [
    Case(
        "max_pool",
        "int32",
        (Draw(lambda rng: rng.integers(-9, 9, (2, 3, 7, 5))),),
        {"kernel_size": 3, "stride": 2, "padding": 1},
        "integers with ties and padding",
        gradient=False,
        dtypes=(_INT32,),
    ),
    Case(
        "max_pool_with_indices",
        "int32",
        (Draw(lambda rng: rng.integers(-9, 9, (2, 3, 7, 5))),),
        {"kernel_size": 3, "padding": 1},
        "integers with ties and padding",
        gradient=False,
        dtypes=(_INT32,),
    ),
    Case(
        "max_pool",
        "uint8",
        (Draw(lambda rng: rng.integers(0, 256, (1, 2, 6, 6))),),
        {"kernel_size": 2, "padding": 1},
        "unsigned integers, where the least is 0",
        gradient=False,
        dtypes=(_UINT8,),
    ),
]

_LP = [
    Case(
        "lp_pool",
        f"p-{p}",
        (_signed(2, 2, 7, 5),),
        {"kernel_size": 3, "stride": 2, "padding": 1, "p": p},
        "another exponent",
        reduction=9,
    )
    for p in (1, 1.5, 3, 7.0, math.inf)
] + [
    Case(
        "lp_pool",
        "p-0.5",
        (_signed(2, 2, 5, 4),),
        {"kernel_size": 2, "p": 0.5},
        "an exponent below 1; its root squares errors",
        reduction=4,
        condition=2,
    ),
    Case(
        "lp_pool", "p-inf-large", (_signed(1, 1, 12, 11),), {"kernel_size": 10, "p": math.inf}, "more taps than outputs"
    ),
]

_UNPOOL = [
    Case(
        "max_unpool",
        "2d",
        (normal(1, 2, 2, 2), fixed([[[[0, 5], [9, 14]], [[3, 7], [8, 11]]]])),
        {"output_size": (4, 4)},
        "the usual one",
    ),
    Case(
        "max_unpool",
        "1d",
        (normal(2, 1, 3), fixed([[[0, 3, 6]], [[6, 2, 1]]], np.int32)),
        {"output_size": 7},
        "any order, int32",
    ),
    Case(
        "max_unpool", "3d", (normal(1, 1, 1, 2, 1), fixed([[[[[17], [5]]]]])), {"output_size": (2, 3, 3)}, "three axes"
    ),
    Case(
        "max_unpool",
        "last",
        (normal(1, 2, 1, 2), fixed([[[[0, 5]], [[3, 2]]]])),
        {"output_size": (3, 2), "layout": "channels_last"},
        "channels last",
    ),
    Case(
        "max_unpool",
        "zero-batch",
        (normal(0, 2, 2, 2), fixed(np.zeros((0, 2, 2, 2)))),
        {"output_size": 4},
        "a batch of nothing",
    ),
    Case(
        "max_unpool",
        "zero-space",
        (normal(1, 2, 0), fixed(np.zeros((1, 2, 0)))),
        {"output_size": 3},
        "nothing to put: zeros",
    ),
]

CASES: list[Case] = [
    *_windowed("max_pool", distinct),
    *_windowed("max_pool_with_indices", distinct),
    *_INTEGERS,
    *_windowed("avg_pool", normal),
    *_WITHOUT_PADDING,
    *_windowed("lp_pool", _signed),
    *_LP,
    *_adapted("adaptive_avg_pool", normal),
    *_adapted("adaptive_max_pool", distinct),
    *_adapted("adaptive_max_pool_with_indices", distinct),
    *_UNPOOL,
    Case("max_pool2d", "ranked", (distinct(1, 2, 5, 4),), {"kernel_size": 2}, "a rank-checked name"),
    Case("max_pool2d_with_indices", "ranked", (distinct(1, 2, 5, 4),), {"kernel_size": 2}, "a rank-checked name"),
    Case("adaptive_avg_pool1d", "ranked", (normal(1, 2, 5),), {"output_size": 2}, "a rank-checked name", reduction=3),
]
