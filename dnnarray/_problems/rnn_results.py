"""What recurrent networks and their gradients return."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple

from dnnarray._typing import ArrayT


class HiddenOutput(NamedTuple, Generic[ArrayT]):
    """What `rnn` and `gru` return: the sequence `y` and the last state `h`; there is no cell state, `c` is None."""

    y: ArrayT
    h: ArrayT

    @property
    def c(self) -> None:
        return None


class RNNOutput(NamedTuple, Generic[ArrayT]):
    """What `lstm` returns: the sequence `y`, the last state `h` and the last cell state `c`."""

    y: ArrayT
    h: ArrayT
    c: ArrayT


class TapedHiddenOutput(NamedTuple, Generic[ArrayT]):
    """What `rnn` and `gru` return with ``return_tape=True``: as `HiddenOutput`, and the tape for their gradients."""

    y: ArrayT
    h: ArrayT
    tape: ArrayT

    @property
    def output(self) -> HiddenOutput:
        """The results without the tape."""
        return HiddenOutput(self.y, self.h)


class TapedRNNOutput(NamedTuple, Generic[ArrayT]):
    """What `lstm` returns with ``return_tape=True``: as `RNNOutput`, and the tape for `lstm_backward`."""

    y: ArrayT
    h: ArrayT
    c: ArrayT
    tape: ArrayT

    @property
    def output(self) -> RNNOutput:
        """The results without the tape."""
        return RNNOutput(self.y, self.h, self.c)


class LSTMState(NamedTuple, Generic[ArrayT]):
    """What `lstm_cell` returns: the new state `h` and the new cell state `c`."""

    h: ArrayT
    c: ArrayT


class RNNGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of `rnn` and `gru`; `weights` is a tuple of `RNNWeights`, None stands for what was omitted."""

    x: ArrayT
    weights: Any
    h0: ArrayT


class LSTMGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of `lstm`; `weights` is a tuple of `RNNWeights`, None stands for what was omitted."""

    x: ArrayT
    weights: Any
    h0: ArrayT
    c0: ArrayT


class CellGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of `rnn_cell` and `gru_cell`; `weights` is an `RNNWeights`."""

    x: ArrayT
    weights: Any
    h: ArrayT


class LSTMCellGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of `lstm_cell`; `weights` is an `RNNWeights`."""

    x: ArrayT
    weights: Any
    h: ArrayT
    c: ArrayT
