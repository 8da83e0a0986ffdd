"""Choosing a convolution's algorithm on a made-up H200: what the choice leaves out must not change it."""

import itertools
import random
from functools import partial

import pytest

import dnnarray as dnn
from asv_bench import selection
from dnnarray._call import operation as _operation
from dnnarray._cuda.conv import ALGORITHMS
from dnnarray._options import DEFAULT
from dnnarray._select import choose, rank
from dnnarray._select.choose import predict

H200 = selection.H200


def _problem(name, arrays, options):
    op = _operation.find(name)
    specs, chosen = op.bind(arrays, options)
    return op.problem(specs, {n: v for n, v in chosen.items() if n in op.static})


def _check(name, make):
    """The choice is the first of the ranking, floors are no higher than predictions, and what is unfit is rejected; a
    problem remembers, so each look takes a new one."""
    table = ALGORITHMS[name]
    judged = rank(make(), H200, DEFAULT, table)
    assert choose(make(), H200, DEFAULT, table) is judged[0].method
    for j in judged:
        assert j.reason or not (j.method.unfit and j.method.unfit(make().inputs[0].dtype, H200)), j.method.name
        if j.reason is None and j.method.floor is not None:
            assert j.method.floor(make(), H200) <= predict(make(), H200, j.cost) * (1 + 1e-9), j.method.name


def test_drawn_convolutions_and_gradients():
    for drawn in itertools.islice(selection.draw(3), 200):
        _check(drawn.op, drawn.problem)


def _drawn(rng, dtype, shape):
    """Channels-last in memory, or in C order."""
    if rng.random() < 0.3:
        return dnn.Spec(shape, dtype)
    n, *space, channel = dnn.Spec((shape[0], *shape[2:], shape[1]), dtype).c_strides
    return dnn.Spec(shape, dtype, (n, channel, *space))


def _combined(seed):
    """Operations of two or three maps, with groups of different widths, strides and padding beyond the window."""
    rng = random.Random(seed)
    while True:
        groups, dtype, side = rng.choice((1, 2, 8, 32)), rng.choice(("bfloat16", "float16")), rng.choice((1, 3, 5, 7))
        c, k = (rng.choice((1, 2, 4, 8, 16, 64)) * groups for _ in range(2))
        extent = rng.randint(15, 60)
        padding = rng.choice((0, 1, side // 2, side + 2))
        options = {
            "padding": padding,
            "stride": rng.choice((1, 1, 2, 3)),
            "dilation": rng.choice((1, 1, 2)),
            "groups": groups,
        }
        if (side - 1) * options["dilation"] >= extent + 2 * padding or 2 * padding >= extent:
            continue

        x = _drawn(rng, dtype, (rng.randint(1, 20), c, extent, extent))
        for name, shape in (("conv", (k, c // groups, side, side)), ("conv_transpose", (c, k // groups, side, side))):
            w = _drawn(rng, dtype, shape)
            grad = _drawn(rng, dtype, dnn.infer(name, x, w, **options).output.shape)
            yield f"{name}_backward", (grad, x, w), options | rng.choice(({}, {"activation": "relu"}))
            yield name, (x, w), options


def test_operations_of_several_maps():
    for name, arrays, options in itertools.islice(_combined(5), 240):
        _check(name, partial(_problem, name, arrays, options))


@pytest.mark.parametrize(
    ("c", "k", "activation", "fits"), [(16, 2, None, False), (2, 16, None, True), (2, 16, "relu", False)]
)
def test_groups_whose_gradient_does_not_fit_are_refused(c, k, activation, fits):
    """Groups of 16 and 2 channels with windows of 7 x 7: one way round fits into shared memory, the other does not, and
    the forward is formed for an activation."""
    x, w = dnn.Spec((13, 32 * c, 39, 39), "float16"), dnn.Spec((32 * k, c, 7, 7), "float16")
    grad = dnn.Spec((13, 32 * k, 33, 33), "float16")
    make = partial(_problem, "conv_backward", (grad, x, w), {"groups": 32, "activation": activation})
    _check("conv_backward", make)
    grouped = next(j for j in rank(make(), H200, DEFAULT, ALGORITHMS["conv_backward"]) if j.method.name == "grouped")
    assert grouped.reason is None if fits else "does not fit into shared memory" in grouped.reason
