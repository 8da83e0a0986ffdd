"""Questions about an operation that need no data: `infer`, `algorithms`, `explain`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from dnnarray._call.arrays import engine_of, engine_view, spec_of
from dnnarray._call.dispatch import freeze, with_numbers
from dnnarray._call.operation import Operation, find
from dnnarray._call.untraced import untraced
from dnnarray._engine.protocol import Engine
from dnnarray._errors import fail_choice
from dnnarray._options import current
from dnnarray._problems.base import Problem, tree_map
from dnnarray._records import frozen
from dnnarray._select import Algorithm, Device, choose, rank, tuning
from dnnarray._select.choose import Judged
from dnnarray._spec import Spec


@frozen
class Inference:
    """What a call would give and need.

    Attributes
    ----------
    output : Spec or named tuple of Spec
        In the form of the call's own result.
    outputs : tuple of Spec
        The same, flat; None where a result is absent.
    workspace : int
        Bytes of scratch memory of the algorithm that the options in force choose.
    """

    output: Any
    outputs: tuple[Spec | None, ...]
    workspace: int


@frozen
class Question:
    """A call that was described but not made."""

    operation: Operation
    problem: Problem
    engine: Engine
    arrays: tuple[Any, ...]
    runtime: tuple[Any, ...]
    algorithm: str | None

    def rank(self) -> list[Judged]:
        """The candidates as the call itself would judge them: by measured times where there are some."""
        self.engine.look_on_disk(self.operation, self.problem)
        device = self.engine.device_for(self.arrays)
        return rank(self.problem, device, current(), self.engine.methods(self.operation), self.measured())

    def measured(self) -> dict[str, float] | None:
        """Milliseconds by algorithm from the tuning table."""
        return tuning.measured(self.problem, self.engine.device(), current())


def question(op: Any, arrays: tuple[Any, ...], options: dict[str, Any]) -> Question:
    """Check a call's arguments without making it; `options` may name an algorithm."""
    operation = find(op)
    algorithm = options.pop("algorithm", None)
    bound, chosen = operation.bind(arrays, options)
    bound = with_numbers(operation, bound)
    specs = tuple(_specs(operation, name, array) for name, array in zip(operation.arrays, bound, strict=True))
    problem = operation.problem(specs, {n: freeze(v) for n, v in chosen.items() if n in operation.static})
    engine = engine_of(bound, current().specs_on)
    names = [m.name for m in engine.methods(operation)]
    if algorithm is not None and not (isinstance(algorithm, str) and algorithm in names):
        fail_choice(operation.name, "algorithm", algorithm, names)
    runtime = tuple(0 if chosen[n] is inspect.Parameter.empty else chosen[n] for n in operation.runtime)
    views = tuple(tree_map(_view, array) for array in bound)
    return Question(operation, problem, engine, views, runtime, algorithm)


def _view(array: Any) -> Any:
    """The array as the engine's own; a `Spec` stays what it is."""
    return array if isinstance(array, Spec) else engine_view(array)


def _specs(operation: Operation, name: str, array: Any) -> Any:
    """The spec of an argument, or those of all of its arrays where it is nested."""
    describe = partial(spec_of, where=f"{operation.name}: {name}")
    return tree_map(describe, array) if name in operation.nested or array is None else describe(array)


@untraced
def infer(op: Any, *arrays: Any, **options: Any) -> Inference:
    """Shapes and dtypes of the results and the workspace of a call, from shapes and dtypes alone.

    Parameters
    ----------
    op : callable or str
        A public function of dnnarray, or its name.
    *arrays : array, Spec or option
        The arrays of the call in signature order, None where omitted, and options in the places where `vjp` takes them.
        Only shape, dtype and strides of the arrays are looked at.
    **options
        Everything else, by name.

    Returns
    -------
    Inference
        ``output`` in the form of the call's result, ``outputs`` flat, ``workspace`` in bytes.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As the call itself would.

    Examples
    --------
    >>> import dnnarray as dnn
    >>> dnn.infer("relu", dnn.Spec((2, 3), "float32")).output.shape
    (2, 3)
    """
    asked = question(op, arrays, options)
    problem, engine = asked.problem, asked.engine
    table = engine.methods(asked.operation)
    chosen = choose(problem, engine.device(), current(), table, asked.algorithm, asked.measured())
    returns: Callable[..., Any] = problem.returns or (lambda *outputs: outputs[0])
    return Inference(returns(*problem.outputs), problem.outputs, chosen.workspace(problem))


@untraced
def algorithms(op: Any, *arrays: Any, **options: Any) -> list[Algorithm]:
    """The algorithms that may run a call, best first.

    Parameters
    ----------
    op : callable or str
        A public function of dnnarray, or its name.
    *arrays : array, Spec or option
        The arrays of the call in signature order, None where omitted, and options in the places where `vjp` takes them.
    **options
        Everything else, by name.

    Returns
    -------
    list of Algorithm
        Each with ``name``, ``workspace`` (bytes), ``deterministic``, ``precision``, ``rounds`` and ``predicted_ms``.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As the call itself would.

    Examples
    --------
    >>> import dnnarray as dnn
    >>> [a.name for a in dnn.algorithms("glu", dnn.Spec((4,), "float32"))]
    ['elementwise']
    """
    return [j.algorithm for j in question(op, arrays, options).rank() if j.reason is None]


@frozen
class Described:
    """What a copied report knows of an algorithm."""

    summary: str


@frozen
class Explanation:
    """A printable report on the choice of an algorithm; ``str(...)`` gives its text."""

    problem: Problem
    device: Device
    candidates: list[Judged]

    def __str__(self) -> str:
        return "\n".join([*self._head(), "", *self._table()])

    __repr__ = __str__

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, that of another process too, says the same; the algorithms themselves, which are functions of this
        process, stay behind."""
        return Explanation, (self.problem, self.device, [_copied(j) for j in self.candidates])

    def _head(self) -> list[str]:
        flops, moved = self.problem.flops, self.problem.bytes
        peak = self.device.peak["float32"]
        arithmetic, memory = flops / peak * 1e3, moved / self.device.bandwidth * 1e3
        bound = "arithmetic" if arithmetic > memory else "memory"
        return [
            f"{self.problem.op}: {self.problem.legend()}",
            f"on {self.device.name}: {peak / 1e9:,.0f} GFLOP/s float32, {self.device.bandwidth / 1e9:,.0f} GB/s",
            f"roofline: {flops:,} operations take {arithmetic:.3g} ms, {moved:,} bytes take {memory:.3g} ms: bound "
            f"by {bound}",
        ]

    def _table(self) -> list[str]:
        rows = [("", "algorithm", "ms", "workspace", "numerics", "why")]
        best = next((j for j in self.candidates if j.reason is None), None)
        rows += [self._row(j, best) for j in self.candidates]
        widths = [max(len(r[i]) for r in rows) for i in range(5)]
        return ["  ".join([*(r[i].ljust(widths[i]) for i in range(5)), r[5]]).rstrip() for r in rows]

    def _row(self, judged: Judged, best: Judged | None) -> tuple[str, str, str, str, str, str]:
        a = judged.algorithm
        if judged.reason is not None:
            return ("-", a.name, "", "", "", f"left out: {judged.reason}")
        if judged is best:
            why = f"taken: the shortest time, {_source(judged)}; {judged.method.summary}"
        else:
            times = _milliseconds(a) / _milliseconds(best.algorithm) if best else 1.0
            why = f"{times:.3g} times the best, {_source(judged)}; {judged.method.summary}"
        numerics = f"{a.precision}{', rounds' * a.rounds}"
        return (
            "*" if judged is best else " ",
            a.name,
            f"{_milliseconds(a):.4g}",
            f"{a.workspace:,}",
            numerics,
            why.rstrip("; "),
        )


def _copied(judged: Judged) -> Judged:
    method: Any = Described(judged.method.summary)
    return replace(judged, method=method)


def _milliseconds(algorithm: Algorithm) -> float:
    return algorithm.predicted_ms if algorithm.measured_ms is None else algorithm.measured_ms


def _source(judged: Judged) -> str:
    """Where a candidate's time comes from."""
    if judged.algorithm.measured_ms is not None:
        return "measured"
    return "predicted and corrected by this card's measured times" if judged.corrected else "predicted"


@untraced
def explain(op: Any, *arrays: Any, **options: Any) -> Explanation:
    """Why a call runs by the algorithm it does: the candidates, the verdict on each, and the roofline they were held
    against.

    Parameters
    ----------
    op : callable or str
        A public function of dnnarray, or its name.
    *arrays : array, Spec or option
        The arrays of the call in signature order, None where omitted, and options in the places where `vjp` takes them.
    **options
        Everything else, by name.

    Returns
    -------
    Explanation
        Prints as a report; ``problem``, ``device`` and ``candidates`` hold what it was made of.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As the call itself would.

    Examples
    --------
    >>> import dnnarray as dnn
    >>> print(dnn.explain("relu", dnn.Spec((4,), "float32")))  # doctest: +ELLIPSIS
    relu: float32[4]
    ...
    * ...elementwise...
    """
    asked = question(op, arrays, options)
    return Explanation(asked.problem, asked.engine.device(), asked.rank())
