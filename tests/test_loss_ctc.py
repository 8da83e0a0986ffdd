"""What is special to CTC: errors, sequences of any lengths, gradients in segments, PyTorch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dnnarray as dnn
from dnnarray._cpu.loss import ctc as loss_ctc
from tests.cases.loss import CASES
from tests.oracles.loss import ORACLES
from tests.support import assert_close
from tests.test_loss import _rng, _softmax

LP, TARGETS, STEPS, COUNTS = np.full((5, 2, 3), -1.0), np.array([[1, 2], [2, 1]]), np.array([5, 4]), np.array([2, 1])


@pytest.mark.parametrize(
    ("error", "message", "arrays", "options"),
    [
        (dnn.ShapeError, "log_probs is 1-dimensional", (LP[:, 0, 0], TARGETS, STEPS, COUNTS), {}),
        (dnn.ShapeError, "log_probs is of shape .*one class", (LP[:, :, :0], TARGETS, STEPS, COUNTS), {}),
        (dnn.ShapeError, r"targets is of shape \(1, 2\); expected \(2, \*\)", (LP, TARGETS[:1], STEPS, COUNTS), {}),
        (dnn.ShapeError, "targets is 3-dimensional", (LP, TARGETS[None], STEPS, COUNTS), {}),
        (dnn.ShapeError, "targets is 2-dimensional", (LP[:, 0], TARGETS, STEPS[0], COUNTS[0]), {}),
        (dnn.ShapeError, r"input_lengths is of shape \(1,\)", (LP, TARGETS, STEPS[:1], COUNTS), {}),
        (dnn.ShapeError, r"target_lengths is of shape \(\)", (LP, TARGETS, STEPS, np.array(2)), {}),
        (dnn.DTypeError, "log_probs is int64", (TARGETS, TARGETS, STEPS, COUNTS), {}),
        (dnn.DTypeError, "targets is float64", (LP, TARGETS * 1.0, STEPS, COUNTS), {}),
        (dnn.DTypeError, "input_lengths is float64", (LP, TARGETS, STEPS * 1.0, COUNTS), {}),
        (dnn.DTypeError, "target_lengths is bool", (LP, TARGETS, STEPS, COUNTS > 1), {}),
        (
            dnn.OptionError,
            "input_lengths is 6 in one place; expected lengths from 0 to 5",
            (LP, TARGETS, STEPS + 1, COUNTS),
            {},
        ),
        (dnn.OptionError, "input_lengths is -1 in one place", (LP, TARGETS, STEPS - 5, COUNTS), {}),
        (dnn.OptionError, "target_lengths is 3 in one place", (LP, TARGETS, STEPS, COUNTS + 1), {}),
        (dnn.OptionError, "target_lengths is 3 in sum; expected 4", (LP, TARGETS.ravel(), STEPS, COUNTS), {}),
        (
            dnn.OptionError,
            "targets is 3 in one place; expected indices from 0 to 2",
            (LP, TARGETS + 1, STEPS, COUNTS),
            {},
        ),
        (
            dnn.OptionError,
            "targets is 0 in one place; expected labels other than the blank",
            (LP, TARGETS - 1, STEPS, COUNTS),
            {},
        ),
        (dnn.OptionError, "blank is 3; expected an integer from 0 to 2", (LP, TARGETS, STEPS, COUNTS), {"blank": 3}),
        (dnn.OptionError, "reduction is None", (LP, TARGETS, STEPS, COUNTS), {"reduction": None}),
        (dnn.OptionError, "zero_infinity is 1", (LP, TARGETS, STEPS, COUNTS), {"zero_infinity": 1}),
    ],
)
def test_errors_of_ctc(error, message, arrays, options):
    with pytest.raises(error, match=f"ctc_loss: {message}"):
        dnn.ctc_loss(*arrays, **options)
    with pytest.raises(error, match=f"ctc_loss_backward: {message}"):
        dnn.ctc_loss_backward(np.array(1.0), *arrays, **options)


def test_ctc_gradient_is_checked():
    with pytest.raises(dnn.ShapeError, match=r"ctc_loss_backward: grad is of shape \(2,\); expected \(\)"):
        dnn.ctc_loss_backward(np.ones(2), LP, TARGETS, STEPS, COUNTS)


def test_a_single_sequence_takes_integers_for_lengths():
    lp = _rng().standard_normal((4, 3))
    expected = dnn.ctc_loss(lp[:, None], np.array([[2, 1]]), np.array([4]), np.array([2]))
    assert dnn.ctc_loss(lp, np.array([2, 1]), 4, 2) == expected


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_ctc_of_any_lengths(data):
    steps, batch, classes, longest = (data.draw(st.integers(*r)) for r in ((0, 6), (1, 3), (2, 3), (0, 4)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    log_probs = np.log(_softmax(rng.standard_normal((steps, batch, classes))))
    blank = data.draw(st.integers(0, classes - 1))
    counts, lengths = rng.integers(0, longest + 1, batch), rng.integers(0, steps + 1, batch)
    targets = (rng.integers(1, classes, (batch, longest)) + blank) % classes
    if data.draw(st.booleans()):
        targets = np.concatenate([t[:s] for t, s in zip(targets, counts, strict=True)])
    options = {"blank": blank, "reduction": "none"}
    arrays = (log_probs, targets, lengths, counts)
    expected = ORACLES["ctc_loss"](*arrays, **options)
    assert_close(dnn.ctc_loss(*arrays, **options), expected, 64)
    gradient = dnn.ctc_loss_backward(np.ones(batch), *arrays, **options, zero_infinity=True)
    running = (np.arange(steps)[:, None] < lengths) & np.isfinite(expected)
    np.testing.assert_allclose(
        gradient.sum(-1), -1.0 * running, atol=1e-12
    )  # in each step an alignment is in one class


@pytest.mark.parametrize("kept", [0, 300, 1000])
def test_ctc_gradient_in_segments(kept, monkeypatch):
    case = next(c for c in CASES if str(c) == "ctc_loss-long")
    arrays = case.draw()
    whole = dnn.ctc_loss_backward(np.array(1.0), *arrays)
    monkeypatch.setattr(loss_ctc, "_KEPT_BYTES", kept)
    np.testing.assert_array_equal(dnn.ctc_loss_backward(np.array(1.0), *arrays), whole)


# PyTorch takes no padding behind a single target; "one_class" holds no logarithms of probabilities, which the detour
# over the scores before a log-softmax needs.
_CTC_NOT_PYTORCH = ("single_padded", "one_class")
_CTC_AS_PYTORCH = [c for c in CASES if c.op == "ctc_loss" and c.draw()[0].size and c.id not in _CTC_NOT_PYTORCH]


@pytest.mark.parametrize("case", _CTC_AS_PYTORCH, ids=str)
def test_ctc_as_pytorch(case):
    torch = pytest.importorskip("torch")
    arrays = case.draw()
    log_probs, *rest = (torch.from_numpy(np.ascontiguousarray(a)).reshape(a.shape) for a in arrays)
    z = log_probs.requires_grad_()
    loss, pullback = dnn.vjp("ctc_loss", *arrays, **case.options)
    expected = torch.nn.functional.ctc_loss(z.log_softmax(-1), *rest, **case.options)
    np.testing.assert_allclose(loss, expected.detach().numpy(), rtol=1e-12, atol=1e-12)
    expected.sum().backward()
    true = pullback(np.ones(loss.shape))[0]
    through = true - np.exp(arrays[0]) * true.sum(-1, keepdims=True)  # back through the log-softmax before it
    np.testing.assert_allclose(through, z.grad.numpy(), rtol=1e-10, atol=1e-12)


def test_what_stands_behind_a_sequence_is_not_looked_at():
    case = next(c for c in CASES if str(c) == "ctc_loss-mean")
    log_probs, *rest = case.draw()
    expected = dnn.ctc_loss(log_probs, *rest), dnn.ctc_loss_backward(np.array(1.0), log_probs, *rest)
    behind = np.arange(5)[:, None] >= rest[1]
    for value in (np.nan, np.inf, -np.inf):
        log_probs[behind] = value
        np.testing.assert_array_equal(dnn.ctc_loss(log_probs, *rest), expected[0])
        np.testing.assert_array_equal(dnn.ctc_loss_backward(np.array(1.0), log_probs, *rest), expected[1])
    log_probs[0, 0, 0] = np.nan
    assert np.isnan(dnn.ctc_loss(log_probs, *rest))
