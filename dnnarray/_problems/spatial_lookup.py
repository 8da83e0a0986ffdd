"""Table look-ups: the problems of `embedding` and `one_hot`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dnnarray._errors import OptionError, fail
from dnnarray._problems import checks
from dnnarray._problems.base import Problem
from dnnarray._records import frozen
from dnnarray._spec import INT64, Spec


@frozen(kw_only=True)
class EmbeddingProblem(Problem):
    """y[*i] = weight[indices[*i]], or the gradient of weight; `padding_index` is non-negative or None."""

    padding_index: int | None
    rows: int


@frozen(kw_only=True)
class OneHotProblem(Problem):
    """y[*i, k] = 1 where k is indices[*i], else 0."""

    rows: int


def embedding(op: str, indices: Spec, weight: Spec, *, padding_index: Any) -> EmbeddingProblem:
    checks.integers(op, "indices", indices)
    checks.floating(op, "weight", weight)
    checks.rank(op, "weight", weight, 2, "V D: rows of the table and their length")
    rows = weight.shape[0]
    if padding_index is not None:
        padding_index = checks.integer(op, "padding_index", padding_index, -rows, rows - 1) % rows
    output = Spec((*indices.shape, weight.shape[1]), weight.dtype)
    return EmbeddingProblem(op=op, inputs=(indices, weight), outputs=(output,), padding_index=padding_index, rows=rows)


def embedding_backward(op: str, grad: Spec, indices: Spec, weight: Spec, **options: Any) -> EmbeddingProblem:
    forward = embedding(op, indices, weight, **options)
    checks.gradient(op, grad, forward.result)
    return replace(forward, inputs=(grad, indices, weight), outputs=(weight.like(),), shapes=frozenset((2,)))


_MOST_CLASSES = 2**63 - 1  # the extent of an axis and the values of int64 indices


def one_hot(op: str, indices: Spec, *, num_classes: Any) -> OneHotProblem:
    checks.integers(op, "indices", indices)
    rows = checks.integer(op, "num_classes", num_classes, 1, _MOST_CLASSES)
    return OneHotProblem(op=op, inputs=(indices,), outputs=(Spec((*indices.shape, rows), INT64),), rows=rows)


def _inside(op: str, indices: Any, rows: int, what: str) -> None:
    if indices.size and not ((low := indices.min()) >= 0 and (high := indices.max()) < rows):
        wrong = low if low < 0 else high
        expected = f"indices from 0 to {rows - 1} ({what})" if rows else f"no indices ({what})"
        fail(OptionError, op, "indices", f"an array with the index {wrong}", expected)


def embedding_values(problem: EmbeddingProblem, *arrays: Any) -> None:
    """Every index names a row of the table; negative ones do not count from the end."""
    _inside(problem.op, arrays[-2], problem.rows, f"weight has {problem.rows} rows")


def one_hot_values(problem: OneHotProblem, indices: Any) -> None:
    """Every index names a class."""
    _inside(problem.op, indices, problem.rows, f"num_classes is {problem.rows}")
