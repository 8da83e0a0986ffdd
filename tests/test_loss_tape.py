"""The tape of the linear cross entropy: gradients that the forward takes, for a loss whose gradient is 1."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._cpu.loss import linear as loss_linear
from tests.support import DTYPES, assert_close, candidates, flat

_OPTIONS = (
    {"reduction": "mean"},
    {"reduction": "sum"},
    {"reduction": "mean", "label_smoothing": 0.2},
    {"reduction": "sum", "label_smoothing": 1.0, "ignore_index": 3},
)


def _drawn(rows, features, classes, dtype, seed=0):
    """x, w, labels, bias, class weights; some rows are ignored."""
    rng = np.random.default_rng(seed)
    x, w, bias = (rng.standard_normal(s).astype(dtype) for s in ((*rows, features), (classes, features), classes))
    target = rng.integers(0, classes, rows)
    target.reshape(-1)[::5] = -100
    return x, w, target, bias, rng.uniform(0.5, 2, classes).astype(dtype)


def _gradients(grad, x, w, target, bias, weight, reduction="mean", label_smoothing=0.0, ignore_index=-100):
    """The definition in float64: dx, dw, dbias."""
    x, w = x.astype(np.float64).reshape(target.size, x.shape[-1]), w.astype(np.float64)
    classes, target = len(w), target.reshape(-1)
    each = np.ones(classes) if weight is None else weight.astype(np.float64)
    kept = target != ignore_index
    label = np.where(kept, target, 0)
    z = x @ w.T + (0 if bias is None else bias.astype(np.float64))
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    hard = each[label, None] * (p - np.eye(classes)[label])
    soft = each.sum() * p - each
    dz = kept[:, None] * ((1 - label_smoothing) * hard + label_smoothing / classes * soft)
    dz *= float(grad) / (each[label][kept].sum() if reduction == "mean" else 1)
    return dz @ w, dz.T @ x, dz.sum(0)


@pytest.mark.parametrize("options", _OPTIONS, ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weight"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tape_gives_the_gradients(dtype, weighted, biased, options):
    x, w, target, bias, weight = _drawn((7, 5), 6, 131, dtype)
    if options.get("ignore_index") == 3:
        target = np.where(target < 0, 3, target)
    named = {"bias": bias if biased else None, "weight": weight if weighted else None}
    plain = dnn.linear_cross_entropy(x, w, target, **named, **options)
    for grad in (np.array(1, dtype), np.array(0.3, dtype)):
        expected = _gradients(grad, x, w, target, *named.values(), **options)
        for algorithm in ("blocks", "small_blocks"):
            loss, tape = dnn.linear_cross_entropy(
                x, w, target, **named, **options, return_tape=True, algorithm=algorithm
            )
            assert_close(loss, plain.astype(np.float64), 64, 4.0)
            got = dnn.linear_cross_entropy_backward(grad, x, w, target, **named, **options, tape=tape)
            assert (got.bias is not None) == biased
            assert got.x.shape == x.shape
            for a, e in zip(got, expected, strict=True):
                if a is not None:
                    assert_close(a.reshape(e.shape), e, 131, 4.0)


def test_several_large_blocks():
    x, w, target, bias, weight = _drawn((1100,), 5, 4100, np.float64)
    loss, lse, tape = dnn.linear_cross_entropy(
        x, w, target, bias, weight=weight, return_lse=True, return_tape=True, algorithm="blocks"
    )
    plain = dnn.linear_cross_entropy(x, w, target, bias, weight=weight, return_lse=True)
    np.testing.assert_allclose(loss, plain.loss, rtol=1e-13)
    np.testing.assert_allclose(lse, plain.lse, rtol=1e-13)
    got = dnn.linear_cross_entropy_backward(np.array(-2.0), x, w, target, bias, weight=weight, tape=tape)
    for a, e in zip(got, _gradients(-2.0, x, w, target, bias, weight), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("options", [{}, {"reduction": "sum", "return_lse": True}], ids=str)
def test_vjp_computes_the_scores_once(options, monkeypatch):
    x, w, target, bias, _ = _drawn((37,), 3, 141, np.float64)
    blocks = []
    scores = loss_linear.Layer.scores
    monkeypatch.setattr(loss_linear.Layer, "scores", lambda *arguments: (blocks.append(1), scores(*arguments))[1])
    result, pullback = dnn.vjp("linear_cross_entropy", x, w, target, bias, **options, algorithm="small_blocks")
    assert len(blocks) == 4
    assert type(result).__name__ == ("CrossEntropyOutput" if "return_lse" in options else "ndarray")
    expected = _gradients(3.0, x, w, target, bias, None, options.get("reduction", "mean"))
    for _ in range(2):  # a tape can be used any number of times
        dx, dw, none, db = pullback(np.array(3.0))
        assert none is None
        for a, e in zip((dx, dw, db), expected, strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-11, atol=1e-14)
    assert len(blocks) == 4
    taped, pullback = dnn.vjp("linear_cross_entropy", x, w, target, bias, **options, return_tape=True)
    assert taped.tape.shape == (37 * 3 + 141 * 3 + 141,)
    np.testing.assert_allclose(pullback(np.array(3.0))[0], dx, rtol=1e-11, atol=1e-14)


def test_vjp_goes_without_where_there_is_none():
    x, w, target, _, _ = _drawn((4, 8), 3, 4096, np.float32)
    rows, pullback = dnn.vjp("linear_cross_entropy", x, w, target, reduction="none")
    got = pullback(np.ones_like(rows))
    with dnn.options(workspace_limit="64KB"):  # not for the scores of 32 rows
        loss, pullback = dnn.vjp("linear_cross_entropy", x, w, target, reduction="sum")
        little = pullback(np.ones_like(loss))
        with pytest.raises(dnn.WorkspaceError):
            dnn.vjp("linear_cross_entropy", x, w, target, return_tape=True)
    taped = dnn.vjp("linear_cross_entropy", x, w, target, reduction="sum")[1](np.ones_like(loss))
    for a, b, c in zip(flat(got), flat(little), flat(taped), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(c, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(0, 4, 5), (3, 0, 4), (1, 1, 1), (2, 3, 1)])
def test_extents_of_zero_and_one(shape):
    rows, features, classes = shape
    x, w, target, bias, _ = _drawn((rows,), features, classes, np.float64)
    out = tuple(
        np.full(s.shape, np.nan)
        for s in dnn.infer("linear_cross_entropy", x, w, target, bias, reduction="sum", return_tape=True).outputs
    )
    loss, tape = dnn.linear_cross_entropy(x, w, target, bias, reduction="sum", return_tape=True, out=out)
    np.testing.assert_allclose(loss, dnn.linear_cross_entropy(x, w, target, bias, reduction="sum"), rtol=1e-13)
    got = dnn.linear_cross_entropy_backward(np.array(1.0), x, w, target, bias, reduction="sum", tape=tape)
    for a, e in zip(got, _gradients(1.0, x, w, target, bias, None, "sum"), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-12, atol=1e-15)


def test_rows_all_ignored_leave_a_tape_of_zeros():
    x, w, target, bias, _ = _drawn((4,), 3, 5, np.float64)
    loss, tape = dnn.linear_cross_entropy(x, w, np.full_like(target, -100), bias, return_tape=True)
    assert np.isnan(loss)
    assert not tape.any()


def test_a_tape_has_the_dtype_of_the_arithmetic_and_any_strides():
    x, w, target, bias, _ = _drawn((6,), 4, 7, np.float16)
    loss, tape = dnn.linear_cross_entropy(x, w, target, bias, return_tape=True)
    assert tape.dtype == np.float32
    wide = np.full(2 * tape.size, np.nan, np.float32)
    again = dnn.linear_cross_entropy(x, w, target, bias, return_tape=True, out=(np.empty_like(loss), wide[::2]))
    np.testing.assert_array_equal(again.tape, tape)
    tape.flags.writeable = False
    grad = np.array(2.0**14, np.float16)  # the gradients of a mean times a loss scale: rounded once, behind the product
    got, strided = (dnn.linear_cross_entropy_backward(grad, x, w, target, bias, tape=t) for t in (tape, wide[::2]))
    for a, b, e in zip(got, strided, _gradients(grad, x, w, target, bias, None), strict=True):
        np.testing.assert_array_equal(a, b)
        assert_close(a, e, 16, 4.0)


def test_algorithms_and_explain_know_the_tape():
    x, w, target, _, _ = _drawn((6,), 4, 7, np.float32)
    grad, tape = np.ones((), np.float32), dnn.linear_cross_entropy(x, w, target, return_tape=True).tape
    assert candidates("linear_cross_entropy", (x, w, target), {"return_tape": True}) == ["blocks", "small_blocks"]
    assert candidates("linear_cross_entropy_backward", (grad, x, w, target), {"tape": tape}) == ["tape"]
    assert "tape" not in candidates("linear_cross_entropy_backward", (grad, x, w, target), {})
    text = str(dnn.explain("linear_cross_entropy_backward", grad, x, w, target, tape=tape))
    assert "the gradients are on the tape" in text
    assert "no tape is given" in str(dnn.explain("linear_cross_entropy_backward", grad, x, w, target))


def test_all_scores_are_never_held():
    specs = dnn.Spec((65_536, 64), "float32"), dnn.Spec((32_000, 64), "float32"), dnn.Spec((65_536,), "int64")
    workspace = dnn.algorithms("linear_cross_entropy", *specs, return_tape=True)[0].workspace
    assert workspace < 65_536 * 32_000 * 4 / 100


def test_errors():
    x, w, target, _, _ = _drawn((4,), 3, 5, np.float64)
    tape, grad = dnn.linear_cross_entropy(x, w, target, return_tape=True).tape, np.array(1.0)
    with pytest.raises(
        dnn.OptionError,
        match='linear_cross_entropy: return_tape is True with reduction="none"; expected reduction "mean" or "sum"',
    ):
        dnn.linear_cross_entropy(x, w, target, reduction="none", return_tape=True)
    with pytest.raises(dnn.OptionError, match='linear_cross_entropy_backward: tape is given with reduction="none"'):
        dnn.linear_cross_entropy_backward(np.ones(4), x, w, target, reduction="none", tape=tape)
    with pytest.raises(dnn.OptionError, match="linear_cross_entropy: return_tape is 1; expected True or False"):
        dnn.linear_cross_entropy(x, w, target, return_tape=1)
    with pytest.raises(
        dnn.ShapeError,
        match=r"linear_cross_entropy_backward: tape is of shape \(26,\); expected \(27,\), as the forward",
    ):
        dnn.linear_cross_entropy_backward(grad, x, w, target, tape=tape[1:])
    with pytest.raises(dnn.DTypeError, match="linear_cross_entropy_backward: tape is float32; expected float64"):
        dnn.linear_cross_entropy_backward(grad, x, w, target, tape=tape.astype(np.float32))
    with pytest.raises(dnn.UnsupportedError, match="no tape is given"):
        dnn.linear_cross_entropy_backward(grad, x, w, target, algorithm="tape")
