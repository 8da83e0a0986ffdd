"""Table look-ups on NumPy arrays. The values of the indices were checked before."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray._cpu import compiled, threads
from dnnarray._cpu.spatial.common import BLOCK, SumTable, table_bytes
from dnnarray._problems.spatial_lookup import EmbeddingProblem, OneHotProblem
from dnnarray._select import Method
from dnnarray._spec import HALF


def _embedding(
    problem: EmbeddingProblem, outputs: tuple[np.ndarray, ...], scratch: Any, indices: np.ndarray, weight: np.ndarray
) -> None:
    if not indices.size:
        return
    rows, out = indices.astype(np.intp, copy=False), outputs[0]
    if out.flags.c_contiguous or rows.ndim == 0:
        rows, out = rows.reshape(-1), out.reshape(rows.size, weight.shape[1])

    def gather(start: int, stop: int) -> None:
        # mode="clip" writes straight into the output; the default would go through a buffer.
        weight.take(rows[start:stop], axis=0, out=out[start:stop], mode="clip")

    threads.run(gather, len(rows), work=problem.result.size)


def _embedding_backward(
    problem: EmbeddingProblem,
    outputs: tuple[np.ndarray, ...],
    scratch: Any,
    grad: np.ndarray,
    indices: np.ndarray,
    weight: np.ndarray,
) -> None:
    sums = SumTable(outputs[0], 1, scratch)
    length = weight.shape[1]
    rows = indices.reshape(-1).astype(np.intp)
    incoming = grad.reshape(rows.size, length)
    step = max(BLOCK // max(length, 1), 1)
    for i in range(0, rows.size, step):
        sums.add(rows[i : i + step], incoming[i : i + step])
    sums.finish()
    if problem.padding_index is not None:
        outputs[0][problem.padding_index] = 0


def _one_hot(problem: OneHotProblem, outputs: tuple[np.ndarray, ...], scratch: Any, indices: np.ndarray) -> None:
    outputs[0][...] = 0
    np.put_along_axis(outputs[0], indices.astype(np.intp)[..., None], 1, axis=-1)


def _gradient_bytes(problem: EmbeddingProblem) -> int:
    return table_bytes(problem.inputs[-1], 1)


def _no_table(problem: EmbeddingProblem, device: Any) -> str | None:
    """Why the compiled kernel cannot do it, or None. A half type would be widened first, the whole table of it."""
    weight = problem.inputs[-1]
    if weight.dtype in HALF or weight.strides is not None:
        return "it takes C-contiguous tables of float32 or float64"
    return None if problem.result.size else "there is nothing to do"


ALGORITHMS = {
    "embedding": (
        Method("take", _embedding, "one gather of rows", native=True, cost=compiled.numpy_cost(1)),
        compiled.method(
            "rows",
            "spatial.sampling",
            "embedding",
            "compiled: a row at a time, over all threads",
            accepts=_no_table,
        ),
    ),
    "embedding_backward": (
        Method("scatter", _embedding_backward, "a scattered sum of rows", workspace=_gradient_bytes),
    ),
    "one_hot": (Method("scatter", _one_hot, "zeros, and a one for each index", native=True),),
}
