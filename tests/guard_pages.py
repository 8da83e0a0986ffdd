"""Every compiled algorithm on every case, forward and gradient, with all arrays beside a page that must not be touched:
a read or a write too far ends the process.

    python -m tests.guard_pages --at end [--only conv] [--dtype float32]

writes a line before each call, so that the last one names what died, and at the end how many calls there were and which
kernels none of them started."""

from __future__ import annotations

import argparse
import inspect
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

import dnnarray as dnn
from dnnarray._call.dispatch import dispatch
from dnnarray._call.operation import find, operations
from dnnarray._cpu import engine
from dnnarray._cpu.compiled import Compiled, units
from dnnarray._cpu.compiled.kernel import Kernel
from dnnarray._problems.base import leaves, tree_map
from dnnarray._problems.needs import NEEDS
from dnnarray._spec import FLOATING
from dnnarray._vjp import _by_name
from tests.fuzz.memory import Layout, Pages, Placed, dense, packed
from tests.registry import CASES
from tests.support import Case, candidates, normal, uniform


def compiled_algorithms() -> dict[str, dict[str, Compiled]]:
    """The compiled algorithms of each operation that has any."""
    tables = {op.base: engine.methods(op) for op in operations().values() if op.name == op.base}
    found = {op: {m.name: m.run for m in table if isinstance(m.run, Compiled)} for op, table in tables.items()}
    return {op: runs for op, runs in found.items() if runs}


class Guarded:
    """Makes calls on arrays at the end, or at the begin, of memory."""

    def __init__(self, at_end: bool) -> None:
        self._place = Pages(at_end)

    def array(self, values: np.ndarray, strides: tuple[int, ...] | None = None) -> np.ndarray:
        layout = dense(values.shape) if strides is None else Layout(strides)
        return Placed(self._place, values.shape, values.dtype, layout).holding(values).array

    def run(self, op: str, arrays: tuple[Any, ...], options: dict[str, Any], algorithm: str) -> list[np.ndarray]:
        """The results, which lie beside such pages too, as scratch memory does."""
        operation = find(op)
        found = dnn.infer(op, *arrays, algorithm=algorithm, **options)
        out = tuple(self.array(_nothing(spec), spec.strides) for spec in leaves(found.outputs))
        scratch = self.array(np.full(found.workspace, 255, np.uint8))
        bound, chosen = operation.bind(arrays, options)
        static, runtime = (tuple(chosen[n] for n in names) for names in (operation.static, operation.runtime))
        dispatch(operation, bound, static, runtime, out, scratch, algorithm)
        return list(out)


def _nothing(spec: Any) -> np.ndarray:
    return np.full(spec.shape, np.nan if spec.dtype in FLOATING else -1).astype(spec.dtype)


# For kernels that no case is large enough for.
_LARGER = [
    Case("conv", "pointwise", (normal(2, 37, 5, 3), normal(19, 37, 1, 1), normal(19), None)),
    Case("conv", "pointwise-rows", (normal(2, 45, 301), normal(21, 45, 1), None, None)),
    Case("conv", "nine-taps", (normal(2, 3, 21, 41), normal(3, 1, 3, 3), normal(3), None), {"groups": 3, "padding": 1}),
    Case(
        "conv",
        "tiles",
        (normal(2, 17, 13, 19), normal(35, 17, 3, 3), normal(35), None),
        {"padding": 1, "activation": "relu"},
    ),
    Case("conv", "many-channels", (normal(1, 70, 9, 11), normal(70, 70, 3, 3), None, None), {"padding": 1}),
    Case(
        "conv_backward_weight",
        "tiles",
        (normal(2, 16, 12, 13), normal(2, 9, 12, 13)),
        {"weight_shape": (16, 9, 3, 3), "padding": 1},
    ),
    Case(
        "conv", "strided", (normal(1, 24, 15, 17), normal(33, 24, 3, 2), None, None), {"padding": 2, "stride": (2, 3)}
    ),
    Case(
        "max_pool_with_indices",
        "many-windows",
        (normal(2, 11, 9, 9),),
        {"kernel_size": 7, "stride": 1, "padding": 3, "layout": "channels_last"},
    ),
    Case("grid_sample", "images-left", (normal(3, 5, 21, 23), uniform(-1.1, 1.1, 3, 61, 59, 2))),
]


def calls(case: Case, dtype: np.dtype) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """The call of a case, and those of its gradient: of all arrays, of each array alone, and of all from what the
    forward saved."""
    arrays, op = case.draw(dtype), find(case.op)
    yield op.base, arrays, case.options
    backward = operations().get(f"{op.base}_backward")
    if backward is None or not case.gradient:
        return
    head = leaves(dnn.infer(case.op, *arrays, **case.options).outputs)[0]
    grad = np.random.default_rng(0).standard_normal(head.shape).astype(head.dtype)
    options = {n: v for n, v in case.options.items() if n in backward.defaults}
    yield backward.name, (grad, *arrays), options
    for name in _several(op, backward, (grad, *arrays), options):
        yield backward.name, (grad, *arrays), options | {NEEDS: (name,)}
    if op.save is not None:
        bound, chosen = op.bind(arrays, case.options)
        saved = op.save(*bound, **{n: v for n, v in chosen.items() if v is not inspect.Parameter.empty})[1]
        given = dict(zip(op.arrays, bound, strict=True)) | saved
        yield backward.name, (grad, *(given.get(n) for n in backward.arrays[1:])), options


def _several(forward: Any, backward: Any, arrays: tuple[Any, ...], options: dict[str, Any]) -> list[str]:
    """The arrays that a backward gives gradients of, where it can be asked for some of them only."""
    if NEEDS not in backward.defaults:
        return []
    gradients = _by_name(forward, dnn.infer(backward.name, *arrays, **options).output)
    return [name for name, spec in gradients.items() if leaves(spec)]


def lying(guarded: Guarded, arrays: tuple[Any, ...], channels_inner: bool) -> tuple[Any, ...]:
    """The arrays beside pages in C order, or images with their channels innermost in memory."""

    def placed(array: np.ndarray) -> np.ndarray:
        inner = channels_inner and array.ndim > 2
        order = (0, *range(2, array.ndim), 1) if inner else range(array.ndim)
        return guarded.array(array, packed(array.shape, order))

    return tuple(tree_map(placed, a) for a in arrays)


def run_all(at_end: bool, dtype: np.dtype, words: list[str]) -> tuple[Counter[tuple[str, str]], set[str]]:
    """How often each algorithm ran, and the kernels that did not."""
    guarded, counts, started, algorithms = (
        Guarded(at_end),
        Counter[tuple[str, str]](),
        set[str](),
        compiled_algorithms(),
    )
    tables = [engine.methods(find(op)) for op in algorithms if any(word in op for word in words)]
    for unit in units(tables, [dtype.name]):
        unit.wait()
    kernels = every_kernel(words)
    _note_starts(kernels, started)
    for case in [*CASES, *_LARGER]:
        if not any(word in case.op for word in words) or dtype not in case.dtypes:
            continue
        for op, arrays, options in calls(case, dtype):
            for channels_inner in (False, True):
                lain = lying(guarded, arrays, channels_inner)
                for name in candidates(op, lain, options) if op in algorithms else ():
                    if name not in algorithms[op]:
                        continue
                    print(f"{op} {name} {case} {dtype.name} {'channels inner' if channels_inner else ''}", flush=True)
                    guarded.run(op, lain, options, name)
                    counts[op, name] += 1
    return counts, set(kernels) - started


def _note_starts(kernels: dict[str, Kernel], started: set[str]) -> None:
    """Write down which kernels are started, by one thread or by several."""

    def noted(name: str, run: Any) -> Any:
        def start(*arguments: Any) -> Any:
            started.add(name)
            return run(*arguments)

        return start

    for name, kernel in kernels.items():
        kernel.run, kernel._spread = noted(name, kernel.run), kernel._spread and noted(name, kernel._spread)


def every_kernel(words: list[str]) -> dict[str, Kernel]:
    """The kernels that the algorithms of operations with such names may start on this machine, by name."""
    tables = [table for op, table in compiled_algorithms().items() if any(word in op for word in words)]
    runs = [run for table in tables for run in table.values() if run.target("float32") is None]
    kernels = [kernel for run in runs for kernel in run.function.kernels]
    return {f"{k.run.py_func.__module__.rpartition('.')[2]}.{k.run.py_func.__name__}": k for k in kernels}


def main() -> None:
    parser = argparse.ArgumentParser(description="Every compiled algorithm beside pages that must not be touched.")
    parser.add_argument("--at", choices=("end", "begin"), default="end")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    with dnn.options(threads=2, float32_precision="medium"):  # those that are less exact too
        counts, idle = run_all(arguments.at == "end", np.dtype(arguments.dtype), arguments.only.split(","))
    for (op, name), count in sorted(counts.items()):
        print(f"ran: {op} {name} {count}")
    print(f"not started: {' '.join(sorted(idle))}")
    print(f"done: {sum(counts.values())} calls")


if __name__ == "__main__":
    main()
