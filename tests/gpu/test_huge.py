"""Arrays of more than 2^31 elements: a few rows or images many times over, by every algorithm. What each of them gives
must come out everywhere.

The few are held to the CPU engine in float64, which is held to the oracles elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._problems.base import leaves
from dnnarray._spec import BFLOAT16
from tests.support import call, call_by, tolerance

cupy = pytest.importorskip("cupy")
pytestmark = [pytest.mark.gpu, pytest.mark.heavy]

_MORE = 2**31 + 2**20  # elements of the first array at least
_CHUNK = 2**27  # elements that are compared at a time
_SLOW = 3e3  # milliseconds: an algorithm that would take longer is meant for other sizes


@dataclass(frozen=True)
class Huge:
    """Operation, its arrays (the first axis of those named in `many` is repeated), options, longest sum of one
    image."""

    op: str
    shapes: tuple[tuple[int, ...], ...]
    options: dict[str, Any] = field(default_factory=dict)
    many: tuple[int, ...] = (0,)
    reduction: int = 1
    last: bool = False  # channels-first shapes in channels-last memory
    gradient: bool = True  # has a gradient by the same arrays

    def __str__(self) -> str:
        return f"{self.op}-{'x'.join(map(str, self.shapes[0]))}{'-last' if self.last else ''}"

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(len(str(self)))
        return [rng.standard_normal(shape).astype(BFLOAT16) for shape in self.shapes]


_IMAGES = (3, 24, 37, 41)
_DEEP = (2, 128, 28, 28)
_RESIDUAL = {"padding": 1, "activation": "relu"}
_CASES = [
    Huge("silu", ((3, 1031),)),
    Huge("swiglu", ((3, 1031), (3, 1031)), many=(0, 1)),
    Huge("glu", ((3, 1030),)),
    Huge("softmax", ((3, 1031),), reduction=1031),
    Huge("softmax", ((3, 37, 29, 31),), {"axis": 1}, reduction=37),
    Huge("log_softmax", ((2, 20011),), reduction=20011),
    Huge("layer_norm", ((3, 1031), (1031,), (1031,)), reduction=1031),
    Huge("layer_norm", ((2, 20008), (20008,), (20008,)), reduction=20008),
    Huge("rms_norm", ((3, 64), (64,)), reduction=64),
    Huge("group_norm", (_IMAGES,), {"num_groups": 6}, reduction=4 * 37 * 41),
    Huge("group_norm", (_IMAGES,), {"num_groups": 6}, reduction=4 * 37 * 41, last=True),
    Huge("instance_norm", (_IMAGES,), reduction=37 * 41),
    Huge("local_response_norm", (_IMAGES,), {"size": 5}, reduction=5),
    Huge("local_response_norm", (_IMAGES,), {"size": 5}, reduction=5, last=True),
    Huge("max_pool", (_IMAGES,), {"kernel_size": 3, "stride": 2, "padding": 1}),
    Huge("max_pool", (_IMAGES,), {"kernel_size": 3, "stride": 2, "padding": 1}, last=True),
    Huge("avg_pool", (_IMAGES,), {"kernel_size": 2}, reduction=4),
    Huge("avg_pool", (_IMAGES,), {"kernel_size": 3, "stride": 1, "padding": 1}, reduction=9, last=True),
    Huge("adaptive_avg_pool", (_IMAGES,), {"output_size": 7}, reduction=36),
    Huge("adaptive_avg_pool", (_IMAGES,), {"output_size": 1}, reduction=37 * 41, last=True),
    Huge("interpolate", (_IMAGES,), {"size": (74, 82), "mode": "linear"}, reduction=4),
    Huge("interpolate", (_IMAGES,), {"size": (20, 23), "mode": "nearest"}),
    Huge("grid_sample", (_IMAGES, (3, 31, 33, 2)), many=(0, 1), reduction=4),
    Huge("pixel_shuffle", (_IMAGES,), {"factor": 2}),
    Huge("conv", (_IMAGES, (32, 24, 3, 3)), {"padding": 1}, reduction=216),
    Huge("conv", (_IMAGES, (32, 24, 3, 3)), {"padding": 1, "stride": 2}, reduction=216, last=True),
    Huge("conv", (_IMAGES, (24, 1, 3, 3)), {"padding": 1, "groups": 24}, reduction=9, last=True),
    Huge("conv", (_IMAGES, (24, 1, 5, 5)), {"padding": 2, "groups": 24}, reduction=25),
    Huge("conv", (_IMAGES, (24, 4, 3, 3)), {"padding": 1, "groups": 6}, reduction=36, last=True),
    Huge(
        "conv",
        (_DEEP, (128, 128, 3, 3), (128,), _DEEP),
        _RESIDUAL,
        many=(0, 3),
        reduction=1152,
        last=True,
        gradient=False,
    ),
    Huge("conv_transpose", (_IMAGES, (24, 16, 2, 2)), {"stride": 2}, reduction=96),
    Huge("attention", ((3, 4, 65, 64),) * 3, many=(0, 1, 2), reduction=65 * 64),
]


def _repeated(array: np.ndarray, times: int, last: bool) -> Any:
    """On the device, the first axis so many times over."""
    small = cupy.asarray(array)
    if last and array.ndim == 4:
        return cupy.tile(cupy.ascontiguousarray(small.transpose(0, 2, 3, 1)), (times, 1, 1, 1)).transpose(0, 3, 1, 2)
    return cupy.tile(small, (times,) + (1,) * (array.ndim - 1))


def _check(result: Any, expected: np.ndarray, reduction: int, rounds: bool, note: str) -> None:
    """Each repetition agrees with `expected` as if it were alone."""
    allowed = tolerance(result.dtype, reduction, float(np.abs(expected).max()), expected, rounds=rounds)
    wanted, bound = (
        cupy.asarray(expected, cupy.float32),
        cupy.asarray(allowed * 1.001, cupy.float32),
    )  # float32 here rounds both
    repetitions = len(result) // len(expected)
    assert len(result) == repetitions * len(expected)
    step = max(_CHUNK // expected.size, 1)
    for start in range(0, repetitions, step):
        part = result[start * len(expected) : (start + step) * len(expected)].astype(cupy.float32)
        error = cupy.abs(part.reshape(-1, *expected.shape) - wanted)
        assert bool((error <= bound).all()), (
            f"{note}: off by {float(error.max()):.3g} in repetitions from {start} of {repetitions}"
        )


def _by_every_algorithm(
    op: str, case: Huge, arrays: tuple[Any, ...], expected: list[np.ndarray | None], options: dict[str, Any]
) -> None:
    found = [a for a in dnn.algorithms(op, *arrays, **options) if a.predicted_ms < _SLOW]
    assert found, f"no algorithm for {case}"
    for algorithm in found:
        results = leaves(call_by(algorithm.name, op, arrays, options))
        for result, wanted in zip(results, expected, strict=True):
            if wanted is not None:
                _check(result, wanted, case.reduction, algorithm.rounds, f"{case} {op} by {algorithm.name}")
        del results, result


@pytest.fixture(autouse=True)
def _free_memory():
    yield
    cupy.get_default_memory_pool().free_all_blocks()


@pytest.mark.parametrize("case", _CASES, ids=str)
def test_each_repetition_of_more_than_two_to_the_31_elements(case):
    small = case.arrays()
    times = -(-_MORE // small[0].size)
    exact = [a.astype(np.float64) for a in small]
    big = tuple(_repeated(a, times if i in case.many else 1, case.last and i in case.many) for i, a in enumerate(small))
    forward = call(case.op, tuple(exact), case.options)
    _by_every_algorithm(case.op, case, big, [forward], case.options)
    if not case.gradient:
        return

    grad = np.random.default_rng(1).standard_normal(forward.shape).astype(BFLOAT16)
    gradients = leaves(call(f"{case.op}_backward", (grad.astype(np.float64), *exact), case.options))
    # Sums over all repetitions grow with their number and are left to the tests of other sizes.
    expected = [g if i in case.many else None for i, g in enumerate(gradients)]
    big_grad = _repeated(grad, times, case.last)
    _by_every_algorithm(f"{case.op}_backward", case, (big_grad, *big), expected, case.options)
