"""Calls drawn at random, told without data: the cases with other extents and options, and convolutions with everything
that gradients make of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

import dnnarray as dnn
from dnnarray._call.operation import find, operations
from dnnarray._problems.base import leaves, tree_map
from dnnarray._problems.needs import NEEDS
from dnnarray._spec import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Spec
from tests.problems import Call
from tests.registry import CASES
from tests.support import Case

EXTENTS = (0, 1, 1, 2, 3, 5)
_DTYPES = (FLOAT64, FLOAT32, FLOAT16, BFLOAT16)
_STEPS, _PADDING = (1, 2, 3, 5), (0, 1, 2, 3)
_REFUSALS = (dnn.ShapeError, dnn.OptionError, dnn.DTypeError, dnn.UnsupportedError)


def calls(seed: int, count: int) -> Iterator[Call]:
    """So many calls that an operation takes, each with its gradient; what is refused by name is drawn again."""
    rng = random.Random(seed)
    while count > 0:
        try:
            found = list(_convolution(rng) if rng.random() < 0.4 else _changed(rng))
            for call in found:
                call.problem()
            found += [_wanting(rng, call) for call in found if NEEDS in find(call.op).defaults]
        except _REFUSALS:
            continue
        count -= len(found)
        yield from found


def _wanting(rng: random.Random, call: Call) -> Call:
    """The same call for one or some of its gradients."""
    problem = call.problem()
    names = [name for name, spec in zip(problem.fields, problem.outputs, strict=True) if spec is not None]
    needs = tuple(rng.sample(names, rng.randint(1, len(names))))
    return call._replace(options=call.options | {NEEDS: needs})


def _call(op: str, arrays: tuple[Any, ...], options: dict[str, Any]) -> Call:
    return Call(op, *find(op).bind(arrays, options))


def _changed(rng: random.Random) -> Iterator[Call]:
    """A case whose extents are others; those that were equal stay so, since most of them must."""
    case: Case = rng.choice(CASES)
    dtype: np.dtype = rng.choice(case.dtypes)
    arrays = case.draw(dtype)
    others = {n: rng.choice(EXTENTS) for a in leaves(arrays) for n in a.shape if rng.random() < 0.6}

    def extents(shape: Any) -> Any:
        return tree_map(lambda n: others.get(n, n), shape)

    specs = tree_map(lambda a: Spec(extents(a.shape), a.dtype), arrays)
    call = _call(case.op, specs, dict(_options(rng, case, extents)))
    yield call
    if case.gradient and f"{call.base}_backward" in operations():
        backward = call.backward(leaves(call.problem().outputs)[0])
        if backward is not None:
            yield backward


def _options(rng: random.Random, case: Case, extents: Any) -> Iterator[tuple[str, Any]]:
    defaults = find(case.op).defaults
    for name, value in case.options.items():
        if name in ("output_size", "size") and rng.random() < 0.5:  # they need not be an extent of an array
            yield name, tree_map(lambda _: rng.choice(EXTENTS), value)
        else:
            yield name, extents(value) if name.endswith("shape") or name in ("output_size", "size") else value
    for name, values in (("stride", _STEPS), ("dilation", _STEPS), ("padding", _PADDING), ("kernel_size", _STEPS)):
        if name in defaults and rng.random() < 0.5:
            yield name, rng.choice(values)


def _convolution(rng: random.Random) -> Iterator[Call]:
    """A convolution or a transposed one, with all its gradients and each alone."""
    op, rank, groups = rng.choice(("conv", "conv_transpose")), rng.choice((1, 2, 3)), rng.choice((1, 1, 2, 4))
    c, k = (groups * rng.choice((*EXTENTS, 8)) for _ in range(2))
    space, window = ([rng.choice(values) for _ in range(rank)] for values in (EXTENTS, (1, 1, 2, 3, 5, 7)))
    options: dict[str, Any] = {name: tuple(rng.choice(_STEPS) for _ in range(rank)) for name in ("stride", "dilation")}
    options["padding"] = tuple((rng.choice(_PADDING), rng.choice(_PADDING)) for _ in range(rank))
    options |= {"groups": groups, "layout": rng.choice(("channels_first", "channels_last"))}
    last = options["layout"] == "channels_last"
    n, (outer, inner) = rng.choice(EXTENTS), (k, c // groups) if op == "conv" else (c, k // groups)
    dtype = rng.choice(_DTYPES)
    x = Spec((n, *space, c) if last else (n, c, *space), dtype)
    weight = Spec((outer, *window, inner) if last else (outer, inner, *window), dtype)
    grad = dnn.infer(op, x, weight, **options).output
    activation = {"activation": rng.choice((None, "relu", "gelu"))}
    yield _call(op, (x, weight), options | activation)
    bias = rng.choice((None, Spec((k,), dtype)))
    yield _call(f"{op}_backward", (grad, x, weight, bias), options | activation)
    if op == "conv":
        yield _call("conv_backward_input", (grad, weight), options | {"input_shape": x.shape})
        yield _call("conv_backward_weight", (grad, x), options | {"weight_shape": weight.shape})
