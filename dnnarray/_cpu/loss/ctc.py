"""`ctc_loss` by the forward-backward recursion in logarithms, over all sequences and states at once; a loop over time
only.

The states of a target of L labels are blank, label 1, blank, ..., label L, blank: 2 L + 1 of them. A step stays in its
state, goes on by one, or goes on by two where that skips a blank between two different labels. The states of the
longest target give the width of all arrays; shorter targets leave the last ones unused.

All variables are float64: a logarithm of a probability grows with the steps, and what float32 rounds off it is a factor
of every gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnnarray._problems.loss import CTCProblem
from dnnarray._select import Method

_KEPT_BYTES = 16 << 20  # forward variables kept at a time; where all steps take more, some are computed twice


@dataclass
class Lattice:
    """The states of all sequences.

    Attributes
    ----------
    log_probs : (T, N, C)
    lengths : (N,), steps of each sequence
    label_counts : (N,), labels of each target
    position : (N, states), place of the class of each state in a step's (N, C) scores, flat
    skip : (N, states), 0 where a state is reached from two before it, else -inf
    """

    log_probs: np.ndarray
    lengths: np.ndarray
    label_counts: np.ndarray
    position: np.ndarray
    skip: np.ndarray

    @classmethod
    def of(
        cls, problem: CTCProblem, log_probs: np.ndarray, targets: np.ndarray, lengths: np.ndarray, counts: np.ndarray
    ) -> Lattice:
        log_probs = log_probs.reshape(problem.steps, problem.batch, problem.classes)
        lengths, counts = lengths.reshape(-1).astype(np.intp), counts.reshape(-1).astype(np.intp)
        labels = _padded(problem, targets, counts)
        states = np.full((problem.batch, 2 * labels.shape[1] + 1), problem.blank, np.intp)
        states[:, 1::2] = labels
        skip = np.full(states.shape, -np.inf)
        skip[:, 1::2] = 0
        skip[:, 3::2][labels[:, 1:] == labels[:, :-1]] = -np.inf
        position = states + np.arange(problem.batch)[:, None] * problem.classes
        return cls(log_probs, lengths, counts, position, skip)

    @property
    def skip_back(self) -> np.ndarray:
        """`skip` as the reversed states see it: what leads to a state from two behind it."""
        reverse = np.full_like(self.skip, -np.inf)
        reverse[:, 2:] = self.skip[:, :1:-1]
        return reverse

    def emission(self, step: int) -> np.ndarray:
        """The log-probability of each state's class at a step."""
        return np.take(self.log_probs[step], self.position)

    def last(self) -> np.ndarray:
        """(N, 2): the two states in which an alignment may end, the last blank and the last label, in an array of
        `start`'s form."""
        end = 2 * self.label_counts + _PAD
        return np.stack([end, end - 1], axis=1)


_PAD = 2  # columns before the first state, so that a step is three shifted views


def _padded(problem: CTCProblem, targets: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(N, longest): the labels, blanks behind them."""
    longest = int(counts.max(initial=0))
    used = np.arange(longest) < counts[:, None]
    labels = np.full(used.shape, problem.blank, np.intp)
    labels[used] = targets[:, :longest][used] if problem.padded else targets[: int(counts.sum())]
    return labels


def _start(lattice: Lattice) -> np.ndarray:
    """Forward variables before the first step: all is in a state before the first, from where the first blank and, as
    if it skipped one, the first label are reached. An empty target without any step ends there too."""
    alpha = np.full((len(lattice.lengths), lattice.skip.shape[1] + _PAD), -np.inf)
    alpha[:, 1] = 0
    return alpha


def _transition(before: np.ndarray, skip: np.ndarray) -> np.ndarray:
    """log of the sum over the states from which each state is reached in one step; `before` has `_PAD` columns more."""
    reached = np.logaddexp(before[:, 2:], before[:, 1:-1])
    return np.logaddexp(reached, before[:, :-2] + skip, out=reached)


def _forward_step(lattice: Lattice, alpha: np.ndarray, step: int) -> np.ndarray:
    """The forward variables after a step; those of sequences that have ended stay."""
    after = np.full_like(alpha, -np.inf)
    np.add(_transition(alpha, lattice.skip), lattice.emission(step), out=after[:, _PAD:])
    ended = step >= lattice.lengths
    if ended.any():
        after[ended] = alpha[ended]
    return after


def _log_likelihood(lattice: Lattice, alpha: np.ndarray) -> np.ndarray:
    """log of the probability of each target, from the forward variables after all steps."""
    ends = np.take_along_axis(alpha, lattice.last(), axis=1)
    return np.logaddexp(ends[:, 0], ends[:, 1])


def _ctc_loss(problem: CTCProblem, outputs: tuple[np.ndarray, ...], scratch: Any, *arrays: np.ndarray) -> None:
    lattice = Lattice.of(problem, *arrays)
    alpha = _start(lattice)
    for step in range(problem.steps):
        alpha = _forward_step(lattice, alpha, step)
    losses = 0 - _log_likelihood(lattice, alpha)
    if problem.zero_infinity:
        losses[np.isposinf(losses)] = 0
    if problem.reduction == "none":
        outputs[0][...] = losses.reshape(outputs[0].shape)
    elif problem.reduction == "sum":
        outputs[0][...] = losses.sum()
    else:
        outputs[0][...] = np.divide((losses / _divisors(lattice)).sum(), len(losses))


def _divisors(lattice: Lattice) -> np.ndarray:
    """What "mean" divides each loss by: the length of its target, 1 for an empty one."""
    return np.maximum(lattice.label_counts, 1).astype(np.float64)


def _loss_gradients(problem: CTCProblem, lattice: Lattice, grad: np.ndarray) -> np.ndarray:
    """The gradient of each sequence's own loss from that of the reduced loss."""
    if problem.reduction == "mean":
        return grad / (_divisors(lattice) * len(lattice.lengths))
    return np.broadcast_to(grad, lattice.lengths.shape)


def _ctc_loss_backward(
    problem: CTCProblem, outputs: tuple[np.ndarray, ...], scratch: Any, grad: np.ndarray, *arrays: np.ndarray
) -> None:
    lattice = Lattice.of(problem, *arrays)
    result = outputs[0] if problem.batched else outputs[0][:, None]
    if not result.size:
        return
    segments, beta = Segments(lattice), Beta(lattice)
    likelihood = segments.log_likelihood
    impossible = np.isneginf(likelihood)
    scale = -_loss_gradients(problem, lattice, grad)
    for step, alpha in segments.backwards():
        occupied = alpha[:, _PAD:] + beta.at(step) - likelihood[:, None]
        np.exp(occupied, out=occupied)
        occupied *= scale[:, None]
        running = step < lattice.lengths
        occupied[impossible | ~running] = 0
        _scatter(lattice, occupied, result[step])
        if not problem.zero_infinity:
            result[step, impossible & running] = np.nan


def _scatter(lattice: Lattice, occupied: np.ndarray, out: np.ndarray) -> None:
    """out[n, c] = the sum over the states of class c: a class stands in many states."""
    out[...] = np.bincount(lattice.position.ravel(), weights=occupied.ravel(), minlength=out.size).reshape(out.shape)


class Beta:
    """Backward variables: log-probability of the rest of the target from each state, over the steps after this one.

    They run over the states in reverse, so that `_transition` is the same for both directions.
    """

    def __init__(self, lattice: Lattice) -> None:
        self._lattice, self._skip = lattice, lattice.skip_back
        self._end = np.full((len(lattice.lengths), lattice.skip.shape[1] + _PAD), -np.inf)
        np.put_along_axis(self._end, np.maximum(lattice.last(), _PAD), self._end.dtype.type(0), axis=1)
        self._end = self._end[:, _PAD:]
        self._value = np.full_like(self._end, -np.inf)

    def at(self, step: int) -> np.ndarray:
        """The variables at a step; to be asked for the last step first, then for each one before."""
        lattice = self._lattice
        if step + 1 < len(lattice.log_probs):
            padded = np.full((len(self._value), self._value.shape[1] + _PAD), -np.inf, self._value.dtype)
            np.add(self._value, lattice.emission(step + 1), out=padded[:, :1:-1])
            self._value = _transition(padded, self._skip)[:, ::-1]
        last = step == lattice.lengths - 1
        self._value[last] = self._end[last]
        return self._value


class Segments:
    """Forward variables of all steps, last step first, with no more than a segment of them in memory.

    A first pass keeps those before each segment; a segment is computed again from there when its turn comes. The last
    segment is kept from the first pass, so a problem of one segment does nothing twice."""

    def __init__(self, lattice: Lattice) -> None:
        self._lattice, steps = lattice, len(lattice.log_probs)
        alpha = _start(lattice)
        self._length = max(_KEPT_BYTES // max(alpha.nbytes, 1), int(steps**0.5), 1)
        self._starts = []
        for first in range(0, steps, self._length):
            self._starts.append(alpha)
            self._kept = self._run(first, alpha)
            alpha = self._kept[-1]
        self.log_likelihood = _log_likelihood(lattice, alpha)

    def _run(self, first: int, alpha: np.ndarray) -> list[np.ndarray]:
        found = []
        for step in range(first, min(first + self._length, len(self._lattice.log_probs))):
            alpha = _forward_step(self._lattice, alpha, step)
            found.append(alpha)
        return found

    def backwards(self) -> Iterator[tuple[int, np.ndarray]]:
        for number in reversed(range(len(self._starts))):
            first = number * self._length
            if number < len(self._starts) - 1:
                self._kept = self._run(first, self._starts[number])
            for step in reversed(range(first, first + len(self._kept))):
                yield step, self._kept[step - first]


ALGORITHMS = {
    "ctc_loss": (Method("forward", _ctc_loss, "the forward recursion in logarithms"),),
    "ctc_loss_backward": (
        Method("forward_backward", _ctc_loss_backward, "state posteriors by the forward-backward recursion"),
    ),
}
