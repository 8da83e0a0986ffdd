"""What is special to losses: errors, NaN and infinity, drawn shapes, memory, PyTorch."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dnnarray as dnn
from dnnarray._cpu.compiled import compiler
from tests.cases.loss import CASES
from tests.oracles.loss import ORACLES
from tests.support import FLOAT32, FLOAT64, assert_close, check_forward, flat

LOGITS, LABELS = np.zeros((4, 3)), np.array([0, 1, 2, 0])


def _rng():
    return np.random.default_rng(5)


def _softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# --- errors -----------------------------------------------------------------------------------------------------------

_SCORE_ERRORS = [
    (dnn.OptionError, "target is 3 in one place; expected indices from 0 to 2", (LOGITS, LABELS + 1), {}),
    (dnn.OptionError, "target is -1 in one place; expected indices from 0 to 2, or -100", (LOGITS, LABELS - 1), {}),
    (dnn.OptionError, "target is -100 in one place", (LOGITS, np.array([0, 1, 2, -100])), {"ignore_index": 2}),
    (dnn.ShapeError, r"target is of shape \(3,\); expected \(4\,\)", (LOGITS, LABELS[:3]), {}),
    (dnn.ShapeError, r"weight is of shape \(4,\); expected \(3\,\)", (LOGITS, LABELS, np.ones(4)), {}),
    (dnn.ShapeError, "one class or more on axis 1", (np.zeros((4, 0)), LABELS), {}),
    (dnn.ShapeError, "is 0-dimensional", (np.zeros(()), LABELS), {}),
    (dnn.DTypeError, "is int64; expected float64", (LABELS[:, None], LABELS), {}),
    (dnn.DTypeError, "weight is float32; expected float64", (LOGITS, LABELS, np.ones(3, np.float32)), {}),
    (dnn.DTypeError, "target is bool; expected an integer", (LOGITS, LABELS > 0), {}),
    (dnn.OptionError, "reduction is 'avg'", (LOGITS, LABELS), {"reduction": "avg"}),
    (dnn.OptionError, "axis is 2; expected an axis", (LOGITS, LABELS), {"axis": 2}),
    (dnn.OptionError, "axis is 2; expected an axis", (LOGITS[0], LABELS[0]), {"axis": 2}),
    (dnn.OptionError, "axis is True; expected an integer", (LOGITS, LABELS), {"axis": True}),
    (dnn.OptionError, "ignore_index is 9223372036854775808", (LOGITS, LABELS), {"ignore_index": 2**63}),
    (dnn.OptionError, "ignore_index is 1.5", (LOGITS, LABELS), {"ignore_index": 1.5}),
]
_CROSS_ENTROPY_ERRORS = [
    (dnn.ShapeError, "target is of shape .*, for probabilities", (LOGITS, np.zeros((4, 2))), {}),
    (dnn.DTypeError, "target is float32; expected float64", (LOGITS, np.zeros((4, 3), np.float32)), {}),
    (dnn.OptionError, "ignore_index is 0; expected a negative number", (LOGITS, LOGITS), {"ignore_index": 0}),
    (
        dnn.OptionError,
        "label_smoothing is 1.5; expected a finite number from 0 to 1",
        (LOGITS, LABELS),
        {"label_smoothing": 1.5},
    ),
    (dnn.OptionError, "return_lse is 1", (LOGITS, LABELS), {"return_lse": 1}),
]


def _raises(op, error, message, arrays, options):
    names = dict(zip(("weight",), arrays[2:], strict=False))
    with pytest.raises(error, match=f"{op}: .*{message}"):
        getattr(dnn, op)(*arrays[:2], **names, **options)


@pytest.mark.parametrize(("error", "message", "arrays", "options"), _SCORE_ERRORS)
@pytest.mark.parametrize("op", ["cross_entropy", "nll_loss"])
def test_errors_of_scores(op, error, message, arrays, options):
    _raises(op, error, message, arrays, options)


@pytest.mark.parametrize(("error", "message", "arrays", "options"), _CROSS_ENTROPY_ERRORS)
def test_errors_of_cross_entropy(error, message, arrays, options):
    _raises("cross_entropy", error, message, arrays, options)


def test_nll_loss_takes_no_probabilities():
    with pytest.raises(dnn.DTypeError, match="nll_loss: target is float64; expected an integer"):
        dnn.nll_loss(LOGITS, LOGITS)


@pytest.mark.parametrize("op", ["cross_entropy_backward", "nll_loss_backward"])
def test_errors_of_gradients_of_scores(op):
    function = getattr(dnn, op)
    with pytest.raises(dnn.ShapeError, match=rf"{op}: grad is of shape \(4,\); expected \(\)"):
        function(np.ones(4), LOGITS, LABELS)
    with pytest.raises(dnn.DTypeError, match=f"{op}: grad is float32; expected float64"):
        function(np.ones(4, np.float32), LOGITS, LABELS, reduction="none")
    with pytest.raises(dnn.OptionError, match=f"{op}: target is 3 in one place"):
        function(np.array(1.0), LOGITS, LABELS + 2)


X, W = np.zeros((4, 2)), np.zeros((3, 2))


@pytest.mark.parametrize(
    ("error", "message", "arrays", "named"),
    [
        (dnn.ShapeError, r"w is of shape \(3, 1\); expected \(\*, 2\)", (X, W[:, :1], LABELS), {}),
        (dnn.ShapeError, r"w is of shape \(0, 2\); expected one class", (X, W[:0], LABELS), {}),
        (dnn.ShapeError, "x is 0-dimensional", (X[0, 0].reshape(()), W, LABELS), {}),
        (dnn.ShapeError, r"target is of shape \(3,\)", (X, W, LABELS[:3]), {}),
        (dnn.ShapeError, r"bias is of shape \(2,\)", (X, W, LABELS), {"bias": np.zeros(2)}),
        (dnn.ShapeError, r"weight is of shape \(2,\)", (X, W, LABELS), {"weight": np.zeros(2)}),
        (dnn.DTypeError, "w is float32; expected float64", (X, W.astype("f4"), LABELS), {}),
        (dnn.DTypeError, "target is float64; expected an integer", (X, W, np.zeros(4)), {}),
        (dnn.OptionError, "target is 3 in one place", (X, W, LABELS + 1), {}),
    ],
)
def test_errors_of_linear_cross_entropy(error, message, arrays, named):
    with pytest.raises(error, match=f"linear_cross_entropy: {message}"):
        dnn.linear_cross_entropy(*arrays, **named)
    with pytest.raises(error, match=f"linear_cross_entropy_backward: {message}"):
        dnn.linear_cross_entropy_backward(np.array(1.0), *arrays, **named)


@pytest.mark.parametrize(
    ("op", "arrays"),
    [("cross_entropy", (LOGITS, LABELS)), ("linear_cross_entropy", (X, W, LABELS))],
    ids=lambda v: str(v)[:14],
)
def test_the_log_sum_exp_is_checked(op, arrays):
    backward = getattr(dnn, f"{op}_backward")
    with pytest.raises(dnn.ShapeError, match=rf"{op}_backward: lse is of shape \(3,\)"):
        backward(np.array(1.0), *arrays, lse=np.zeros(3))
    with pytest.raises(dnn.DTypeError, match=f"{op}_backward: lse is float32; expected float64"):
        backward(np.array(1.0), *arrays, lse=np.zeros(4, np.float32))


# --- accuracy, NaN, infinity
# --------------------------------------------------------------------------------------------


def test_a_saved_log_sum_exp_gives_the_same_gradient_however_large_the_scores():
    z = (_rng().standard_normal((6, 9)) + 1e4).astype(np.float32)
    target = np.arange(6)
    output = dnn.cross_entropy(z, target, reduction="none", return_lse=True)
    grad = np.ones(6, np.float32)
    exact = dnn.cross_entropy_backward(grad.astype(float), z.astype(float), target, reduction="none")
    assert_close(dnn.cross_entropy_backward(grad, z, target, reduction="none", lse=output.lse), exact, 9)
    assert_close(dnn.cross_entropy_backward(grad, z, target, reduction="none"), exact, 9)
    assert_close(output.loss, ORACLES["cross_entropy"](z.astype(float), target, reduction="none"), 9)


def test_return_lse_through_vjp_keeps_both_results():
    z, target = _rng().standard_normal((3, 4)), np.array([0, 1, 2])
    output, pullback = dnn.vjp("cross_entropy", z, target, return_lse=True)
    np.testing.assert_allclose(output.lse, np.log(np.exp(z).sum(1)), rtol=1e-14)
    gradient, none = pullback((np.array(1.0), None))
    assert none is None
    np.testing.assert_array_equal(gradient, dnn.vjp("cross_entropy", z, target)[1](np.array(1.0))[0])


_SPECIAL = np.array([
    [np.nan, 0.0, 1.0],
    [np.inf, 0.0, 1.0],
    [-np.inf, 0.0, 1.0],
    [0.0, -np.inf, 1.0],
    [-np.inf, -np.inf, -np.inf],
    [1e4, -1e4, 0.0],
    [-1e4, 1e4, 0.0],
])  # fmt: skip


@pytest.mark.parametrize("share", [0.0, 0.25])
@pytest.mark.parametrize("label", [0, 1, -100])
@pytest.mark.parametrize("dtype", [FLOAT64, FLOAT32])
def test_special_scores_as_pytorch(label, share, dtype):
    torch = pytest.importorskip("torch")
    scores, target = _SPECIAL.astype(dtype), np.full(7, label)
    z = torch.from_numpy(scores).requires_grad_()
    expected = torch.nn.functional.cross_entropy(z, torch.from_numpy(target), reduction="none", label_smoothing=share)
    expected.sum().backward()
    options = {"reduction": "none", "label_smoothing": share}
    np.testing.assert_allclose(dnn.cross_entropy(scores, target, **options), expected.detach().numpy(), rtol=1e-6)
    gradient = dnn.cross_entropy_backward(np.ones(7, dtype), scores, target, **options)
    np.testing.assert_allclose(gradient, z.grad.numpy(), rtol=1e-6, atol=1e-12)
    bias_only = dnn.linear_cross_entropy(np.zeros((7, 1), dtype), np.zeros((3, 1), dtype), target, scores[2], **options)
    full = dnn.cross_entropy(np.broadcast_to(scores[2], (7, 3)), target, **options)
    np.testing.assert_allclose(bias_only, full, rtol=1e-6)


def test_special_scores_against_probabilities_as_pytorch():
    torch = pytest.importorskip("torch")
    target = np.tile([0.0, 0.5, 0.5], (7, 1))
    z, t = torch.from_numpy(_SPECIAL).requires_grad_(), torch.from_numpy(target).requires_grad_()
    expected = torch.nn.functional.cross_entropy(z, t, reduction="none")
    expected.sum().backward()
    np.testing.assert_allclose(
        dnn.cross_entropy(_SPECIAL, target, reduction="none"), expected.detach().numpy(), rtol=1e-12
    )
    gradients = dnn.cross_entropy_backward(np.ones(7), _SPECIAL, target, reduction="none")
    np.testing.assert_allclose(gradients.logits, z.grad.numpy(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(gradients.target, t.grad.numpy(), rtol=1e-12)


def test_a_whole_block_of_impossible_classes_adds_nothing():
    rng = _rng()
    x, w, bias = rng.standard_normal((5, 3)), rng.standard_normal((300, 3)), rng.standard_normal(300)
    bias[:200] = -np.inf  # more than the 128 classes of a small block
    target = np.array([200, 250, 299, 210, 220])
    for algorithm in ("blocks", "small_blocks"):
        loss = dnn.linear_cross_entropy(x, w, target, bias, reduction="none", algorithm=algorithm)
        np.testing.assert_allclose(
            loss, dnn.cross_entropy(x @ w[200:].T + bias[200:], target - 200, reduction="none"), rtol=1e-12
        )
        gradients = dnn.linear_cross_entropy_backward(np.array(1.0), x, w, target, bias, algorithm=algorithm)
        assert (gradients.bias[:200] == 0).all()
        assert np.isfinite(gradients.w).all()


def test_rows_all_ignored_have_gradient_zero():
    target = np.full(4, -100)
    assert np.isnan(dnn.cross_entropy(LOGITS, target))
    assert (dnn.cross_entropy_backward(np.array(1.0), LOGITS, target) == 0).all()
    assert (dnn.nll_loss_backward(np.array(1.0), LOGITS, target) == 0).all()
    gradients = dnn.linear_cross_entropy_backward(np.array(1.0), X, W, target, np.zeros(3))
    assert all((g == 0).all() for g in gradients)


def test_an_ignored_row_may_hold_anything():
    logits = np.array([[np.nan, np.inf], [0.0, 0.0]])
    target = np.array([-100, 1])
    assert dnn.nll_loss(logits, target) == 0
    np.testing.assert_allclose(dnn.cross_entropy(logits, target), np.log(2), rtol=1e-15)


# --- every algorithm, drawn shapes
# ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [c for c in CASES if c.op == "linear_cross_entropy" and c.gradient], ids=str)
def test_both_algorithms_give_the_same_gradients(case):
    x, w, target, bias, weight = (*case.draw(), None, None)[:5]
    options = {n: v for n, v in case.options.items() if n != "return_lse"} | {"weight": weight}
    grad = _rng().standard_normal(dnn.linear_cross_entropy(x, w, target, bias, **options).shape)
    results = [
        flat(dnn.linear_cross_entropy_backward(np.asarray(grad), x, w, target, bias, **options, algorithm=algorithm))
        for algorithm in ("blocks", "small_blocks")
    ]
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


def test_several_large_blocks():
    rng = _rng()
    x, w, bias, target = (
        rng.standard_normal((600, 4)),
        rng.standard_normal((2100, 4)),
        rng.standard_normal(2100),
        rng.integers(0, 2100, 600),
    )
    output, pullback = dnn.vjp("linear_cross_entropy", x, w, target, bias, label_smoothing=0.1, algorithm="blocks")
    logits, through = dnn.vjp("cross_entropy", x @ w.T + bias, target, label_smoothing=0.1)
    np.testing.assert_allclose(output, logits, rtol=1e-12)
    dz = through(np.array(1.0))[0]
    dx, dw, none, db = pullback(np.array(1.0))
    assert none is None
    for actual, expected in ((dx, dz @ w), (dw, dz.T @ x), (db, dz.sum(0))):
        np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-15)


def test_linear_cross_entropy_without_a_saved_log_sum_exp():
    rng = _rng()
    x, w, target = rng.standard_normal((40, 3)), rng.standard_normal((150, 3)), rng.integers(0, 150, 40)
    output = dnn.linear_cross_entropy(x, w, target, return_lse=True)
    with_lse = dnn.linear_cross_entropy_backward(np.array(2.0), x, w, target, lse=output.lse)
    without = dnn.linear_cross_entropy_backward(np.array(2.0), x, w, target)
    assert without.bias is None
    for a, b in zip(with_lse[:2], without[:2], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_a_workspace_limit_takes_the_smaller_blocks():
    specs = dnn.Spec((512, 64), "float32"), dnn.Spec((4096, 64), "float32"), dnn.Spec((512,), "int64")
    assert dnn.algorithms("linear_cross_entropy", *specs)[0].name == "blocks"
    with dnn.options(workspace_limit="64KB"):
        assert [a.name for a in dnn.algorithms("linear_cross_entropy", *specs)] == ["small_blocks"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_cross_entropy_of_any_shape(data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4), label="shape")
    axis = data.draw(st.integers(-len(shape), len(shape) - 1), label="axis")
    rng = np.random.default_rng(data.draw(st.integers(0, 99), label="seed"))
    logits = rng.standard_normal(shape) * 5
    classes, rows = shape[axis], np.moveaxis(logits, axis, -1).shape[:-1]
    weight = rng.uniform(0.5, 2, classes) if data.draw(st.booleans(), label="weight") else None
    target = (
        rng.standard_normal(shape)
        if data.draw(st.booleans(), label="probabilities")
        else rng.integers(0, classes, rows)
    )
    share, reduction = data.draw(st.sampled_from([0.0, 0.3])), data.draw(st.sampled_from(["mean", "sum", "none"]))
    options = {"weight": weight, "label_smoothing": share, "reduction": reduction, "axis": axis}
    expected, terms = (ORACLES["cross_entropy"](logits, t, **options) for t in (target, np.abs(target)))
    # Terms of probabilities below 0 have another sign, and a small loss is the difference of large logarithms.
    summed = logits.size // classes if reduction == "sum" else 1
    largest = np.max(terms) + np.abs(logits).max() * summed
    cancelled = largest / max(np.max(np.abs(expected)), 1e-300)
    assert_close(dnn.cross_entropy(logits, target, **options), expected, 16, condition=max(cancelled, 1.0))


# --- large targets are not held as a whole
# --------------------------------------------------------------------------------


def _peak(call):
    call()
    compiler.settle()  # what compiles in the background would count
    call()
    tracemalloc.start()
    try:
        result = call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return peak - sum(r.nbytes for r in flat(result))


def test_cross_entropy_takes_little_memory():
    logits, target = np.zeros((1000, 4000), np.float32), np.zeros(1000, np.int64)
    assert _peak(lambda: dnn.cross_entropy(logits, target)) < 2e6
    assert _peak(lambda: dnn.cross_entropy_backward(np.float32(1).reshape(()), logits, target)) < 2e6


def test_linear_cross_entropy_never_holds_all_scores():
    rng = _rng()
    x = rng.standard_normal((2048, 64)).astype(np.float32)
    w = rng.standard_normal((32000, 64)).astype(np.float32)
    target = rng.integers(0, 32000, 2048)
    assert _peak(lambda: dnn.linear_cross_entropy(x, w, target)) < 10e6
    assert _peak(lambda: dnn.linear_cross_entropy_backward(np.array(1, np.float32), x, w, target)) < 10e6


# --- PyTorch
# --------------------------------------------------------------------------------------------------------------


def _options(case):
    return {n: v for n, v in case.options.items() if n not in ("axis", "return_lse")}


def _classes_second(array, case):
    return np.moveaxis(array, case.options["axis"], 1) if "axis" in case.options and array.ndim > 1 else array


@pytest.mark.parametrize("case", [c for c in CASES if c.op in ("cross_entropy", "nll_loss") and c.gradient], ids=str)
def test_losses_of_scores_as_pytorch(case):
    torch = pytest.importorskip("torch")
    scores, target, *rest = case.draw()
    output, pullback = dnn.vjp(case.op, scores, target, *rest, **case.options)
    loss = output[0] if isinstance(output, tuple) else output
    grad = _rng().standard_normal(loss.shape)
    gradient = pullback((grad, None) if isinstance(output, tuple) else grad)[0]
    z = torch.from_numpy(_classes_second(scores, case)).requires_grad_()
    t = _classes_second(target, case) if target.dtype.kind == "f" else target.astype(np.int64)
    named = {"weight": torch.from_numpy(rest[0])} if rest else {}
    expected = getattr(torch.nn.functional, case.op)(z, torch.from_numpy(t), **named, **_options(case))
    expected.backward(torch.from_numpy(np.asarray(grad)))
    np.testing.assert_allclose(loss, expected.detach().numpy(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(_classes_second(gradient, case), z.grad.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"weight": True}, {"reduction": "sum"}], ids=str)
def test_a_loss_is_rounded_once(options):
    """Sums of float32 would be off by half a unit of the last place and more; what the sums of exponentials are off by
    cancels over the rows."""
    rng = _rng()
    for _ in range(8):
        z, target = rng.standard_normal((300, 500), dtype=np.float32), rng.integers(0, 500, 300)
        named = options | ({"weight": rng.random(500, np.float32) + np.float32(0.5)} if "weight" in options else {})
        exact = dnn.cross_entropy(
            z.astype(FLOAT64), target, **{k: v.astype(FLOAT64) if k == "weight" else v for k, v in named.items()}
        )
        assert abs(dnn.cross_entropy(z, target, **named) - exact) <= 0.52 * np.spacing(np.float32(exact))


def test_half_types_accumulate_in_float32():
    """Many small losses: a sum in float16 would stop growing."""
    logits = np.zeros((6000, 2), np.float16)
    loss = dnn.cross_entropy(logits, np.zeros(6000, np.int64))
    assert loss.dtype == np.float16
    assert abs(float(loss) - np.log(2)) < 1e-3


@pytest.mark.parametrize("case", [c for c in CASES if c.id in ("space", "mean")], ids=str)
def test_blocks_of_any_size(case, monkeypatch):
    from dnnarray._cpu.loss import scores as loss_scores

    monkeypatch.setattr(loss_scores, "_BLOCK", 8)
    check_forward(case, FLOAT64, ORACLES[case.op])
    output, pullback = dnn.vjp(case.op, *case.draw(), **case.options)
    small = pullback(np.ones(output.shape))
    monkeypatch.undo()
    for a, b in zip(
        flat(small), flat(dnn.vjp(case.op, *case.draw(), **case.options)[1](np.ones(output.shape))), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-14)


def _strided(shape, order):
    """Memory whose axes lie in this order, every other element of each: no two axes can be joined."""
    wide = np.full([2 * shape[i] for i in order], 7.0)
    return np.transpose(wide[tuple(slice(None, None, 2) for _ in order)], np.argsort(order))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)])
@pytest.mark.parametrize("id", ["space", "probabilities_all"])
def test_gradients_of_scores_in_any_memory(id, order):
    rng = _rng()
    shape = (2, 5, 3, 2)
    logits, out = _strided(shape, order), _strided(shape, order)
    logits[...] = rng.standard_normal(shape)
    target = rng.integers(0, 5, (2, 3, 2)) if id == "space" else rng.uniform(0, 1, shape)
    grad = np.array(1.5)
    expected = flat(dnn.cross_entropy_backward(grad, logits.copy(), target))
    np.testing.assert_allclose(flat(dnn.cross_entropy_backward(grad, logits, target))[0], expected[0], rtol=1e-14)
    if id == "space":
        assert dnn.cross_entropy_backward(grad, logits, target, out=out) is out
        np.testing.assert_allclose(out, expected[0], rtol=1e-14)
        assert dnn.nll_loss_backward(grad, logits, target, out=out) is out
        np.testing.assert_array_equal(out, dnn.nll_loss_backward(grad, logits.copy(), target))


def test_linear_cross_entropy_gradients_into_the_callers_memory():
    rng = _rng()
    x, w, target = rng.standard_normal((2, 20, 3)), rng.standard_normal((150, 3)), rng.integers(0, 150, (2, 20))
    expected = dnn.linear_cross_entropy_backward(np.array(1.0), x, w, target)
    out = _strided((2, 20, 3), (2, 0, 1)), _strided((150, 3), (1, 0))
    for algorithm in ("blocks", "small_blocks"):
        result = dnn.linear_cross_entropy_backward(np.array(1.0), x, w, target, out=out, algorithm=algorithm)
        assert result.x is out[0]
        assert result.bias is None
        for a, b in zip(out, expected[:2], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-15)


def test_no_rows_give_zero_gradients_of_the_layer():
    gradients = dnn.linear_cross_entropy_backward(np.array(1.0), X[:0], W, LABELS[:0], np.zeros(3), reduction="sum")
    assert gradients.x.shape == (0, 2)
    assert (gradients.w == 0).all()
    assert (gradients.bias == 0).all()
    assert dnn.linear_cross_entropy(X[:0], W, LABELS[:0], reduction="none").shape == (0,)
