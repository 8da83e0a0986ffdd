"""Calls under `jax.vmap`: arrays come with axes before those of the operation, of extent 1 where an array is the same
for the whole batch.

An operation whose rows are independent of each other runs once on all of them. Any other runs once for each element of
the batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from dnnarray._call.operation import find
from dnnarray._errors import DTypeError, OptionError, ShapeError, UnsupportedError
from dnnarray._spec import Spec
from dnnarray.interop.jax.call import Call, arrays_of

Run = Callable[[Call, list[Any], list[Any]], None]  # computes a call of arrays, of which the last are its results
_BACKWARD = "_backward"
_UNARY = (
    "relu relu6 clipped_relu leaky_relu elu selu celu sigmoid hard_sigmoid log_sigmoid tanh hard_tanh softplus "
    "softsign gelu silu "
    "hard_swish mish threshold glu softmax log_softmax softmin layer_norm rms_norm"
)
_IMAGES = (
    "conv_transpose unfold fold max_pool max_pool_with_indices avg_pool lp_pool adaptive_avg_pool adaptive_max_pool "
    "adaptive_max_pool_with_indices group_norm instance_norm local_response_norm prelu interpolate pixel_shuffle "
    "pixel_unshuffle "
    "channel_shuffle rotary_embedding"
)
# Operations that take any leading axes, each with the arrays that have them.
_LEADING = {
    **{name: {"x"} for name in _UNARY.split()},
    **{name: {"gate", "x"} for name in ("swiglu", "geglu")},
    **{name: {"x", "residual"} for name in ("linear", "add_layer_norm", "add_rms_norm")},
    **{name: {"indices"} for name in ("embedding", "one_hot")},
}
# Operations that treat all places along the first axis of these arrays alike.
_FIRST = {
    **{name: {"x"} for name in _IMAGES.split()},
    **{name: {"x", "residual"} for name in ("conv", "batch_norm", "bias_activation")},
    "max_unpool": {"x", "indices"},
    "grid_sample": {"x", "grid"},
    "attention": {"q", "k", "v"},
}
# What has these axes in gradients besides.
_OF_GRADIENTS = {"grad", "y", "rstd", "output", "lse"}
_SAVED = {
    **{name: {"mean"} for name in ("layer_norm", "group_norm", "instance_norm")},
    **{f"{name}{more}": {"indices"} for name in ("max_pool", "adaptive_max_pool") for more in ("", "_with_indices")},
}


def run(call: Call, flat: list[Any], out: list[Any], compute: Run) -> None:
    """Run a call by `compute` on arrays that `jax.vmap` has put axes before."""
    prefix = out[0].shape[: out[0].ndim - call.outputs[0].ndim]
    axes = len(prefix)
    shared = tuple(all(n == 1 for n in array.shape[:axes]) for array in flat)
    whole = tuple(array.shape[:axes] == prefix for array in flat)
    once = _at_once(call, prefix, shared, whole)
    if once is not None:
        given = [a.reshape(spec.shape) for a, spec in zip(flat, once.inputs, strict=True)]
        compute(once, given, [o.reshape(spec.shape) for o, spec in zip(out, once.outputs, strict=True)])
        return
    for index in np.ndindex(prefix):
        compute(call, [_element(a, index) for a in flat], [o[(*index, ...)] for o in out])


def _element(array: Any, index: tuple[int, ...]) -> Any:
    """The part of an array for an element of the batch; where the array is shared, all of it."""
    return array[(*(0 if n == 1 else i for i, n in zip(index, array.shape, strict=False)), ...)]


@lru_cache(maxsize=4096)
def _at_once(call: Call, prefix: tuple[int, ...], shared: tuple[bool, ...], whole: tuple[bool, ...]) -> Call | None:
    """The call on the whole batch; None where the rows depend on each other, or random numbers on their places."""
    operation, count = call.operation, int(np.prod(prefix, dtype=np.int64))
    forward = operation.base.removesuffix(_BACKWARD)
    leading = forward in _LEADING
    rows = _rows(call, forward)
    if not rows or call.drawn or call.problem.needs_seed or not set(_results(call, forward)) <= rows:
        return None
    inputs: list[Any] = []
    place = 0
    for name, tree in zip(operation.arrays, call.arrays, strict=True):
        for spec in arrays_of(tree):
            if not (whole if name in rows else shared)[place]:
                return None
            inputs.append(_grown(spec, count, leading) if name in rows else spec)
            place += 1
    if None in inputs or (leading and "axis" in call.options and any(spec.ndim == 0 for spec in call.inputs)):
        return None  # there is no axis that the batch could stand in, or the axis would be that of the batch
    options = _shifted(call) if leading else call.options
    if (
        not leading
        and isinstance(axis := options.get("axis"), int)
        and axis % max(spec.ndim for spec in call.inputs) == 0
    ):
        return None
    try:
        found = call.changed(inputs, options)
        expected = [_grown(spec, count, leading) for spec in call.outputs]
        return (
            found
            if [(s.shape, s.dtype) for s in found.outputs] == [s and (s.shape, s.dtype) for s in expected]
            else None
        )
    except (ShapeError, DTypeError, OptionError, UnsupportedError):
        return None


def _rows(call: Call, forward: str) -> set[str]:
    """The arrays that have an axis along which the operation treats all alike."""
    rows = _LEADING.get(forward) or _FIRST.get(forward) or set()
    if rows and call.operation.base != forward:
        return rows | _OF_GRADIENTS | _SAVED.get(forward, set())
    return rows


def _results(call: Call, forward: str) -> tuple[str, ...]:
    """The arrays of which a gradient gives the gradients; nothing for an operation that is no gradient."""
    if call.operation.base == forward:
        return ()
    problem = call.problem
    if not problem.fields:
        return find(forward).gradients[:1]
    return tuple(field for field, spec in zip(problem.fields, problem.outputs, strict=True) if spec is not None)


def _grown(spec: Spec, count: int, leading: bool) -> Spec | None:
    """An array with the batch as an axis of its own before the others, or within the first."""
    if leading:
        return Spec((count, *spec.shape), spec.dtype)
    return Spec((count * spec.shape[0], *spec.shape[1:]), spec.dtype) if spec.ndim else None


def _shifted(call: Call) -> dict[str, Any]:
    """The options, with axes counted from the front one further on."""
    axis = call.options.get("axis")
    if isinstance(axis, int):
        return call.options | {"axis": axis + (axis >= 0)}
    return call.options | {"axis": tuple(a + (a >= 0) for a in axis)} if isinstance(axis, tuple) else call.options
