"""Every case of every operation by every algorithm, forward and backward, once aligned and once not, without looking at the results: for compute-sanitizer.

    compute-sanitizer --tool memcheck python -m tests.gpu.every_kernel [--shard 0/8] [--dtypes float32,bfloat16]

Each array lies at the end of an allocation of its own, so that a read beyond it is seen.
"""

from __future__ import annotations

import argparse

import cupy
import numpy as np

import dnnarray as dnn
from dnnarray._operation import find
from dnnarray._problems.base import tree_map
from tests.registry import CASES
from tests.support import call_by


def _apart(array, offset: int):
    """The array in memory that the pool does not share out, `offset` elements behind its beginning."""
    memory = cupy.cuda.Memory((array.size + offset) * array.itemsize or 1)
    there = cupy.ndarray((array.size + offset,), array.dtype, cupy.cuda.MemoryPointer(memory, 0))[offset:].reshape(array.shape)
    there[...] = cupy.asarray(array)
    return there


def _run(case, dtype, offset: int) -> None:
    arrays = tuple(tree_map(lambda a: _apart(a, offset), a) for a in case.draw(dtype))
    _by_every_algorithm(case.op, arrays, case.options)
    if case.gradient:
        output, pullback = dnn.vjp(case.op, *arrays, **case.options)
        head, rest = (output[0], (None,) * (len(output) - 1)) if isinstance(output, tuple) else (output, None)
        grad = _apart(cupy.ones(head.shape, head.dtype), offset)
        pullback(grad if rest is None else (grad, *rest))
        if rest is None and case.op == find(case.op).base:
            _by_every_algorithm(f"{case.op}_backward", (grad, *arrays), case.options)


def _by_every_algorithm(op, arrays, options) -> None:
    for name in (a.name for a in dnn.algorithms(op, *arrays, **options)):
        call_by(name, op, arrays, options)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--dtypes", default="float64,float32,float16,bfloat16")
    options = parser.parse_args()
    part, parts = map(int, options.shard.split("/"))
    wanted = options.dtypes.split(",")
    todo = [(c, d, o) for c in CASES for d in c.dtypes if np.dtype(d).name in wanted for o in (0, 1)][part::parts]
    cupy.cuda.set_allocator(None)  # allocations of their own: the pool's rounding would hide a read beyond the end
    ran = absent = 0
    for case, dtype, offset in todo:
        try:
            _run(case, dtype, offset)
            ran += 1
        except dnn.UnsupportedError:
            absent += 1
    cupy.cuda.Device().synchronize()
    print(f"shard {options.shard}: {ran} ran, {absent} not on this engine")


if __name__ == "__main__":
    main()
