"""Losses: cross entropy on scores, on log-probabilities and fused with the last linear layer; connectionist temporal
classification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

from dnnarray._call.operation import find, operation
from dnnarray._errors import UnsupportedError, WorkspaceError
from dnnarray._problems import loss as problems
from dnnarray._problems import loss_linear
from dnnarray._problems.loss import CrossEntropyGradients, CrossEntropyOutput
from dnnarray._problems.loss_linear import LinearCrossEntropyGradients, TapedCrossEntropyOutput, TapedLoss
from dnnarray._typing import Array, ArrayT, Reduction

__all__ = [
    "CrossEntropyGradients",
    "CrossEntropyOutput",
    "LinearCrossEntropyGradients",
    "TapedCrossEntropyOutput",
    "TapedLoss",
    "cross_entropy",
    "cross_entropy_backward",
    "ctc_loss",
    "ctc_loss_backward",
    "linear_cross_entropy",
    "linear_cross_entropy_backward",
    "nll_loss",
    "nll_loss_backward",
]


def _keep_lse(name):
    """The ``save`` of an operation that can return its log-sum-exp: what the pullback would have to compute again."""

    def save(*arrays, return_lse, **options):
        output = find(name).call(arrays, options | {"return_lse": True})
        return output if return_lse else output.loss, {"lse": output.lse}

    return save


def _keep_gradients(*arrays, return_tape, **options):
    """The ``save`` of `linear_cross_entropy`: the tape; where there can be none, or no memory for it, the
    log-sum-exp."""
    if options["reduction"] != "none":
        try:
            result = find("linear_cross_entropy").call(arrays, options | {"return_tape": True})
        except (UnsupportedError, WorkspaceError):
            if return_tape:
                raise
        else:
            return result if return_tape else result.output, {"tape": result.tape}
    return _keep_lse("linear_cross_entropy")(*arrays, return_tape=return_tape, **options)


@overload
def cross_entropy(
    logits: ArrayT,
    target: Array,
    /,
    *,
    weight: Array | None = ...,
    ignore_index: int = ...,
    label_smoothing: float = ...,
    reduction: Reduction = ...,
    axis: int = ...,
    return_lse: Literal[False] = ...,
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> ArrayT: ...


@overload
def cross_entropy(
    logits: ArrayT,
    target: Array,
    /,
    *,
    weight: Array | None = ...,
    ignore_index: int = ...,
    label_smoothing: float = ...,
    reduction: Reduction = ...,
    axis: int = ...,
    return_lse: Literal[True],
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> Any: ...


@operation(
    problems.cross_entropy, arrays=("weight",), values=problems.labels_checked(1), save=_keep_lse("cross_entropy")
)
def cross_entropy(
    logits: ArrayT,
    target: Array,
    /,
    *,
    weight: Array | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    axis: int = 1,
    return_lse: bool = False,
    out: Array | None = None,
    workspace: Array | None = None,
) -> Any:
    """Cross entropy between scores and labels, or between scores and probabilities.

    With ``log p = log_softmax(logits)`` over the C classes, labels t, class weights w (1 where not given) and the label
    smoothing e, the loss of a row is ::

        l = (1 - e) * w[t] * -log p[t] + e / C * sum_c w[c] * -log p[c]

    and 0 where ``t == ignore_index``. Probabilities q in the place of labels give ::

        l = sum_c ((1 - e) * q[c] + e / C) * w[c] * -log p[c]

    All as in PyTorch. The "mean" of losses against labels is weighted: their sum over the sum of ``w[t]`` (over their
    number without `weight`), each without the rows ignored; NaN where none is left. The "mean" against probabilities
    divides by the number of rows.

    Parameters
    ----------
    logits : array (N, C, *space), or (C,) for a single row
        Scores of the classes: float64, float32, float16 or bfloat16. Any size, since the maximum is subtracted; a score
        of -inf is a class that cannot be.
    target : array
        Integers of shape (N, *space): labels from 0 to C - 1, or `ignore_index`. Or probabilities in the shape and
        dtype of `logits`; they need not sum to 1.
    weight : array (C,), optional
        A weight for each class, in the dtype of `logits`.
    ignore_index : int
        The label of rows that count for nothing; it may be one of the classes. Labels only.
    label_smoothing : float
        From 0 to 1: the share of the target that is spread evenly over all classes.
    reduction : {"mean", "sum", "none"}
        "none" gives a loss for each row.
    axis : int
        The class axis of `logits`. For a single row of shape (C,), 1 stands for its only axis, as in PyTorch.
    return_lse : bool
        Return the log-sum-exp of each row too, for `cross_entropy_backward`.
    out : array, optional
        Where to write the result, or a tuple of two with `return_lse`.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        The loss in the dtype of `logits`: 0-dimensional, or (N, *space) with ``reduction="none"``.
    CrossEntropyOutput
        With `return_lse`: ``loss``, and ``lse`` of shape (N, *space), float32 for half types.

    Raises
    ------
    ShapeError
        `target` or `weight` does not fit `logits`, or there is no class.
    DTypeError
        `logits` is not floating, `weight` or probabilities have another dtype, or `target` is neither integer nor
        floating.
    OptionError
        A label is out of range, an option is not one of these, or `ignore_index` is not negative beside probabilities.

    Notes
    -----
    On a GPU nothing looks at the labels before the work: a row whose label is out of range has a loss of NaN.

    References
    ----------
    Szegedy et al., "Rethinking the Inception architecture for computer vision", CVPR 2016 (label smoothing).

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> logits = np.log(np.array([[0.25, 0.75], [0.5, 0.5]]))
    >>> dnn.cross_entropy(logits, np.array([1, 0]), reduction="none").round(4)
    array([0.2877, 0.6931])
    >>> float(dnn.cross_entropy(logits, np.array([1, -100])).round(4))
    0.2877
    """


@operation(problems.cross_entropy_backward, arrays=("weight", "lse"), values=problems.labels_checked(2))
def cross_entropy_backward(
    grad: ArrayT,
    logits: Array,
    target: Array,
    /,
    *,
    weight: Array | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    axis: int = 1,
    lse: Array | None = None,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `cross_entropy` with respect to `logits`, and to `target` where it holds probabilities.

    ``d l / d logits = softmax(logits) * sum_c s[c] - s`` for each row, where s is the smoothed target times the class
    weights, and 0 for rows ignored; ``d l / d target = -(1 - label_smoothing) * w * log p``. `weight` is taken for a
    constant.

    Parameters
    ----------
    grad : array, shape and dtype of the loss
        Gradient of the loss.
    logits, target, weight : array
        As in the forward.
    ignore_index, label_smoothing, reduction, axis
        As in `cross_entropy`.
    lse : array (N, *space), optional
        What the forward returned with ``return_lse=True``; float32 for half types. It saves a pass over the scores.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out, workspace : array, optional
        As in `cross_entropy`.

    Returns
    -------
    array
        The gradient of `logits`, for labels.
    CrossEntropyGradients
        ``logits`` and ``target``, for probabilities.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match the loss, `lse` not the rows; else as in `cross_entropy`.
    OptionError
        As in `cross_entropy`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> logits = np.log(np.array([[0.25, 0.75]]))
    >>> dnn.cross_entropy_backward(np.array(1.0), logits, np.array([1])).round(4)
    array([[ 0.25, -0.25]])
    """


@operation(problems.nll_loss, arrays=("weight",), values=problems.labels_checked(1))
def nll_loss(
    log_probs: ArrayT,
    target: Array,
    /,
    *,
    weight: Array | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    axis: int = 1,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Negative log-likelihood: what `cross_entropy` is, on log-probabilities that are there already.

    ``l = -w[t] * log_probs[t]`` for each row, 0 where ``t == ignore_index``. The "mean" is weighted: the sum over the
    sum of ``w[t]`` of the rows that are not ignored, NaN where none is left.

    Parameters
    ----------
    log_probs : array (N, C, *space), or (C,) for a single row
        Log-probabilities of the classes: float64, float32, float16 or bfloat16.
    target : integer array (N, *space)
        Labels from 0 to C - 1, or `ignore_index`.
    weight : array (C,), optional
        A weight for each class, in the dtype of `log_probs`.
    ignore_index, reduction, axis
        As in `cross_entropy`.
    out, workspace : array, optional
        As in `cross_entropy`.

    Returns
    -------
    array
        The loss in the dtype of `log_probs`: 0-dimensional, or (N, *space) with ``reduction="none"``.

    Raises
    ------
    ShapeError
        `target` or `weight` does not fit `log_probs`, or there is no class.
    DTypeError
        `log_probs` is not floating, `weight` has another dtype, or `target` holds no integers.
    OptionError
        A label is out of range, or an option is not one of these.

    Notes
    -----
    On a GPU nothing looks at the labels before the work: a row whose label is out of range has a loss of NaN.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> float(dnn.nll_loss(np.array([[-1.0, -2.0], [-3.0, -4.0]]), np.array([0, 1])))
    2.5
    """


@operation(problems.nll_loss_backward, arrays=("weight",), values=problems.labels_checked(2))
def nll_loss_backward(
    grad: ArrayT,
    log_probs: Array,
    target: Array,
    /,
    *,
    weight: Array | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    axis: int = 1,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `nll_loss` with respect to `log_probs`: ``-grad * w[t]`` at the labels, over the weights' sum for
    "mean"; else 0.

    Parameters
    ----------
    grad : array, shape and dtype of the loss
        Gradient of the loss.
    log_probs, target, weight : array
        As in the forward; the `Spec` of `log_probs` will do.
    ignore_index, reduction, axis
        As in `cross_entropy`.
    out, workspace : array, optional
        As in `cross_entropy`.

    Returns
    -------
    array
        Shape and dtype of `log_probs`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match the loss; else as in `nll_loss`.
    OptionError
        As in `nll_loss`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.nll_loss_backward(np.array(1.0), np.array([[-1.0, -2.0], [-3.0, -4.0]]), np.array([0, 1]))
    array([[-0.5,  0. ],
           [ 0. , -0.5]])
    """


@overload
def linear_cross_entropy(
    x: ArrayT,
    w: Array,
    target: Array,
    /,
    bias: Array | None = ...,
    *,
    weight: Array | None = ...,
    ignore_index: int = ...,
    label_smoothing: float = ...,
    reduction: Reduction = ...,
    return_lse: Literal[False] = ...,
    return_tape: Literal[False] = ...,
    out: Array | None = ...,
    workspace: Array | None = ...,
    algorithm: str | None = ...,
) -> ArrayT: ...


@overload
def linear_cross_entropy(
    x: ArrayT,
    w: Array,
    target: Array,
    /,
    bias: Array | None = ...,
    *,
    weight: Array | None = ...,
    ignore_index: int = ...,
    label_smoothing: float = ...,
    reduction: Reduction = ...,
    return_lse: bool = ...,
    return_tape: bool = ...,
    out: Array | None = ...,
    workspace: Array | None = ...,
    algorithm: str | None = ...,
) -> Any: ...


@operation(
    loss_linear.linear_cross_entropy,
    arrays=("bias", "weight"),
    values=problems.labels_checked(2),
    save=_keep_gradients,
)
def linear_cross_entropy(
    x: ArrayT,
    w: Array,
    target: Array,
    /,
    bias: Array | None = None,
    *,
    weight: Array | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    return_lse: bool = False,
    return_tape: bool = False,
    out: Array | None = None,
    workspace: Array | None = None,
    algorithm: str | None = None,
) -> Any:
    """Cross entropy of a linear layer's scores, without the scores: ``cross_entropy(x @ w.T + bias, target)``.

    For the last layer of a language model, whose scores (N, V) are by far its largest array. They are computed block by
    block, each block is reduced to a running maximum, sum of exponentials and score of the label, and forgotten. Memory
    beyond inputs and outputs does not grow with N or V, but for the float32 copies of half-type inputs.

    The gradients take the scores a second time, a fourth product of that size. With `return_tape` the forward takes
    them itself, while the scores of a block of rows are there: with g the gradient of the scores of a block for a loss
    whose gradient is 1, ::

        dx[rows] = g @ w        dw += g.T @ x[rows]        dbias += sum g

    so that nothing but ``grad * (dx, dw, dbias)`` is left to the backward. `vjp` does so by itself, where the memory
    allows it.

    Parameters
    ----------
    x : array (..., D)
        Features of each row: float64, float32, float16 or bfloat16.
    w : array (V, D)
        A row of weights for each class; dtype of `x`.
    target : integer array (...)
        Labels from 0 to V - 1, or `ignore_index`.
    bias : array (V,), optional
        Added to the scores; dtype of `x`. -inf takes a class out.
    weight : array (V,), optional
        A weight for each class in the loss; dtype of `x`.
    ignore_index, label_smoothing, reduction
        As in `cross_entropy`.
    return_lse : bool
        Return the log-sum-exp of each row too, for `linear_cross_entropy_backward`.
    return_tape : bool, default False
        Return the gradients for a loss whose gradient is 1 too, for `linear_cross_entropy_backward`; not with
        ``reduction="none"``.
    out : array, optional
        Where to write the result, or a tuple of the results with `return_lse` or `return_tape`.
    workspace : uint8 array, optional
        Scratch memory for one block of scores; `infer` gives its size. With `return_tape` it holds the gradients of all
        scores of a block of rows, on a GPU of as many rows as take no more memory than the tape, or 1 GiB.
    algorithm : str, optional
        One of `algorithms`: ``"blocks"``, or ``"small_blocks"`` which takes less memory. On a GPU ``"blocks_rounded"``
        as in `linear_cross_entropy_backward`, with `return_tape`.

    Returns
    -------
    array
        The loss in the dtype of `x`: 0-dimensional, or of the shape of `target` with ``reduction="none"``.
    CrossEntropyOutput
        With `return_lse`: ``loss``, and ``lse`` of the shape of `target`, float32 for half types.
    TapedLoss, or TapedCrossEntropyOutput with `return_lse`
        With `return_tape`: as above, and ``tape``, one axis, of the dtype of `x` (float32 beside a half `x`), as long
        as the gradients of `x`, `w` and `bias` together, in an order that may change from version to version.

    Raises
    ------
    ShapeError
        `w`, `target`, `bias` or `weight` does not fit, or there is no class.
    DTypeError
        The floating arrays differ in dtype, or `target` holds no integers.
    OptionError
        A label is out of range, or an option is not one of these; `return_tape` with ``reduction="none"``.

    References
    ----------
    Hsu et al., "Liger kernel: efficient Triton kernels for LLM training", 2024 (gradients taken in the forward).
    Wijmans et al., "Cut your losses in large-vocabulary language models", ICLR 2025.
    Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x, w = np.eye(2), np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])
    >>> dnn.linear_cross_entropy(x, w, np.array([0, 2]), reduction="none").round(4)
    array([1.0986, 0.4076])
    >>> loss, tape = dnn.linear_cross_entropy(x, w, np.array([0, 2]), return_tape=True)
    >>> dnn.linear_cross_entropy_backward(np.array(1.0), x, w, np.array([0, 2]), tape=tape).x.round(4)
    array([[ 0.    ,  0.5   ],
           [ 0.    , -0.2124]])
    """


@operation(
    loss_linear.linear_cross_entropy_backward,
    arrays=("bias", "weight", "lse", "tape"),
    values=problems.labels_checked(3),
)
def linear_cross_entropy_backward(
    grad: ArrayT,
    x: Array,
    w: Array,
    target: Array,
    /,
    bias: Array | None = None,
    *,
    weight: Array | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    lse: Array | None = None,
    tape: Array | None = None,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
    algorithm: str | None = None,
) -> LinearCrossEntropyGradients[ArrayT]:
    """Gradients of `linear_cross_entropy` with respect to `x`, `w` and `bias`; the scores are computed again block by
    block unless the tape is given.

    With the gradient g of the scores, as `cross_entropy_backward` gives it: ``dx = g @ w``, ``dw = g.T @ x``, ``dbias =
    sum g``.

    Parameters
    ----------
    grad : array, shape and dtype of the loss
        Gradient of the loss.
    x, w, target, bias, weight : array
        As in the forward.
    ignore_index, label_smoothing, reduction
        As in `cross_entropy`.
    lse : array (...), optional
        What the forward returned with ``return_lse=True``; float32 for half types. Without it the scores are computed
        twice.
    tape : array, optional
        What the forward returned with ``return_tape=True`` for the same arrays and options: the gradients are it times
        `grad`, which is all that is read beside it. Not with ``reduction="none"``.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out : tuple of arrays, optional
        Where to write the gradients; two without `bias`.
    workspace
        As in `linear_cross_entropy`.
    algorithm : str, optional
        One of `algorithms`. On a GPU ``"blocks_rounded"``, the choice for half types where it saves more than a launch,
        rounds g to the dtype of `x` before it is multiplied; ``"blocks"`` multiplies what the rounding leaves too.

    Returns
    -------
    LinearCrossEntropyGradients
        ``x``, ``w`` and ``bias``, which is None where the forward had none.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match the loss, `lse` not the rows, `tape` not the arrays; else as in `linear_cross_entropy`.
    OptionError
        As in `linear_cross_entropy`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x, w = np.array([[2.0]]), np.array([[0.0], [0.0]])
    >>> gradients = dnn.linear_cross_entropy_backward(np.array(1.0), x, w, np.array([0]))
    >>> gradients.w
    array([[-1.],
           [ 1.]])
    """


@operation(problems.ctc_loss, values=problems.ctc_values, numbers=("input_lengths", "target_lengths"))
def ctc_loss(
    log_probs: ArrayT,
    targets: Array,
    input_lengths: Array | int,
    target_lengths: Array | int,
    /,
    *,
    blank: int = 0,
    reduction: Reduction = "mean",
    zero_infinity: bool = False,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Connectionist temporal classification: a sequence of scores against a shorter sequence of labels without
    alignment.

    ``l = -log sum_a prod_t p[t, a[t]]`` over all alignments a: sequences of input_length classes that become the target
    when first repeats are merged and then blanks removed. Where there is none (too few steps) the loss is inf.

    Parameters
    ----------
    log_probs : array (T, N, C), or (T, C) for a single sequence
        Log-probabilities of the classes at each step, as `log_softmax` gives them: float64, float32, float16 or
        bfloat16.
    targets : integer array (N, S), or (sum of target_lengths,)
        Labels from 0 to C - 1 without the blank: padded at the end with anything, or all targets one behind the other;
        (S,) for a single sequence.
    input_lengths : integer array (N,)
        Steps of each sequence, 0 to T; what stands behind them is not looked at. An integer for a single sequence.
    target_lengths : integer array (N,)
        Labels of each target, 0 to S. An integer for a single sequence.
    blank : int
        The class that stands for no label.
    reduction : {"mean", "sum", "none"}
        "mean" divides each loss by the length of its target (by 1 where that is 0) and averages over the batch, as
        PyTorch does; NaN for an empty batch.
    zero_infinity : bool
        Losses of inf, and their gradients, count as 0.
    out : array, optional
        Where to write the result.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        The loss in the dtype of `log_probs`: 0-dimensional, or (N,) with ``reduction="none"`` and a batch.

    Raises
    ------
    ShapeError
        The arrays do not fit each other, or there is no class.
    DTypeError
        `log_probs` is not floating, or another array holds no integers.
    OptionError
        A length or a label is out of range, a label is the blank, or an option is not one of these.

    Notes
    -----
    On a GPU nothing looks at labels and lengths before the work: a sequence with a length or a label out of range, or
    with the blank for a label, has a loss of NaN.

    References
    ----------
    Graves et al., "Connectionist temporal classification: labelling unsegmented sequence data with recurrent neural
    networks", ICML 2006.

    Examples
    --------
    Two steps with even odds for blank and label: three of the four alignments give the label.

    >>> import dnnarray as dnn, numpy as np
    >>> log_probs = np.log(np.full((2, 1, 2), 0.5))
    >>> loss = dnn.ctc_loss(log_probs, np.array([[1]]), np.array([2]), np.array([1]))
    >>> float(np.exp(-loss).round(4))
    0.75
    """


@operation(problems.ctc_loss_backward, values=problems.ctc_values, numbers=("input_lengths", "target_lengths"))
def ctc_loss_backward(
    grad: ArrayT,
    log_probs: Array,
    targets: Array,
    input_lengths: Array | int,
    target_lengths: Array | int,
    /,
    *,
    blank: int = 0,
    reduction: Reduction = "mean",
    zero_infinity: bool = False,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `ctc_loss` with respect to `log_probs`: the true partial derivatives.

    ``d l / d log_probs[t, c] = -P(a[t] = c | target)``, less the probability that an alignment of the target is in
    class c at step t; 0 behind the end of a sequence. PyTorch returns ``exp(log_probs) - P`` here instead, which is the
    gradient of the scores before a `log_softmax`, not of its result. Following this gradient back through
    `log_softmax_backward` gives the same gradient of the scores, since P sums to 1 over the classes.

    Parameters
    ----------
    grad : array, shape and dtype of the loss
        Gradient of the loss.
    log_probs, targets, input_lengths, target_lengths : array
        As in the forward.
    blank, reduction, zero_infinity
        As in `ctc_loss`. Where the loss is inf, the gradient is NaN, or 0 with `zero_infinity`.
    out, workspace : array, optional
        As in `ctc_loss`.

    Returns
    -------
    array
        Shape and dtype of `log_probs`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match the loss; else as in `ctc_loss`.
    OptionError
        As in `ctc_loss`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> log_probs = np.log(np.full((2, 1, 2), 0.5))
    >>> grad = dnn.ctc_loss_backward(np.array(1.0), log_probs, np.array([[1]]), np.array([2]), np.array([1]))
    >>> grad[:, 0].round(4)
    array([[-0.3333, -0.6667],
           [-0.3333, -0.6667]])
    """
