"""Neural networks as estimators of scikit-learn.

>>> import numpy as np
>>> from dnnarray.interop.sklearn import NeuralNetworkClassifier
>>> x = np.random.default_rng(0).standard_normal((200, 2))
>>> y = x[:, 0] > x[:, 1]
>>> model = NeuralNetworkClassifier(("linear 16", "relu"), lr=0.02, max_epochs=60, random_state=0).fit(x, y)
>>> model.score(x, y) > 0.95
True
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data

import dnnarray as dnn
from dnnarray.interop.layers import Network

__all__ = ["NeuralNetworkClassifier", "NeuralNetworkRegressor"]
_OPTIMIZERS: dict[str, Callable[..., Any]] = {"sgd": dnn.sgd, "adam": dnn.adam, "adamw": dnn.adamw, "lion": dnn.lion}
_DTYPES = (np.float64, np.float32)  # of the samples, which the parameters have then too


class _NeuralNetwork(BaseEstimator):
    """What classifier and regressor have in common."""

    params_: dict[str, dict[str, Any]]
    state_: Any
    loss_curve_: list[float]
    _dtype: np.dtype
    _numeric: bool

    def __init__(
        self,
        layers: Sequence[str] = ("linear 100", "relu"),
        *,
        input_shape: tuple[int, ...] | None = None,
        optimizer: str = "adamw",
        lr: float = 1e-3,
        weight_decay: float = 1e-4,
        batch_size: int = 200,
        max_epochs: int = 200,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        tol: float = 1e-4,
        device: str = "cpu",
        random_state: Any = None,
        progress: bool = False,
    ) -> None:
        self.layers = layers
        self.input_shape = input_shape
        self.optimizer = optimizer
        self.lr = lr
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.tol = tol
        self.device = device
        self.random_state = random_state
        self.progress = progress

    def fit(self, X: Any, y: Any) -> Any:
        """Train on samples X (samples, features) and targets y until the loss no longer falls, or for `max_epochs`
        passes."""
        X, targets = self._begin(X, y)
        kept, held_out = self._split(len(X))
        best, waited, best_params = math.inf, 0, self.params_
        for _ in self._epochs():
            loss = self._epoch(X[kept], targets[kept])
            watched = self._loss(X[held_out], targets[held_out]) if len(held_out) else loss
            self.loss_curve_.append(loss)
            if watched < best - self.tol:
                best, waited, best_params = watched, 0, self.params_
            else:
                waited += 1
            if waited >= self.patience:
                break
        if len(held_out):
            self.params_ = best_params
        self.n_iter_ = len(self.loss_curve_)
        return self

    def _begin(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Checked data, and a network with new parameters."""
        X, y = validate_data(
            self, X, y, dtype=_DTYPES, multi_output=isinstance(self, NeuralNetworkRegressor), y_numeric=self._numeric
        )
        self._dtype = X.dtype
        targets, outputs = self._targets(y)
        self._build(X, outputs)
        return X, targets

    def _build(self, X: np.ndarray, outputs: int) -> None:
        """A network for samples like these, with new parameters."""
        if self.optimizer not in _OPTIMIZERS:
            raise dnn.OptionError(f"optimizer is {self.optimizer!r}; expected one of {', '.join(_OPTIMIZERS)}.")
        self._dtype, features = X.dtype, X.shape[1]
        shape = (features,) if self.input_shape is None else tuple(self.input_shape)
        if math.prod(shape) != features:
            raise dnn.ShapeError(
                f"input_shape is {shape}, of {math.prod(shape)} numbers; expected one of {features}, the number of "
                "features."
            )
        self._described = self.layers, shape, outputs
        self._random = check_random_state(self.random_state)
        rng = np.random.default_rng(self._random.randint(2**31))
        self.params_ = {
            n: {k: self._array(a) for k, a in p.items()} for n, p in self._network().initial(rng, self._dtype).items()
        }
        self.state_, self.loss_curve_ = None, []

    def _network(self) -> Network:
        """Made anew where it is wanted: its functions would not pickle."""
        return Network(*self._described)

    def _array(self, array: np.ndarray) -> Any:
        """The array on the device of the estimator."""
        if self.device == "cpu":
            return array
        if self.device != "cuda":
            raise dnn.OptionError(f"device is {self.device!r}; expected 'cpu' or 'cuda'.")
        import cupy

        return cupy.asarray(array)

    def _split(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        order = self._random.permutation(n)
        count = max(1, round(n * self.validation_fraction)) if self.early_stopping and n > 1 else 0
        return order[count:], order[:count]

    def _epochs(self) -> Iterator[int]:
        """The numbers of the passes, with a line on the standard error for each where progress is asked for."""
        for epoch in range(self.max_epochs):
            yield epoch
            if self.progress:
                print(f"epoch {epoch + 1}/{self.max_epochs}: loss {self.loss_curve_[-1]:.5f}", file=sys.stderr)

    def _epoch(self, X: np.ndarray, targets: np.ndarray) -> float:
        """One pass over the samples in a random order; returns the mean loss."""
        order, total = self._random.permutation(len(X)), 0.0
        for i in range(0, len(X), self.batch_size):
            batch = order[i : i + self.batch_size]
            total += self._step(X[batch], targets[batch]) * len(batch)
        return total / len(X)

    def _step(self, X: np.ndarray, targets: np.ndarray) -> float:
        data = self._array(np.ascontiguousarray(X)), self._array(np.ascontiguousarray(targets))
        seed = int(self._random.randint(2**31))
        network = self._network()
        value, grads = dnn.value_and_grad(lambda p: self._mean_loss(network(p, data[0], seed), data[1]))(self.params_)
        step = _OPTIMIZERS[self.optimizer]
        self.params_, self.state_ = step(self.params_, grads, self.state_, lr=self.lr, weight_decay=self.weight_decay)
        return float(value)

    def _loss(self, X: np.ndarray, targets: np.ndarray) -> float:
        return float(self._mean_loss(self._array(self._outputs(X)), self._array(targets)))

    def _outputs(self, X: np.ndarray) -> np.ndarray:
        """What the network gives for checked samples, on the host."""
        network = self._network()
        parts = [
            network(self.params_, self._array(X[i : i + self.batch_size])) for i in range(0, len(X), self.batch_size)
        ]
        return np.concatenate([part.get() if hasattr(part, "get") else part for part in parts])

    def _checked(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "params_")
        return validate_data(self, X, dtype=self._dtype, reset=False)


class NeuralNetworkClassifier(ClassifierMixin, _NeuralNetwork):
    """A neural network that tells classes apart, trained on the cross entropy.

    Parameters
    ----------
    layers : sequence of str, default ("linear 100", "relu")
        The layers before the last one: ``"linear N"``, ``"conv N WINDOW [STRIDE]"``, ``"max_pool WINDOW"``, ``"avg_pool
        WINDOW"``, ``"layer_norm"``, ``"group_norm GROUPS"``, ``"dropout P"`` or the name of an activation. The last
        layer, to one score for each class, is added.
    input_shape : tuple of int, optional
        (C, *space) of a sample, for convolutions; its extents multiply to the number of features.
    optimizer : {"adamw", "adam", "sgd", "lion"}
        The function of dnnarray that makes the steps.
    lr, weight_decay : float
        Its learning rate and weight decay.
    batch_size, max_epochs : int
        Samples of a step, and passes over all samples.
    early_stopping : bool, default False
        Hold out `validation_fraction` of the samples, stop once their loss has not fallen by `tol` for `patience`
        passes, and keep the best parameters. Without it, the loss of the training samples is watched.
    device : {"cpu", "cuda"}
        Where the network is; a CUDA device needs CuPy.
    random_state : int, RandomState or None
        Seeds the first parameters, the order of the samples and dropout.
    progress : bool, default False
        Write a line for each pass on the standard error.

    Attributes
    ----------
    classes_ : array of the labels; params_ : the parameters by layer; loss_curve_ : the mean loss of each pass; n_iter_
        : the number of passes
    """

    _numeric = False

    def _targets(self, y: np.ndarray) -> tuple[np.ndarray, int]:
        check_classification_targets(y)
        self.classes_ = unique_labels(y)
        return np.searchsorted(self.classes_, y), max(2, len(self.classes_))

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> NeuralNetworkClassifier:
        """One pass over these samples. The first call begins anew, and needs all `classes` unless `y` has them all."""
        if not hasattr(self, "params_"):
            X, y = validate_data(self, X, y, dtype=_DTYPES)
            check_classification_targets(y)
            self.classes_ = unique_labels(y) if classes is None else unique_labels(classes)
            self._build(X, max(2, len(self.classes_)))
        else:
            X, y = validate_data(self, X, y, dtype=self._dtype, reset=False)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(f"y has labels that are not among the classes of the first call: {unknown}.")
        self.loss_curve_.append(self._epoch(X, np.searchsorted(self.classes_, y)))
        self.n_iter_ = len(self.loss_curve_)
        return self

    def _mean_loss(self, scores: Any, target: Any) -> Any:
        return dnn.cross_entropy(scores, target)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (samples, classes)."""
        outputs = self._outputs(self._checked(X))
        return dnn.softmax(outputs)[:, : len(self.classes_)]

    def predict(self, X: Any) -> np.ndarray:
        """The most likely class of each sample."""
        outputs = self._outputs(self._checked(X))
        return self.classes_[outputs[:, : len(self.classes_)].argmax(axis=1)]


class NeuralNetworkRegressor(RegressorMixin, _NeuralNetwork):
    """A neural network that predicts one number or several, trained on the mean of the squares of the errors.

    Targets are scaled to mean 0 and variance 1 within the estimator. The parameters are those of
    `NeuralNetworkClassifier`."""

    _numeric = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _targets(self, y: np.ndarray) -> tuple[np.ndarray, int]:
        y = np.asarray(y, np.float64)
        self._one, rows = y.ndim == 1, y.reshape(len(y), -1)
        self.mean_, self.scale_ = rows.mean(axis=0), rows.std(axis=0)
        self.scale_[self.scale_ == 0] = 1
        return self._scaled(rows), rows.shape[1]

    def _scaled(self, rows: np.ndarray) -> np.ndarray:
        return ((rows - self.mean_) / self.scale_).astype(self._dtype)

    def partial_fit(self, X: Any, y: Any) -> NeuralNetworkRegressor:
        """One pass over these samples. The first call begins anew, and decides the scale of the targets."""
        if not hasattr(self, "params_"):
            X, targets = self._begin(X, y)
        else:
            X, y = validate_data(self, X, y, dtype=self._dtype, multi_output=True, y_numeric=True, reset=False)
            targets = self._scaled(np.asarray(y, np.float64).reshape(len(y), -1))
        self.loss_curve_.append(self._epoch(X, targets))
        self.n_iter_ = len(self.loss_curve_)
        return self

    def _mean_loss(self, outputs: Any, target: Any) -> Any:
        return ((outputs - target) ** 2).mean()

    def predict(self, X: Any) -> np.ndarray:
        """A number for each sample, or (samples, outputs)."""
        found = self._outputs(self._checked(X)) * self.scale_ + self.mean_
        return found[:, 0] if self._one else found
