"""Recurrent networks: rnn, gru, lstm and their single steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

from dnnarray._call.operation import find, operation
from dnnarray._errors import UnsupportedError
from dnnarray._problems import rnn as problems
from dnnarray._problems.rnn import RNNWeights
from dnnarray._problems.rnn_results import (
    CellGradients,
    HiddenOutput,
    LSTMCellGradients,
    LSTMGradients,
    LSTMState,
    RNNGradients,
    RNNOutput,
    TapedHiddenOutput,
    TapedRNNOutput,
)
from dnnarray._typing import Array, ArrayT, SequenceLayout

__all__ = [
    "CellGradients",
    "HiddenOutput",
    "LSTMCellGradients",
    "LSTMGradients",
    "LSTMState",
    "RNNGradients",
    "RNNOutput",
    "RNNWeights",
    "TapedHiddenOutput",
    "TapedRNNOutput",
    "gru",
    "gru_backward",
    "gru_cell",
    "gru_cell_backward",
    "lstm",
    "lstm_backward",
    "lstm_cell",
    "lstm_cell_backward",
    "rnn",
    "rnn_backward",
    "rnn_cell",
    "rnn_cell_backward",
]


def _save(name: str) -> Any:
    """For `vjp`: run with a tape, and keep it; on an engine that has none the gradient runs the forward again."""

    def save(*arrays: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
        operation = find(name)
        try:
            result = operation.call(arrays, options | {"return_tape": True})
        except UnsupportedError:
            return operation.call(arrays, options), {}
        return result if options["return_tape"] else result.output, {"tape": result.tape}

    return save


@overload
def rnn(
    x: ArrayT,
    weights: Sequence[RNNWeights],
    /,
    h0: Array | None = ...,
    *,
    activation: Literal["tanh", "relu"] = ...,
    bidirectional: bool = ...,
    reverse: bool = ...,
    lengths: Array | None = ...,
    dropout: float = ...,
    seed: int | None = ...,
    offset: int = ...,
    layout: SequenceLayout = ...,
    return_tape: Literal[False] = ...,
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> HiddenOutput[ArrayT]: ...


@overload
def rnn(
    x: ArrayT,
    weights: Sequence[RNNWeights],
    /,
    h0: Array | None = ...,
    *,
    activation: Literal["tanh", "relu"] = ...,
    bidirectional: bool = ...,
    reverse: bool = ...,
    lengths: Array | None = ...,
    dropout: float = ...,
    seed: int | None = ...,
    offset: int = ...,
    layout: SequenceLayout = ...,
    return_tape: Literal[True],
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> TapedHiddenOutput[ArrayT]: ...


@operation(
    problems.sequence("rnn"),
    arrays=("h0", "lengths"),
    runtime=("seed", "offset"),
    nested=("weights",),
    values=problems.check_lengths,
    save=_save("rnn"),
)
def rnn(
    x: ArrayT,
    weights: Sequence[RNNWeights],
    /,
    h0: Array | None = None,
    *,
    activation: Literal["tanh", "relu"] = "tanh",
    bidirectional: bool = False,
    reverse: bool = False,
    lengths: Array | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    layout: SequenceLayout = "TNC",
    return_tape: bool = False,
    out: Array | None = None,
    workspace: Array | None = None,
) -> Any:
    """Elman recurrent network over a sequence, of one or more layers and one or two directions.

    ``h(t) = f(w_ih x(t) + b_ih + w_hh h(t-1) + b_hh)`` with f = tanh or relu; ``y(t) = h(t)`` is the input of the next
    layer. A reversed direction takes the time steps from the last to the first; with two directions the output holds
    the forward state and the reversed one side by side.

    Parameters
    ----------
    x : array (T, N, I), or (N, T, I) with ``layout="NTC"``
        T time steps of N sequences with I features: float64, float32, float16 or bfloat16. Half types are computed in
        float32.
    weights : list or tuple of RNNWeights
        One for each layer and direction: layer 0 forward, layer 0 reversed, layer 1 forward, ... With H hidden units, D
        directions and G = 1 gate: w_ih (G*H, I), from layer 1 on (G*H, D*H), w_hh (G*H, H), b_ih and b_hh (G*H,) or
        None. The dtype of `x`.
    h0 : array (layers*D, N, H), optional
        States before the first step; 0 where omitted.
    activation : {"tanh", "relu"}
        The nonlinearity f.
    bidirectional : bool
        Two directions, D = 2.
    reverse : bool
        The one direction is the reversed one; ``y[t]`` still belongs to ``x[t]``.
    lengths : integer array (N,), optional
        Steps of each sequence, 0 to T, in any order; T where omitted. Steps past the end give 0 in y and do not change
        the state, whatever `x` holds there; a reversed direction begins at each sequence's own end. A sequence of
        length 0 keeps h0.
    dropout : float, 0 to 1
        Probability to drop an element of the output of each layer but the last; the others are divided by ``1 -
        dropout``.
    seed : int, optional
        Seed of the dropout; required where `dropout` is above 0.
    offset : int
        Where in the random stream of `seed` the call begins. The element y[t, n, j] of layer l uses number
        ``offset + ((l*T + t)*N + n)*D*H + j``; so a call uses ``(layers - 1)*T*N*D*H`` numbers.
    layout : {"TNC", "NTC"}
        Order of the axes of x and y; the states stay (layers*D, N, H).
    return_tape : bool, default False
        Return the tape too: what the gradient of this call wants of the forward and would else compute again.
    out : tuple of array, optional
        Where to write y and h, and the tape with `return_tape`.
    workspace : uint8 array, optional
        Scratch memory; `infer` tells how much.

    Returns
    -------
    HiddenOutput, or TapedHiddenOutput with `return_tape`
        ``y`` (T, N, D*H), or (N, T, D*H), the output of the last layer; ``h`` (layers*D, N, H), the states after the
        last step; ``tape``, one axis, of the dtype of `x` (float32 beside a half `x`): for the gradient of the same
        call, in an order that may change from version to version.

    Raises
    ------
    ShapeError
        An array has the wrong shape, or the number of weights does not fit the directions; the message names layer and
        direction.
    DTypeError
        An array is not floating, or not of the dtype of `x`; `lengths` are no integers.
    ArrayTypeError
        `weights` is no list of `RNNWeights`, or an argument is no array.
    OptionError
        An option or a length is out of range; `seed` is missing; a projection or a peephole is given; `reverse`
        together with `bidirectional`.
    UnsupportedError
        `return_tape` on a GPU, where the gradient always runs the forward again.

    References
    ----------
    Elman, "Finding structure in time", Cognitive Science 14, 1990. Schuster and Paliwal, "Bidirectional recurrent
    neural networks", IEEE Transactions on Signal Processing 45, 1997.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> w = dnn.RNNWeights(np.ones((2, 3)), np.zeros((2, 2)))
    >>> y, h = dnn.rnn(np.zeros((5, 1, 3)), [w])
    >>> y.shape, h.shape
    ((5, 1, 2), (1, 1, 2))
    """


@overload
def gru(
    x: ArrayT,
    weights: Sequence[RNNWeights],
    /,
    h0: Array | None = ...,
    *,
    linear_before_reset: bool = ...,
    bidirectional: bool = ...,
    reverse: bool = ...,
    lengths: Array | None = ...,
    dropout: float = ...,
    seed: int | None = ...,
    offset: int = ...,
    layout: SequenceLayout = ...,
    return_tape: Literal[False] = ...,
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> HiddenOutput[ArrayT]: ...


@overload
def gru(
    x: ArrayT,
    weights: Sequence[RNNWeights],
    /,
    h0: Array | None = ...,
    *,
    linear_before_reset: bool = ...,
    bidirectional: bool = ...,
    reverse: bool = ...,
    lengths: Array | None = ...,
    dropout: float = ...,
    seed: int | None = ...,
    offset: int = ...,
    layout: SequenceLayout = ...,
    return_tape: Literal[True],
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> TapedHiddenOutput[ArrayT]: ...


@operation(
    problems.sequence("gru"),
    arrays=("h0", "lengths"),
    runtime=("seed", "offset"),
    nested=("weights",),
    values=problems.check_lengths,
    save=_save("gru"),
)
def gru(
    x: ArrayT,
    weights: Sequence[RNNWeights],
    /,
    h0: Array | None = None,
    *,
    linear_before_reset: bool = True,
    bidirectional: bool = False,
    reverse: bool = False,
    lengths: Array | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    layout: SequenceLayout = "TNC",
    return_tape: bool = False,
    out: Array | None = None,
    workspace: Array | None = None,
) -> Any:
    """Network of gated recurrent units over a sequence, of one or more layers and one or two directions.

    With the gates r, z and n, the rows of w_ih, w_hh and the biases in this order, and s the logistic sigmoid::

        r = s(w_ir x + b_ir + w_hr h + b_hr)
        z = s(w_iz x + b_iz + w_hz h + b_hz)
        n = tanh(w_in x + b_in + r * (w_hn h + b_hn))        linear_before_reset=True, as PyTorch and cuDNN
        n = tanh(w_in x + b_in + w_hn (r * h) + b_hn)        linear_before_reset=False, as the paper and ONNX's default
        h = (1 - z) * n + z * h

    Parameters
    ----------
    x : array (T, N, I), or (N, T, I) with ``layout="NTC"``
        T time steps of N sequences with I features: float64, float32, float16 or bfloat16. Half types are computed in
        float32.
    weights : list or tuple of RNNWeights
        As in `rnn`, with G = 3 gates.
    h0 : array (layers*D, N, H), optional
        States before the first step; 0 where omitted.
    linear_before_reset : bool
        Where the reset gate acts: on the product with the state, or on the state itself.
    bidirectional, reverse, lengths, dropout, seed, offset, layout, return_tape
        As in `rnn`.
    out : tuple of array, optional
        Where to write y and h, and the tape with `return_tape`.
    workspace : uint8 array, optional
        Scratch memory; `infer` tells how much.

    Returns
    -------
    HiddenOutput, or TapedHiddenOutput with `return_tape`
        ``y`` (T, N, D*H), or (N, T, D*H), the output of the last layer;
        ``h`` (layers*D, N, H), the states after the last step; ``tape`` as in `rnn`.

    Raises
    ------
    ShapeError, DTypeError, ArrayTypeError, OptionError, UnsupportedError
        As in `rnn`.

    References
    ----------
    Cho et al., "Learning phrase representations using RNN encoder-decoder for statistical machine translation", EMNLP
    2014.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> w = dnn.RNNWeights(np.ones((6, 3)), np.zeros((6, 2)))
    >>> y, h = dnn.gru(np.zeros((5, 1, 3)), [w])
    >>> y.shape, h.shape
    ((5, 1, 2), (1, 1, 2))
    """


@overload
def lstm(
    x: ArrayT,
    weights: Sequence[RNNWeights],
    /,
    h0: Array | None = ...,
    c0: Array | None = ...,
    *,
    cell_clip: float | None = ...,
    bidirectional: bool = ...,
    reverse: bool = ...,
    lengths: Array | None = ...,
    dropout: float = ...,
    seed: int | None = ...,
    offset: int = ...,
    layout: SequenceLayout = ...,
    return_tape: Literal[False] = ...,
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> RNNOutput[ArrayT]: ...


@overload
def lstm(
    x: ArrayT,
    weights: Sequence[RNNWeights],
    /,
    h0: Array | None = ...,
    c0: Array | None = ...,
    *,
    cell_clip: float | None = ...,
    bidirectional: bool = ...,
    reverse: bool = ...,
    lengths: Array | None = ...,
    dropout: float = ...,
    seed: int | None = ...,
    offset: int = ...,
    layout: SequenceLayout = ...,
    return_tape: Literal[True],
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> TapedRNNOutput[ArrayT]: ...


@operation(
    problems.sequence("lstm"),
    arrays=("h0", "c0", "lengths"),
    runtime=("seed", "offset"),
    nested=("weights",),
    values=problems.check_lengths,
    save=_save("lstm"),
)
def lstm(
    x: ArrayT,
    weights: Sequence[RNNWeights],
    /,
    h0: Array | None = None,
    c0: Array | None = None,
    *,
    cell_clip: float | None = None,
    bidirectional: bool = False,
    reverse: bool = False,
    lengths: Array | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    layout: SequenceLayout = "TNC",
    return_tape: bool = False,
    out: Array | None = None,
    workspace: Array | None = None,
) -> Any:
    """Long short-term memory over a sequence, of one or more layers and one or two directions.

    With the gates i, f, g and o, the rows of w_ih, w_hh and the biases in this order, and s the logistic sigmoid::

        i = s(w_ii x + b_ii + w_hi h + b_hi + p_i * c)
        f = s(w_if x + b_if + w_hf h + b_hf + p_f * c)
        g = tanh(w_ig x + b_ig + w_hg h + b_hg)
        c = f * c + i * g, then clipped to [-cell_clip, cell_clip]
        o = s(w_io x + b_io + w_ho h + b_ho + p_o * c)
        h = w_hr (o * tanh(c))

    Peepholes p and projection w_hr are optional. i and f see the old cell state, o the new one.

    Parameters
    ----------
    x : array (T, N, I), or (N, T, I) with ``layout="NTC"``
        T time steps of N sequences with I features: float64, float32, float16 or bfloat16. Half types are computed in
        float32.
    weights : list or tuple of RNNWeights
        As in `rnn`, with G = 4 gates. With w_hr (P, H), in all layers or in none, h has P elements: w_hh is (4*H, P)
        and w_ih of the layers from 1 on (4*H, D*P); P = H without. `peephole` (3, H) in the order i f o.
    h0 : array (layers*D, N, P), optional
        States before the first step; 0 where omitted.
    c0 : array (layers*D, N, H), optional
        Cell states before the first step; 0 where omitted.
    cell_clip : float above 0, optional
        Bound of the cell state; no gradient passes where it was reached. (The `clip` of ONNX bounds the gates' inputs
        instead.)
    bidirectional, reverse, lengths, dropout, seed, offset, layout, return_tape
        As in `rnn`, with P in the place of H.
    out : tuple of array, optional
        Where to write y, h and c, and the tape with `return_tape`.
    workspace : uint8 array, optional
        Scratch memory; `infer` tells how much.

    Returns
    -------
    RNNOutput, or TapedRNNOutput with `return_tape`
        ``y`` (T, N, D*P), or (N, T, D*P), the output of the last layer; ``h`` (layers*D, N, P) and ``c`` (layers*D, N,
        H), the states after the last step; ``tape`` as in `rnn`.

    Raises
    ------
    ShapeError, DTypeError, ArrayTypeError, OptionError, UnsupportedError
        As in `rnn`; a projection must stand in all layers or in none (`ShapeError`).

    References
    ----------
    Hochreiter and Schmidhuber, "Long short-term memory", Neural Computation 9, 1997. Gers, Schraudolph and Schmidhuber,
    "Learning precise timing with LSTM recurrent networks", JMLR 3, 2002 (peepholes). Sak, Senior and Beaufays, "Long
    short-term memory based recurrent neural network architectures for large vocabulary speech recognition", 2014
    (projection).

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> w = dnn.RNNWeights(np.ones((8, 3)), np.zeros((8, 2)))
    >>> y, h, c = dnn.lstm(np.zeros((5, 1, 3)), [w])
    >>> y.shape, h.shape, c.shape
    ((5, 1, 2), (1, 1, 2), (1, 1, 2))
    """


@operation(
    problems.sequence_backward("rnn"),
    arrays=("h0", "lengths", "tape"),
    runtime=("seed", "offset"),
    nested=("grad", "weights"),
    values=problems.check_lengths_backward,
)
def rnn_backward(
    grad: ArrayT | tuple[ArrayT | None, ...],
    x: Array,
    weights: Sequence[RNNWeights],
    /,
    h0: Array | None = None,
    *,
    activation: Literal["tanh", "relu"] = "tanh",
    bidirectional: bool = False,
    reverse: bool = False,
    lengths: Array | None = None,
    tape: Array | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    layout: SequenceLayout = "TNC",
    return_tape: bool = False,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> RNNGradients[ArrayT]:
    """Gradients of `rnn`, by back-propagation through time; the forward is computed again where its tape is not given.

    Parameters
    ----------
    grad : array, or tuple (y, h) of array or None
        Gradient of y; or those of y and of the last states h, None where there is none.
    x, weights, h0 : as in `rnn`
        The arrays of the forward.
    tape : array, optional
        What ``rnn(..., return_tape=True)`` returned for the same arrays and options.
    activation, bidirectional, reverse, lengths, dropout, seed, offset, layout, return_tape
        As in `rnn`; the same seed and offset give the same dropout. `return_tape` changes nothing here.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out : tuple of array, optional
        Where to write the gradients, in the order of x, the arrays of the weights that are given, h0.
    workspace : uint8 array, optional
        Scratch memory; `infer` tells how much. It holds the gates of all steps.

    Returns
    -------
    RNNGradients
        ``x``; ``weights``, a tuple of `RNNWeights`, None where an array is absent; ``h0``, None where it was omitted.
        The relu's slope at 0 is 0.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match the outputs, or as in `rnn`.
    ArrayTypeError, OptionError
        All gradients are None, or as in `rnn`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> w = dnn.RNNWeights(np.ones((2, 3)), np.zeros((2, 2)))
    >>> gradients = dnn.rnn_backward(np.ones((5, 1, 2)), np.zeros((5, 1, 3)), [w])
    >>> gradients.x[0, 0]
    array([2., 2., 2.])
    >>> gradients.weights[0].w_hh.shape, gradients.h0
    ((2, 2), None)
    """


@operation(
    problems.sequence_backward("gru"),
    arrays=("h0", "lengths", "tape"),
    runtime=("seed", "offset"),
    nested=("grad", "weights"),
    values=problems.check_lengths_backward,
)
def gru_backward(
    grad: ArrayT | tuple[ArrayT | None, ...],
    x: Array,
    weights: Sequence[RNNWeights],
    /,
    h0: Array | None = None,
    *,
    linear_before_reset: bool = True,
    bidirectional: bool = False,
    reverse: bool = False,
    lengths: Array | None = None,
    tape: Array | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    layout: SequenceLayout = "TNC",
    return_tape: bool = False,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> RNNGradients[ArrayT]:
    """Gradients of `gru`, by back-propagation through time; the forward is computed again where its tape is not given.

    Parameters
    ----------
    grad : array, or tuple (y, h) of array or None
        Gradient of y; or those of y and of the last states h, None where there is none.
    x, weights, h0 : as in `gru`
        The arrays of the forward.
    tape : array, optional
        What ``gru(..., return_tape=True)`` returned for the same arrays and options.
    linear_before_reset, bidirectional, reverse, lengths, dropout, seed, offset, layout, return_tape
        As in `gru`; the same seed and offset give the same dropout. `return_tape` changes nothing here.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out, workspace
        As in `rnn_backward`.

    Returns
    -------
    RNNGradients
        ``x``; ``weights``, a tuple of `RNNWeights`, None where an array is absent; ``h0``, None where it was omitted.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match the outputs, or as in `gru`.
    ArrayTypeError, OptionError
        All gradients are None, or as in `gru`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> w = dnn.RNNWeights(np.ones((6, 3)), np.zeros((6, 2)))
    >>> gradients = dnn.gru_backward(np.ones((5, 1, 2)), np.zeros((5, 1, 3)), [w])
    >>> gradients.x.shape, gradients.weights[0].w_ih.shape
    ((5, 1, 3), (6, 3))
    """


@operation(
    problems.sequence_backward("lstm"),
    arrays=("h0", "c0", "lengths", "tape"),
    runtime=("seed", "offset"),
    nested=("grad", "weights"),
    values=problems.check_lengths_backward,
)
def lstm_backward(
    grad: ArrayT | tuple[ArrayT | None, ...],
    x: Array,
    weights: Sequence[RNNWeights],
    /,
    h0: Array | None = None,
    c0: Array | None = None,
    *,
    cell_clip: float | None = None,
    bidirectional: bool = False,
    reverse: bool = False,
    lengths: Array | None = None,
    tape: Array | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    layout: SequenceLayout = "TNC",
    return_tape: bool = False,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> LSTMGradients[ArrayT]:
    """Gradients of `lstm`, by back-propagation through time; the forward is computed again where its tape is not given.

    Parameters
    ----------
    grad : array, or tuple (y, h, c) of array or None
        Gradient of y; or those of y and of the last states h and c, None where there is none.
    x, weights, h0, c0 : as in `lstm`
        The arrays of the forward.
    tape : array, optional
        What ``lstm(..., return_tape=True)`` returned for the same arrays and options.
    cell_clip, bidirectional, reverse, lengths, dropout, seed, offset, layout, return_tape
        As in `lstm`; the same seed and offset give the same dropout. `return_tape` changes nothing here.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out, workspace
        As in `rnn_backward`; c0 follows h0.

    Returns
    -------
    LSTMGradients
        ``x``; ``weights``, a tuple of `RNNWeights`, None where an array is absent; ``h0`` and ``c0``, None where
        omitted.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match the outputs, or as in `lstm`.
    ArrayTypeError, OptionError
        All gradients are None, or as in `lstm`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> w = dnn.RNNWeights(np.ones((8, 3)), np.zeros((8, 2)))
    >>> gradients = dnn.lstm_backward(np.ones((5, 1, 2)), np.zeros((5, 1, 3)), [w])
    >>> gradients.x.shape, gradients.weights[0].w_ih.shape
    ((5, 1, 3), (8, 3))

    With what the forward kept, it is not run again:

    >>> y, h, c, tape = dnn.lstm(np.zeros((5, 1, 3)), [w], return_tape=True)
    >>> again = dnn.lstm_backward(np.ones_like(y), np.zeros((5, 1, 3)), [w], tape=tape)
    >>> bool(np.allclose(again.x, gradients.x))
    True
    """


@operation(problems.step("rnn"), nested=("weights",))
def rnn_cell(
    x: ArrayT,
    weights: RNNWeights,
    h: Array,
    /,
    *,
    activation: Literal["tanh", "relu"] = "tanh",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """One step of `rnn`: ``f(w_ih x + b_ih + w_hh h + b_hh)`` with f = tanh or relu.

    Parameters
    ----------
    x : array (N, I)
        One time step of N sequences with I features: float64, float32, float16 or bfloat16.
    weights : RNNWeights
        w_ih (H, I), w_hh (H, H), b_ih and b_hh (H,) or None.
    h : array (N, H)
        The state before the step.
    activation : {"tanh", "relu"}
        The nonlinearity f.
    out : array, optional
        Where to write the new state.
    workspace : uint8 array, optional
        Scratch memory; `infer` tells how much.

    Returns
    -------
    array (N, H)
        The new state.

    Raises
    ------
    ShapeError, DTypeError, ArrayTypeError, OptionError
        As in `rnn`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> w = dnn.RNNWeights(np.ones((2, 3)), np.zeros((2, 2)))
    >>> dnn.rnn_cell(np.ones((1, 3)), w, np.zeros((1, 2)), activation="relu")
    array([[3., 3.]])
    """


@operation(problems.step("gru"), nested=("weights",))
def gru_cell(
    x: ArrayT,
    weights: RNNWeights,
    h: Array,
    /,
    *,
    linear_before_reset: bool = True,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """One step of `gru`, with its formula.

    Parameters
    ----------
    x : array (N, I)
        One time step of N sequences with I features: float64, float32, float16 or bfloat16.
    weights : RNNWeights
        w_ih (3*H, I), w_hh (3*H, H), b_ih and b_hh (3*H,) or None, gates in the order r z n.
    h : array (N, H)
        The state before the step.
    linear_before_reset : bool
        As in `gru`.
    out : array, optional
        Where to write the new state.
    workspace : uint8 array, optional
        Scratch memory; `infer` tells how much.

    Returns
    -------
    array (N, H)
        The new state.

    Raises
    ------
    ShapeError, DTypeError, ArrayTypeError, OptionError
        As in `gru`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> w = dnn.RNNWeights(np.zeros((6, 3)), np.zeros((6, 2)))
    >>> dnn.gru_cell(np.ones((1, 3)), w, np.ones((1, 2)))
    array([[0.5, 0.5]])
    """


@operation(problems.step("lstm"), nested=("weights",))
def lstm_cell(
    x: ArrayT,
    weights: RNNWeights,
    h: Array,
    c: Array,
    /,
    *,
    cell_clip: float | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> LSTMState[ArrayT]:
    """One step of `lstm`, with its formula.

    Parameters
    ----------
    x : array (N, I)
        One time step of N sequences with I features: float64, float32, float16 or bfloat16.
    weights : RNNWeights
        w_ih (4*H, I), w_hh (4*H, P), b_ih and b_hh (4*H,) or None, gates in the order i f g o; w_hr (P, H) and peephole
        (3, H) or None. P = H without w_hr.
    h : array (N, P)
        The state before the step.
    c : array (N, H)
        The cell state before the step.
    cell_clip : float above 0, optional
        As in `lstm`.
    out : tuple of array, optional
        Where to write the new states.
    workspace : uint8 array, optional
        Scratch memory; `infer` tells how much.

    Returns
    -------
    LSTMState
        ``h`` (N, P) and ``c`` (N, H), the new states.

    Raises
    ------
    ShapeError, DTypeError, ArrayTypeError, OptionError
        As in `lstm`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> w = dnn.RNNWeights(np.zeros((8, 3)), np.zeros((8, 2)))
    >>> h, c = dnn.lstm_cell(np.ones((1, 3)), w, np.zeros((1, 2)), np.ones((1, 2)))
    >>> c
    array([[0.5, 0.5]])
    """


@operation(problems.step_backward("rnn"), nested=("grad", "weights"))
def rnn_cell_backward(
    grad: ArrayT | tuple[ArrayT | None, ...],
    x: Array,
    weights: RNNWeights,
    h: Array,
    /,
    *,
    activation: Literal["tanh", "relu"] = "tanh",
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> CellGradients[ArrayT]:
    """Gradients of `rnn_cell`; the forward is computed again.

    Parameters
    ----------
    grad : array (N, H)
        Gradient of the new state.
    x, weights, h : as in `rnn_cell`
        The arrays of the forward.
    activation : {"tanh", "relu"}
        As in `rnn_cell`.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out : tuple of array, optional
        Where to write the gradients, in the order of x, the arrays of the weights that are given, h.
    workspace : uint8 array, optional
        Scratch memory; `infer` tells how much.

    Returns
    -------
    CellGradients
        ``x``; ``weights``, an `RNNWeights`, None where an array is absent; ``h``.

    Raises
    ------
    ShapeError, DTypeError, ArrayTypeError, OptionError
        `grad` does not match the new state, or as in `rnn_cell`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> w = dnn.RNNWeights(np.ones((2, 3)), np.zeros((2, 2)))
    >>> dnn.rnn_cell_backward(np.ones((1, 2)), np.zeros((1, 3)), w, np.zeros((1, 2))).x
    array([[2., 2., 2.]])
    """


@operation(problems.step_backward("gru"), nested=("grad", "weights"))
def gru_cell_backward(
    grad: ArrayT | tuple[ArrayT | None, ...],
    x: Array,
    weights: RNNWeights,
    h: Array,
    /,
    *,
    linear_before_reset: bool = True,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> CellGradients[ArrayT]:
    """Gradients of `gru_cell`; the forward is computed again.

    Parameters
    ----------
    grad : array (N, H)
        Gradient of the new state.
    x, weights, h : as in `gru_cell`
        The arrays of the forward.
    linear_before_reset : bool
        As in `gru`.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out, workspace
        As in `rnn_cell_backward`.

    Returns
    -------
    CellGradients
        ``x``; ``weights``, an `RNNWeights`, None where an array is absent; ``h``.

    Raises
    ------
    ShapeError, DTypeError, ArrayTypeError, OptionError
        `grad` does not match the new state, or as in `gru_cell`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> w = dnn.RNNWeights(np.zeros((6, 3)), np.zeros((6, 2)))
    >>> dnn.gru_cell_backward(np.ones((1, 2)), np.ones((1, 3)), w, np.ones((1, 2))).h
    array([[0.5, 0.5]])
    """


@operation(problems.step_backward("lstm"), nested=("grad", "weights"))
def lstm_cell_backward(
    grad: ArrayT | tuple[ArrayT | None, ...],
    x: Array,
    weights: RNNWeights,
    h: Array,
    c: Array,
    /,
    *,
    cell_clip: float | None = None,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> LSTMCellGradients[ArrayT]:
    """Gradients of `lstm_cell`; the forward is computed again.

    Parameters
    ----------
    grad : array (N, P), or tuple (h, c) of array or None
        Gradient of the new state h; or those of h and of the new cell state c, None where there is none.
    x, weights, h, c : as in `lstm_cell`
        The arrays of the forward.
    cell_clip : float above 0, optional
        As in `lstm`.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out, workspace
        As in `rnn_cell_backward`; c follows h.

    Returns
    -------
    LSTMCellGradients
        ``x``; ``weights``, an `RNNWeights`, None where an array is absent; ``h``; ``c``.

    Raises
    ------
    ShapeError, DTypeError, ArrayTypeError, OptionError
        `grad` does not match the new states, or as in `lstm_cell`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> w = dnn.RNNWeights(np.zeros((8, 3)), np.zeros((8, 2)))
    >>> grad = (None, np.ones((1, 2)))
    >>> dnn.lstm_cell_backward(grad, np.ones((1, 3)), w, np.zeros((1, 2)), np.ones((1, 2))).c
    array([[0.5, 0.5]])
    """
