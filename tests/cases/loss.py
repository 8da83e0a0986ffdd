"""Cases of the loss family."""

import numpy as np

from tests.support import Case, Draw, fixed, integers, normal, uniform, values


def log_probs(*shape: int) -> Draw:
    """Logarithms of probabilities that sum to 1 over the last axis."""

    def make(rng: np.random.Generator) -> np.ndarray:
        z = rng.standard_normal(shape)
        return z - np.log(np.exp(z).sum(-1, keepdims=True))

    return Draw(make)


_LABELS = fixed([3, 0, -100, 4, 0, 2, -100])
_WEIGHT = uniform(0.5, 2.0, 5)


def _scores(op: str, id: str, *arrays, reason: str, gradient: bool = True, **options) -> Case:
    return Case(op, id, arrays, options, reason, reduction=64, gradient=gradient)


_CROSS_ENTROPY = [
    _scores("cross_entropy", "mean", normal(7, 5), _LABELS, reason="labels, two of them ignored"),
    _scores("cross_entropy", "sum", normal(7, 5), _LABELS, reduction="sum", reason="the plain sum"),
    _scores("cross_entropy", "none", normal(7, 5), _LABELS, reduction="none", reason="a loss for each row"),
    _scores("cross_entropy", "weight", normal(7, 5), _LABELS, _WEIGHT, reason="the mean is weighted"),
    _scores(
        "cross_entropy",
        "weight_none",
        normal(7, 5),
        _LABELS,
        _WEIGHT,
        reduction="none",
        reason="weights without a mean",
    ),
    _scores("cross_entropy", "smoothing", normal(7, 5), _LABELS, label_smoothing=0.2, reason="a share for all classes"),
    _scores(
        "cross_entropy",
        "smoothing_weight",
        normal(7, 5),
        _LABELS,
        _WEIGHT,
        label_smoothing=0.2,
        reason="weights in both parts",
    ),
    _scores(
        "cross_entropy",
        "smoothing_all",
        normal(7, 5),
        _LABELS,
        _WEIGHT,
        label_smoothing=1.0,
        reduction="sum",
        reason="no label left",
    ),
    _scores(
        "cross_entropy", "ignore_class", normal(7, 5), integers(0, 5, 7), ignore_index=2, reason="a class is ignored"
    ),
    _scores(
        "cross_entropy",
        "space",
        normal(2, 5, 3, 2),
        integers(0, 5, 2, 3, 2),
        _WEIGHT,
        label_smoothing=0.1,
        reason="classes on axis 1",
    ),
    _scores(
        "cross_entropy",
        "last",
        normal(2, 3, 5),
        integers(0, 5, 2, 3),
        reduction="none",
        axis=-1,
        reason="classes last, as in a language model",
    ),
    _scores("cross_entropy", "first", normal(5, 3), integers(0, 5, 3), axis=0, reason="classes first"),
    _scores("cross_entropy", "row", normal(5), fixed(3), reason="a single row: axis 1 stands for its only one"),
    _scores("cross_entropy", "one_class", normal(4, 1), fixed([0, 0, 0, 0]), reason="one class: the loss is 0"),
    _scores(
        "cross_entropy",
        "int32",
        normal(3, 4),
        fixed([0, 3, 1], np.int32),
        return_lse=True,
        reduction="none",
        reason="the log-sum-exp too",
    ),
    _scores("cross_entropy", "uint8", normal(3, 4), fixed([0, 3, 1], np.uint8), reason="labels that cannot be -100"),
    _scores(
        "cross_entropy",
        "large",
        normal(3, 4, scale=300.0),
        fixed([0, 3, 1]),
        gradient=False,
        reason="exponentials overflow without the maximum",
    ),
    _scores(
        "cross_entropy",
        "large_lse",
        values([[1024.0, 1023.0], [-1024.0, -1025.0]]),
        fixed([0, 1]),
        reduction="none",
        reason="a log-sum-exp much larger than the loss",
    ),
    _scores("cross_entropy", "ignored", normal(2, 3), fixed([-100, -100]), gradient=False, reason="no row left: NaN"),
    _scores(
        "cross_entropy", "ignored_sum", normal(2, 3), fixed([-100, -100]), reduction="sum", reason="no row left: 0"
    ),
    _scores(
        "cross_entropy", "empty", normal(0, 3), integers(0, 3, 0), gradient=False, reason="a batch of nothing: NaN"
    ),
    _scores(
        "cross_entropy",
        "empty_none",
        normal(0, 3, 2),
        integers(0, 3, 0, 2),
        reduction="none",
        gradient=False,
        reason="a batch of nothing",
    ),
    _scores("cross_entropy", "probabilities", normal(4, 5), uniform(0, 1, 4, 5), reason="the mean is over rows"),
    _scores(
        "cross_entropy",
        "probabilities_all",
        normal(4, 5),
        uniform(0, 1, 4, 5),
        _WEIGHT,
        label_smoothing=0.3,
        reduction="none",
        reason="with weights and smoothing",
    ),
    _scores(
        "cross_entropy",
        "probabilities_space",
        normal(2, 5, 3),
        uniform(0, 1, 2, 5, 3),
        _WEIGHT,
        reduction="sum",
        reason="with space",
    ),
    _scores("cross_entropy", "probabilities_row", normal(5), uniform(0, 1, 5), return_lse=True, reason="a single row"),
    _scores(
        "cross_entropy",
        "probabilities_last",
        normal(3, 2, 4),
        uniform(0, 1, 3, 2, 4),
        axis=2,
        label_smoothing=0.3,
        reason="classes last",
    ),
]

_NLL = [
    _scores("nll_loss", "mean", log_probs(7, 5), _LABELS, reason="labels, two of them ignored"),
    _scores("nll_loss", "weight", log_probs(7, 5), _LABELS, _WEIGHT, reason="the mean is weighted"),
    _scores("nll_loss", "sum", log_probs(7, 5), _LABELS, _WEIGHT, reduction="sum", reason="the plain sum"),
    _scores("nll_loss", "none", log_probs(7, 5), _LABELS, reduction="none", reason="a loss for each row"),
    _scores(
        "nll_loss",
        "space",
        normal(2, 5, 3, 2),
        integers(0, 5, 2, 3, 2),
        _WEIGHT,
        ignore_index=1,
        reason="classes on axis 1",
    ),
    _scores(
        "nll_loss", "last", log_probs(2, 3, 5), integers(0, 5, 2, 3), axis=-1, reduction="none", reason="classes last"
    ),
    _scores("nll_loss", "row", log_probs(5), fixed(3), reason="a single row"),
    _scores(
        "nll_loss", "ignored", log_probs(2, 3), fixed([7, 7]), ignore_index=7, gradient=False, reason="no row left: NaN"
    ),
    _scores(
        "nll_loss",
        "empty",
        log_probs(0, 3),
        integers(0, 3, 0),
        reduction="sum",
        gradient=False,
        reason="a batch of nothing: 0",
    ),
]


def _linear(id: str, *arrays, reason: str, gradient: bool = True, **options) -> Case:
    return Case("linear_cross_entropy", id, arrays, options, reason, reduction=64, condition=4.0, gradient=gradient)


_LINEAR = [
    _linear("mean", normal(7, 4), normal(5, 4), _LABELS, reason="labels, two of them ignored"),
    _linear("bias", normal(7, 4), normal(5, 4), _LABELS, normal(5), reduction="sum", reason="with a bias"),
    _linear("all", normal(7, 4), normal(5, 4), _LABELS, normal(5), _WEIGHT, label_smoothing=0.2, reason="every option"),
    _linear(
        "smoothing",
        normal(7, 4),
        normal(5, 4),
        _LABELS,
        label_smoothing=0.2,
        reduction="none",
        reason="without weights",
    ),
    _linear(
        "tokens",
        normal(2, 3, 4),
        normal(5, 4),
        integers(0, 5, 2, 3),
        reduction="none",
        return_lse=True,
        reason="a batch of sequences",
    ),
    _linear("row", normal(4), normal(5, 4), fixed(2), reason="a single row"),
    _linear("one", normal(1, 1), normal(1, 1), fixed([0]), reason="one row, feature and class"),
    _linear(
        "blocks",
        normal(37, 3),
        normal(141, 3),
        integers(0, 141, 37),
        normal(141),
        uniform(0.5, 2.0, 141),
        label_smoothing=0.1,
        reason="several of the small blocks, the last ones not full",
    ),
    _linear(
        "uint8",
        normal(5, 3),
        normal(150, 3),
        fixed([0, 5, 127, 128, 149], np.uint8),
        reduction="none",
        reason="labels of 8 bits over several blocks",
    ),
    _linear("no_features", normal(3, 0), normal(4, 0), integers(0, 4, 3), normal(4), reason="the scores are the bias"),
    _linear(
        "empty",
        normal(0, 4),
        normal(5, 4),
        integers(0, 5, 0),
        normal(5),
        reduction="sum",
        gradient=False,
        reason="a batch of nothing: 0",
    ),
    _linear("ignored", normal(2, 4), normal(5, 4), fixed([-100, -100]), gradient=False, reason="no row left: NaN"),
]


def _ctc(id: str, *arrays, reason: str, gradient: bool = True, **options) -> Case:
    steps = 8
    return Case("ctc_loss", id, arrays, options, reason, reduction=steps * steps, gradient=gradient)


_CTC = [
    _ctc(
        "mean",
        log_probs(5, 3, 4),
        fixed([[1, 2], [3, 1], [2, 3]]),
        fixed([5, 4, 3]),
        fixed([2, 1, 2]),
        reason="lengths of all kinds",
    ),
    _ctc(
        "sum",
        log_probs(5, 2, 3),
        fixed([[1, 2], [2, 1]]),
        fixed([5, 5]),
        fixed([2, 2]),
        reduction="sum",
        reason="the plain sum",
    ),
    _ctc(
        "none",
        log_probs(5, 2, 3),
        fixed([[1, 2], [2, 1]]),
        fixed([5, 4]),
        fixed([2, 2]),
        reduction="none",
        reason="a loss for each sequence",
    ),
    _ctc(
        "repeats",
        log_probs(6, 2, 3),
        fixed([[1, 1, 2], [2, 2, 2]]),
        fixed([6, 6]),
        fixed([3, 3]),
        reduction="none",
        reason="a blank must part equal labels",
    ),
    _ctc(
        "tight",
        log_probs(5, 2, 3),
        fixed([[2, 2, 2], [1, 2, 1]]),
        fixed([5, 3]),
        fixed([3, 3]),
        reduction="none",
        reason="one alignment only",
    ),
    _ctc(
        "concatenated",
        log_probs(5, 3, 4),
        fixed([1, 2, 3, 3, 1, 2]),
        fixed([5, 3, 5]),
        fixed([2, 1, 3]),
        reason="targets one behind the other",
    ),
    _ctc(
        "padding",
        log_probs(4, 2, 3),
        fixed([[1, -1, 99], [2, 1, 0]]),
        fixed([4, 4]),
        fixed([1, 2]),
        reason="anything stands behind a target",
    ),
    _ctc(
        "blank_last",
        log_probs(5, 2, 4),
        fixed([[0, 1], [2, 2]]),
        fixed([5, 5]),
        fixed([2, 2]),
        blank=3,
        reason="another blank",
    ),
    _ctc(
        "no_labels",
        log_probs(4, 3, 3),
        fixed([[1], [2], [1]]),
        fixed([4, 3, 0]),
        fixed([0, 1, 0]),
        reduction="none",
        reason="blanks only; no step at all",
    ),
    _ctc("no_targets", log_probs(3, 2, 3), fixed(np.zeros((2, 0))), fixed([3, 2]), fixed([0, 0]), reason="S is 0"),
    _ctc(
        "impossible",
        log_probs(3, 3, 3),
        fixed([[1, 1], [1, 2], [1, 2]]),
        fixed([2, 3, 0]),
        fixed([2, 2, 1]),
        reduction="none",
        gradient=False,
        reason="too few steps: inf",
    ),
    _ctc(
        "zero_infinity",
        log_probs(3, 3, 3),
        fixed([[1, 1], [1, 2], [1, 2]]),
        fixed([2, 3, 0]),
        fixed([2, 2, 1]),
        zero_infinity=True,
        reason="too few steps: 0",
    ),
    _ctc(
        "one_class",
        values(np.full((3, 1, 1), -0.25)),
        fixed(np.zeros((1, 0))),
        fixed([3]),
        fixed([0]),
        reason="the blank is all there is",
    ),
    _ctc("single", log_probs(5, 3), fixed([2, 1]), fixed(5), fixed(2), reason="no batch axis, lengths 0-dimensional"),
    _ctc(
        "single_none",
        log_probs(5, 3),
        fixed([2, 1], np.int32),
        fixed([5]),
        fixed([2]),
        reduction="none",
        reason="no batch axis, one length",
    ),
    _ctc(
        "single_padded", log_probs(5, 3), fixed([2, 1, 7]), fixed(4), fixed(2), reason="no batch axis, padding behind"
    ),
    _ctc(
        "long",
        log_probs(23, 2, 5),
        fixed([[1, 2, 2, 4, 3, 1], [4, 4, 4, 1, 2, 3]]),
        fixed([23, 20]),
        fixed([6, 5]),
        reason="more steps than can be enumerated",
    ),
    _ctc(
        "no_steps",
        log_probs(0, 2, 3),
        fixed([[1], [1]]),
        fixed([0, 0]),
        fixed([0, 1]),
        reduction="none",
        gradient=False,
        reason="T is 0",
    ),
    _ctc(
        "empty",
        log_probs(4, 0, 3),
        fixed(np.zeros((0, 2))),
        fixed([]),
        fixed([]),
        reduction="sum",
        gradient=False,
        reason="a batch of nothing: 0",
    ),
    _ctc(
        "empty_mean",
        log_probs(4, 0, 3),
        fixed(np.zeros((0, 2))),
        fixed([]),
        fixed([]),
        gradient=False,
        reason="a batch of nothing: NaN",
    ),
]

CASES = _CROSS_ENTROPY + _NLL + _LINEAR + _CTC
