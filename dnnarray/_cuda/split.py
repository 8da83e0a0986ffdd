"""Float32 products on tensor cores as exact as float32: each factor as two numbers of 11 bits, three products of the parts as one long sum.

With x = h + l and y = u + v, x y is h u + l u + h v but for l v, which is 2^-22 of the whole; the products of parts are exact in float32 (Ootomo and Yokota, 2022).
"""

from __future__ import annotations

from dataclasses import dataclass

from dnnarray._cuda.plan import Config, Kernel, MatMul, Matrix, Plan, vector_length
from dnnarray._cuda.scratch import Operand, Steps
from dnnarray._spec import FLOAT32

COPIES = 3
_THREADS = 256


@dataclass(frozen=True)
class SplitConfig(Config):
    """Compile-time settings of ``kernels/linear/split.cu``."""

    right: bool
    vector: int
    threads: int


def multiply_parts(steps: Steps, a: Matrix, b: Matrix, c: Operand, m: int, n: int, k: int) -> None:
    """c = a b, all of them dense."""
    with steps.borrowed():
        left, right = _parts(steps, a, m, k, False), _parts(steps, b, k, n, True)
        steps.add(MatMul(left, right, Matrix(c.array, n), m, n, COPIES * k, FLOAT32, FLOAT32, precision="high"))


def _parts(steps: Steps, matrix: Matrix, rows: int, columns: int, right: bool) -> Matrix:
    """The copies of a factor, one behind the other along the axis that is summed over."""
    rows, columns = (columns, rows) if matrix.transposed else (rows, columns)
    along_columns = matrix.transposed == right
    step, copy = (COPIES * columns, columns) if along_columns else (columns, rows * columns)
    target = steps.take(FLOAT32, COPIES * rows * columns)
    vector = vector_length(FLOAT32, steps.aligned, columns, matrix.array.offset // FLOAT32.itemsize)
    kernel = Kernel("linear/split.cu", f"linear_split_{'right' if right else 'left'}_x{vector}", SplitConfig(right, vector, _THREADS))
    grid = (-(-rows * columns // (_THREADS * vector)), 1, 1)
    steps.add(Plan(kernel, grid, _THREADS, (matrix.array, target.array, rows * columns, columns, step, copy)))
    return Matrix(target.array, step, 0, matrix.transposed)
