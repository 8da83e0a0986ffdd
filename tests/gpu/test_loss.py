"""Losses on a card: long rows and odd extents, memory orders, labels out of range, the same bits at every run."""

import numpy as np
import pytest

import dnnarray as dnn
from tests.support import BFLOAT16, assert_close

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu

_DTYPES = [np.float32, np.float16, BFLOAT16, np.float64]


def _both(op, arrays, *, rtol_terms, **options):
    """A call on the device against the CPU engine in float64."""
    wide = [a.astype(np.float64) if a.dtype.kind not in "iu" else a for a in arrays]
    there = [cupy.asarray(a) for a in arrays]
    actual, expected = getattr(dnn, op)(*there, **options), getattr(dnn, op)(*wide, **options)
    assert_close(cupy.asnumpy(actual), expected, rtol_terms, 1.0, op)
    again = getattr(dnn, op)(*there, **options)
    assert cupy.asnumpy(actual).tobytes() == cupy.asnumpy(again).tobytes()


@pytest.mark.parametrize("dtype", _DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("classes", [1, 2, 7, 8, 33, 129, 1000, 1001, 4099, 8192, 20_011, 50_257, 128_256])
def test_rows_of_any_length(classes, dtype):
    rng = np.random.default_rng(classes)
    rows = 5 if classes > 10_000 else 37
    z = (3 * rng.standard_normal((rows, classes))).astype(dtype)
    t = rng.integers(0, classes, rows)
    t[1] = -100
    _both("cross_entropy", (z, t), rtol_terms=classes)
    _both("cross_entropy", (z, t), rtol_terms=classes, label_smoothing=0.1, reduction="none")
    _both("cross_entropy_backward", (np.array(1.5, dtype), z, t), rtol_terms=classes)
    _both(
        "cross_entropy_backward",
        (np.ones(rows, dtype), z, t),
        rtol_terms=classes,
        label_smoothing=0.1,
        reduction="none",
    )


@pytest.mark.parametrize("dtype", _DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", [(3, 21, 17, 30), (2, 150, 64, 3), (300, 5, 2, 3)])
def test_classes_before_space(shape, dtype):
    rng = np.random.default_rng(1)
    z = rng.standard_normal(shape).astype(dtype)
    t = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    count = t.size
    _both("cross_entropy", (z, t), rtol_terms=count)
    _both("cross_entropy_backward", (np.array(1.5, dtype), z, t), rtol_terms=count)
    _both("nll_loss", (z, t), rtol_terms=count, ignore_index=1)
    _both("nll_loss_backward", (np.array(1.5, dtype), z, t), rtol_terms=count)


def test_many_rows():
    rng = np.random.default_rng(2)
    z = rng.standard_normal((100_003, 3)).astype(np.float32)
    t = rng.integers(0, 3, 100_003)
    _both("cross_entropy", (z, t), rtol_terms=100_003)
    _both("cross_entropy_backward", (np.array(1.0, np.float32), z, t), rtol_terms=100_003)


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (1, 0, 2, 3), (3, 2, 1, 0)])
def test_scores_in_any_memory_order(order):
    rng = np.random.default_rng(3)
    packed = rng.standard_normal([(4, 5, 6, 7)[a] for a in order]).astype(np.float32)
    z, t = packed.transpose(np.argsort(order)), rng.integers(0, 5, (4, 6, 7))
    there = cupy.asarray(packed).transpose(tuple(np.argsort(order).tolist()))
    g = np.float32(rng.standard_normal(t.shape))
    for reduction in ("none", "mean"):
        actual = dnn.cross_entropy(there, cupy.asarray(t), reduction=reduction)
        assert_close(cupy.asnumpy(actual), dnn.cross_entropy(z.astype(np.float64), t, reduction=reduction), 168)
        grad = g if reduction == "none" else np.float32(2)
        actual = dnn.cross_entropy_backward(cupy.asarray(grad), there, cupy.asarray(t), reduction=reduction)
        expected = dnn.cross_entropy_backward(grad.astype(np.float64), z.astype(np.float64), t, reduction=reduction)
        assert_close(cupy.asnumpy(actual), expected, 168)


def test_a_label_out_of_range_gives_nan():
    z, t = cupy.ones((4, 3), np.float32), cupy.asarray([0, 3, -1, 2])
    for op in (dnn.cross_entropy, dnn.nll_loss):
        assert cupy.asnumpy(cupy.isnan(op(z, t, reduction="none"))).tolist() == [False, True, True, False]
        assert bool(cupy.isnan(op(z, t)))
    gradient = dnn.cross_entropy_backward(cupy.ones(4, np.float32), z, t, reduction="none")
    assert cupy.asnumpy(cupy.isnan(gradient).all(axis=1)).tolist() == [False, True, True, False]


def _ctc(steps, batch, classes, longest, dtype, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((steps, batch, classes))
    z -= np.log(np.exp(z).sum(-1, keepdims=True))
    counts = rng.integers(0, longest + 1, batch)
    return (
        z.astype(dtype),
        rng.integers(1, classes, (batch, longest)),
        rng.integers(steps // 2, steps + 1, batch),
        counts,
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(
    "steps, batch, classes, longest", [(50, 5, 20, 20), (130, 3, 7, 40), (80, 70, 5, 9), (1300, 2, 30, 600)]
)
def test_ctc(steps, batch, classes, longest, dtype):
    z, targets, lengths, counts = _ctc(steps, batch, classes, longest, dtype)
    for reduction in ("none", "mean", "sum"):
        _both(
            "ctc_loss", (z, targets, lengths, counts), rtol_terms=steps * steps, reduction=reduction, zero_infinity=True
        )
        grad = np.ones(batch if reduction == "none" else (), dtype)
        options = {"reduction": reduction, "zero_infinity": True}
        _both("ctc_loss_backward", (grad, z, targets, lengths, counts), rtol_terms=(steps * 16) ** 2, **options)


def test_ctc_with_the_batch_first_in_memory():
    z, targets, lengths, counts = _ctc(40, 4, 6, 9, np.float32)
    there = cupy.asarray(np.ascontiguousarray(z.transpose(1, 0, 2))).transpose(1, 0, 2)
    rest = [cupy.asarray(a) for a in (targets, lengths, counts)]
    plain = dnn.ctc_loss_backward(cupy.ones((), np.float32), cupy.asarray(z), *rest)
    np.testing.assert_array_equal(
        cupy.asnumpy(dnn.ctc_loss_backward(cupy.ones((), np.float32), there, *rest)), cupy.asnumpy(plain)
    )


def test_ctc_out_of_range_gives_nan():
    z, targets, _, _ = _ctc(10, 5, 4, 3, np.float32)
    targets[1, 0], targets[2, 1] = 4, 0  # no class; the blank
    lengths, counts = np.array([10, 10, 10, 11, 10]), np.array([3, 3, 3, 3, 4])
    loss = dnn.ctc_loss(*map(cupy.asarray, (z, targets, lengths, counts)), reduction="none")
    assert cupy.asnumpy(cupy.isnan(loss)).tolist() == [False, True, True, True, True]
    # One behind another: where a sequence's labels begin may be any number.
    behind = cupy.asarray(np.arange(15) % 3 + 1)
    for counts, bad in (
        ([3, 2**63 - 1, 3, 3, 3], [1, 2, 3, 4]),
        ([3, -9, 3, 3, 3], [1, 2, 3]),
        ([3, 2**40, 3, -(2**40), 3], [1, 2, 3]),
    ):
        loss = dnn.ctc_loss(cupy.asarray(z), behind, cupy.full(5, 10), cupy.asarray(np.array(counts)), reduction="none")
        assert cupy.asnumpy(cupy.isnan(loss)).nonzero()[0].tolist() == bad


@pytest.mark.parametrize("dtype", _DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("algorithm", ["blocks", "blocks_rounded", "parts_sm90"])
@pytest.mark.parametrize(
    ("rows", "features", "classes"), [(200, 64, 1000), (129, 63, 1003), (65, 8, 64), (1, 16, 300), (70, 20, 3)]
)
def test_linear_scores_in_several_blocks(rows, features, classes, algorithm, dtype, monkeypatch):
    from dnnarray._cuda.loss import linear_products as loss_linear_products

    monkeypatch.setattr(loss_linear_products, "_ROWS", 64)
    for name in ("_BYTES", "_PARTS_BYTES"):
        monkeypatch.setattr(loss_linear_products, name, 64 * 256 * 4)
    shapes = ((rows, features), dtype), ((classes, features), dtype), (rows, np.int64)
    arrays, forward = [cupy.zeros(*s) for s in shapes], "blocks" if algorithm == "blocks_rounded" else algorithm
    offered = {a.name for a in dnn.algorithms("linear_cross_entropy_backward", cupy.zeros((), dtype), *arrays)}
    offered &= {a.name for a in dnn.algorithms("linear_cross_entropy", *arrays)} | {"blocks_rounded"}
    if algorithm not in offered or (
        algorithm == "blocks_rounded" and dtype == np.float32
    ):  # TF32, another class of numbers
        pytest.skip("another dtype, device or number of classes")
    rng = np.random.default_rng(rows)
    x, w, bias, weight = (
        rng.standard_normal(s).astype(dtype) for s in ((rows, features), (classes, features), classes, classes)
    )
    weight = np.abs(weight) + np.ones(1, dtype)
    t = rng.integers(0, classes, rows)
    t[rows // 2 :: 7] = -100
    wide = [a.astype(np.float64) for a in (x, w, bias, weight)]
    there = [cupy.asarray(a) for a in (x, w, bias, weight)]
    for full, options in (
        (True, {"label_smoothing": 0.1}),
        (True, {"reduction": "none"}),
        (False, {"reduction": "sum"}),
        (False, {}),
    ):
        named = [{"bias": b, "weight": c} if full else {} for b, c in ((wide[2], wide[3]), (there[2], there[3]))]
        expected = dnn.linear_cross_entropy(*wide[:2], t, **named[0], **options)
        actual = dnn.linear_cross_entropy(
            *there[:2], cupy.asarray(t), **named[1], **options, return_lse=True, algorithm=forward
        )
        assert_close(cupy.asnumpy(actual.loss), expected, features, 4.0)
        grad = rng.standard_normal(expected.shape).astype(dtype)
        expected = dnn.linear_cross_entropy_backward(grad.astype(np.float64), *wide[:2], t, **named[0], **options)
        for lse in (None, actual.lse):
            arguments = (cupy.asarray(grad), *there[:2], cupy.asarray(t))
            chosen = {**named[1], **options, "lse": lse, "algorithm": algorithm}
            first, second = (dnn.linear_cross_entropy_backward(*arguments, **chosen) for _ in range(2))
            for a, b, e in zip(first, second, expected, strict=True):
                if e is not None:
                    assert_close(cupy.asnumpy(a), e, max(classes, rows), 4.0, rounds=algorithm == "blocks_rounded")
                    assert cupy.asnumpy(a).tobytes() == cupy.asnumpy(b).tobytes()


@pytest.mark.parametrize("dtype", _DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("algorithm", ["blocks", "blocks_rounded", "parts_sm90"])
@pytest.mark.parametrize(
    ("rows", "features", "classes"),
    [
        (300, 64, 1000),
        (257, 63, 1003),
        (129, 8, 64),
        (1, 16, 301),
        (200, 20, 3),
        (130, 8, 5003),
        (40, 8, 40_001),
        (9, 8, 128_257),
    ],
)
def test_a_tape_of_linear_scores(rows, features, classes, algorithm, dtype, monkeypatch):
    from dnnarray._cuda.loss import linear_products as loss_linear_products

    for name in ("_WHOLE", "_HELD", "_PARTS_BYTES"):
        monkeypatch.setattr(loss_linear_products, name, 128 * 64 * 4)
    rng = np.random.default_rng(rows)
    x, w, bias, weight = (
        rng.standard_normal(s).astype(dtype) for s in ((rows, features), (classes, features), classes, classes)
    )
    weight, t = np.abs(weight) + np.ones(1, dtype), rng.integers(0, classes, rows)
    t[rows // 2 :: 7] = -100
    wide, there = [a.astype(np.float64) for a in (x, w, bias, weight)], [cupy.asarray(a) for a in (x, w, bias, weight)]
    offered = {a.name for a in dnn.algorithms("linear_cross_entropy", *there[:2], cupy.asarray(t), return_tape=True)}
    if algorithm not in offered or (
        algorithm == "blocks_rounded" and dtype == np.float32
    ):  # TF32, another class of numbers
        pytest.skip("another dtype, device or number of classes")
    for full, options in (
        (True, {"label_smoothing": 0.1}),
        (True, {"reduction": "sum", "label_smoothing": 0.1}),
        (False, {"reduction": "sum"}),
        (False, {}),
    ):
        named = [{"bias": b, "weight": c} if full else {} for b, c in ((wide[2], wide[3]), (there[2], there[3]))]
        asked = (*there[:2], cupy.asarray(t)), named[1] | options
        loss = dnn.linear_cross_entropy(*wide[:2], t, **named[0], **options)
        taped, again = (
            dnn.linear_cross_entropy(*asked[0], **asked[1], return_lse=lse, return_tape=True, algorithm=algorithm)
            for lse in (True, False)
        )
        assert taped.tape.tobytes() == again.tape.tobytes()
        for result in (taped, again):
            assert_close(cupy.asnumpy(result.loss), loss, features, 4.0)
        for grad in (np.array(1, dtype), np.array(-0.7, dtype)):
            expected = dnn.linear_cross_entropy_backward(grad.astype(np.float64), *wide[:2], t, **named[0], **options)
            actual = dnn.linear_cross_entropy_backward(cupy.asarray(grad), *asked[0], **asked[1], tape=taped.tape)
            for a, e in zip(actual, expected, strict=True):
                if e is not None:
                    assert_close(cupy.asnumpy(a), e, max(classes, rows), 4.0, rounds=algorithm == "blocks_rounded")


@pytest.mark.parametrize("classes", [300, 3001, 128_257])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_tape_of_linear_scores_that_are_not_finite(classes, smoothing):
    rng = np.random.default_rng(5)
    x, w, t = rng.standard_normal((6, 8)), rng.standard_normal((classes, 8)), classes - 1 - rng.integers(0, 9, 6)
    bias = np.zeros(classes)
    if not smoothing:  # an impossible class has an infinite share of a smoothed loss
        bias[: classes // 2] = -np.inf  # all that some threads see
    x[2], x[4, 3], t[5] = np.nan, 1e30, -100
    wide = [a.astype(np.float32) for a in (x, w, bias)]
    named = {"reduction": "sum", "label_smoothing": smoothing}
    expected = dnn.linear_cross_entropy(
        *(a.astype(np.float64) for a in wide[:2]), t, wide[2].astype(np.float64), **named, return_lse=True
    )
    grad = dnn.linear_cross_entropy_backward(
        np.array(1.0), *(a.astype(np.float64) for a in wide[:2]), t, wide[2].astype(np.float64), **named
    )
    there = [cupy.asarray(a) for a in wide]
    taped = dnn.linear_cross_entropy(
        *there[:2], cupy.asarray(t), there[2], **named, return_lse=True, return_tape=True, algorithm="blocks"
    )
    assert np.isnan(float(taped.loss)) == np.isnan(expected.loss)
    finite = [0, 1, 3, 4, 5]
    np.testing.assert_allclose(cupy.asnumpy(taped.lse)[finite], expected.lse[finite], rtol=1e-5)
    dx = cupy.asnumpy(
        dnn.linear_cross_entropy_backward(
            cupy.ones((), np.float32), *there[:2], cupy.asarray(t), there[2], **named, tape=taped.tape
        ).x
    )
    np.testing.assert_array_equal(np.isnan(dx), np.isnan(grad.x))
    np.testing.assert_allclose(dx[finite], grad.x[finite], rtol=1e-4, atol=1e-5)


def test_vjp_of_linear_scores_takes_the_tape():
    rng = np.random.default_rng(3)
    x, w = (cupy.asarray(rng.standard_normal(s).astype(np.float32)) for s in ((70, 16), (300, 16)))
    t = rng.integers(0, 300, 70)
    _loss, pullback = dnn.vjp("linear_cross_entropy", x, w, cupy.asarray(t))
    dx, dw, _ = pullback(cupy.full((), 2, np.float32))
    expected = dnn.linear_cross_entropy_backward(
        np.array(2.0), cupy.asnumpy(x).astype(float), cupy.asnumpy(w).astype(float), t
    )
    for a, e in ((dx, expected.x), (dw, expected.w)):
        assert_close(cupy.asnumpy(a), e, 300, 4.0)


@pytest.mark.parametrize("sure", [0, 9, 14], ids=lambda s: f"label_raised_by_{s}")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounded_gradients_of_scores_are_no_less_exact_than_plain_half_types(dtype, sure):
    """Beside PyTorch, which rounds the scores, their logarithmic softmax and the gradient of the scores."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(sure)
    rows, features, classes = 512, 512, 8192
    w, t = rng.standard_normal((classes, features)) / features**0.5, rng.integers(0, classes, rows)
    half = [
        torch.tensor(a, device="cuda").to(getattr(torch, dtype))
        for a in (rng.standard_normal((rows, features)) + sure * w[t], w)
    ]
    x, w, labels, one = (*half, torch.tensor(t, device="cuda"), torch.ones((), dtype=half[0].dtype, device="cuda"))
    assert dnn.algorithms("linear_cross_entropy_backward", one, x, w, labels)[0].name == "blocks_rounded"
    ours = dnn.linear_cross_entropy_backward(one, x, w, labels)
    taped = dnn.vjp("linear_cross_entropy", x, w, labels)[1](one)
    leaves = [a.clone().requires_grad_() for a in half]
    theirs = torch.autograd.grad(torch.nn.functional.cross_entropy(leaves[0] @ leaves[1].T, labels), leaves)
    wide = [a.double().requires_grad_() for a in half]
    expected = torch.autograd.grad(torch.nn.functional.cross_entropy(wide[0] @ wide[1].T, labels), wide)
    for a, b, c, e in zip(ours[:2], theirs, taped[:2], expected, strict=True):
        assert (a.double() - e).norm() <= (b.double() - e).norm()
        assert (c.double() - e).norm() <= 1.01 * (a.double() - e).norm()


def test_infinite_features_in_float32():
    """What the products of parts make of infinities is done again by the definition."""
    rng = np.random.default_rng(0)
    x, w, t = (
        rng.standard_normal((40, 16)).astype(np.float32),
        rng.standard_normal((301, 16)).astype(np.float32),
        rng.integers(0, 301, 40),
    )
    x[3, 5], w[:, 5] = np.inf, -np.abs(w[:, 5])
    expected = dnn.linear_cross_entropy(x.astype(np.float64), w.astype(np.float64), t, reduction="none")
    for a in dnn.algorithms("linear_cross_entropy", *map(cupy.asarray, (x, w, t))):
        if a.precision == "highest":
            actual = cupy.asnumpy(
                dnn.linear_cross_entropy(*map(cupy.asarray, (x, w, t)), reduction="none", algorithm=a.name)
            )
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_linear_scores_without_rows_or_features():
    x, w, t = cupy.zeros((0, 3)), cupy.ones((5, 3)), cupy.zeros(0, np.int64)
    assert float(dnn.linear_cross_entropy(x, w, t, reduction="sum")) == 0
    assert np.isnan(float(dnn.linear_cross_entropy(x, w, t)))
    assert not cupy.asnumpy(dnn.linear_cross_entropy_backward(cupy.ones(()), x, w, t).w).any()
    x, w, t = cupy.zeros((2, 0)), cupy.ones((5, 0)), cupy.array([0, 4])
    np.testing.assert_allclose(float(dnn.linear_cross_entropy(x, w, t)), np.log(5))
    gradients = dnn.linear_cross_entropy_backward(cupy.ones(()), x, w, t, cupy.zeros(5))
    np.testing.assert_allclose(cupy.asnumpy(gradients.bias), np.full(5, 0.2) - [0.5, 0, 0, 0, 0.5])
    tape = dnn.linear_cross_entropy(x, w, t, cupy.zeros(5), return_tape=True).tape
    np.testing.assert_allclose(cupy.asnumpy(tape), np.full(5, 0.2) - [0.5, 0, 0, 0, 0.5])
    x, w, t = cupy.zeros((0, 3)), cupy.ones((5, 3)), cupy.zeros(0, np.int64)
    assert not cupy.asnumpy(
        dnn.linear_cross_entropy(x, w, t, return_tape=True, out=(cupy.ones(()), cupy.ones(15))).tape
    ).any()


@pytest.mark.parametrize("dtype", _DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", [(6, 5), (6, 40), (6, 1000), (6, 5003), (6, 21, 3, 4)], ids=str)
def test_log_sums_of_rows_that_are_not_finite(shape, dtype):
    """NaN where all scores or one are, -inf where all are, infinity where one is, and what the others come to beside
    -inf."""
    rng = np.random.default_rng(1)
    z = rng.standard_normal(shape).astype(dtype)
    z[0], z[1], z[2, 3:4], z[3, 4:5], z[4, :2] = np.nan, -np.inf, np.nan, np.inf, -np.inf
    labels = np.zeros((shape[0], *shape[2:]), np.int64)
    found = dnn.cross_entropy(cupy.asarray(z), cupy.asarray(labels), reduction="none", return_lse=True)
    expected = np.log(np.exp(z[4:].astype(np.float64)).sum(1))
    lse = cupy.asnumpy(found.lse).astype(np.float64)
    assert np.isnan(lse[[0, 2]]).all()
    assert np.isneginf(lse[1]).all()
    assert np.isposinf(lse[3]).all()
    np.testing.assert_allclose(lse[4:], expected, rtol=1e-5, atol=1e-5)
