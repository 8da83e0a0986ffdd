"""What recurrent networks and their gradients return."""

from __future__ import annotations

from typing import Any, NamedTuple


class HiddenOutput(NamedTuple):
    """What `rnn` and `gru` return: the sequence `y` and the last state `h`; there is no cell state, `c` is None."""

    y: Any
    h: Any

    @property
    def c(self) -> None:
        return None


class RNNOutput(NamedTuple):
    """What `lstm` returns: the sequence `y`, the last state `h` and the last cell state `c`."""

    y: Any
    h: Any
    c: Any


class TapedHiddenOutput(NamedTuple):
    """What `rnn` and `gru` return with ``return_tape=True``: as `HiddenOutput`, and the tape for their gradients."""

    y: Any
    h: Any
    tape: Any

    @property
    def output(self) -> HiddenOutput:
        """The results without the tape."""
        return HiddenOutput(self.y, self.h)


class TapedRNNOutput(NamedTuple):
    """What `lstm` returns with ``return_tape=True``: as `RNNOutput`, and the tape for `lstm_backward`."""

    y: Any
    h: Any
    c: Any
    tape: Any

    @property
    def output(self) -> RNNOutput:
        """The results without the tape."""
        return RNNOutput(self.y, self.h, self.c)


class LSTMState(NamedTuple):
    """What `lstm_cell` returns: the new state `h` and the new cell state `c`."""

    h: Any
    c: Any


class RNNGradients(NamedTuple):
    """Gradients of `rnn` and `gru`; `weights` is a tuple of `RNNWeights`, None stands for what was omitted."""

    x: Any
    weights: Any
    h0: Any


class LSTMGradients(NamedTuple):
    """Gradients of `lstm`; `weights` is a tuple of `RNNWeights`, None stands for what was omitted."""

    x: Any
    weights: Any
    h0: Any
    c0: Any


class CellGradients(NamedTuple):
    """Gradients of `rnn_cell` and `gru_cell`; `weights` is an `RNNWeights`."""

    x: Any
    weights: Any
    h: Any


class LSTMCellGradients(NamedTuple):
    """Gradients of `lstm_cell`; `weights` is an `RNNWeights`."""

    x: Any
    weights: Any
    h: Any
    c: Any
