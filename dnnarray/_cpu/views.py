"""Warm calls on arrays of another library, in the memory of the processor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from dnnarray._problems.base import tree_map
from dnnarray._spec import Spec

if TYPE_CHECKING:
    from dnnarray._cpu.engine import Prepared
    from dnnarray._engine.doors import Views


def by_views(prepared: Prepared, way: Views) -> Callable[..., Any]:
    """What `Prepared.warm` is, for arrays that `way` gives views of; without memory of the caller's, and None for
    arrays that have none."""
    arguments = len(prepared.op.arrays)  # a problem can have places for arrays that its operation does not take
    inputs, outputs, pack = prepared.problem.inputs[:arguments], prepared.outputs, prepared.pack
    makers = [way.maker(output, inputs) for output in outputs]
    of_results = [way.view(output.dtype) for output in outputs]
    of_arrays = [_viewing(way, spec) for spec in inputs]

    def warm(runtime: tuple[Any, ...], out: Any, workspace: Any, *arrays: Any) -> Any:
        if out is not None or workspace is not None:
            return None
        try:
            views = tuple([None if view is None else view(a) for view, a in zip(of_arrays, arrays, strict=True)])
        except (TypeError, RuntimeError):  # the general way says what is wrong
            return None
        results = prepared.made(makers, arrays)
        prepared.into([view(r) for view, r in zip(of_results, results, strict=True)], views, runtime)
        return results[0] if pack is None else pack(*prepared.placed(results))

    return warm


def _viewing(way: Views, spec: Any) -> Callable[[Any], Any] | None:
    """What gives the views of an argument; None for one that is omitted."""
    if spec is None:
        return None
    return way.view(spec.dtype) if isinstance(spec, Spec) else partial(tree_map, way.view(None))
