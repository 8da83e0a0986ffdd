"""The estimators held to scikit-learn's own checks, and used as its users would."""

import pickle

import numpy as np
import pytest

import dnnarray as dnn

pytest.importorskip("sklearn")
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from dnnarray.interop.sklearn import NeuralNetworkClassifier, NeuralNetworkRegressor

_QUICK = {"max_epochs": 60, "lr": 0.02, "random_state": 0}


@parametrize_with_checks([NeuralNetworkClassifier(**_QUICK), NeuralNetworkRegressor(**_QUICK)])
@pytest.mark.filterwarnings("ignore")
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_digits_by_convolutions():
    x, y = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(x / 16, y, test_size=0.3, random_state=0)
    layers = ("conv 16 3", "relu", "max_pool 2", "linear 64", "relu", "dropout 0.1")
    model = NeuralNetworkClassifier(
        layers, input_shape=(1, 8, 8), max_epochs=15, lr=3e-3, batch_size=64, random_state=0
    )
    model.fit(train_x, train_y)
    assert model.score(test_x, test_y) > 0.96
    np.testing.assert_allclose(model.predict_proba(test_x).sum(axis=1), 1)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(test_x), model.predict(test_x))


def test_a_grid_search_over_processes_in_a_pipeline():
    x, y = load_diabetes(return_X_y=True)
    pipeline = make_pipeline(
        StandardScaler(), NeuralNetworkRegressor(("linear 16", "relu"), max_epochs=80, lr=0.02, random_state=0)
    )
    search = GridSearchCV(pipeline, {"neuralnetworkregressor__weight_decay": [0.0, 0.1]}, cv=2, n_jobs=2).fit(x, y)
    assert search.best_score_ > 0.3


def test_early_stopping_keeps_the_best_parameters():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((80, 20)), rng.integers(0, 2, 80)
    model = NeuralNetworkClassifier(
        ("linear 64", "relu"), early_stopping=True, patience=3, max_epochs=500, lr=0.05, random_state=0
    ).fit(x, y)
    assert model.n_iter_ < 100


def test_partial_fit_learns():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 2)).astype(np.float32)
    y = np.where(x[:, 0] > 0, "right", "left")
    model = NeuralNetworkClassifier(("linear 8", "tanh"), lr=0.05, batch_size=50, random_state=0)
    for _ in range(10):
        model.partial_fit(x, y, classes=["left", "right"])
    assert model.score(x, y) > 0.95
    with pytest.raises(ValueError, match="not among the classes"):
        model.partial_fit(x, np.full(300, "up"))


ERRORS = {
    "layer": ({"layers": ("linaer 3",)}, dnn.OptionError, "'linaer 3' is no layer"),
    "numbers": ({"layers": ("linear",)}, dnn.OptionError, "'linear' is no layer of input shape"),
    "no sequence": ({"layers": "relu"}, dnn.OptionError, "is no sequence of layers"),
    "space": ({"layers": ("conv 3 3",)}, dnn.OptionError, "give input_shape"),
    "shape": ({"input_shape": (1, 3)}, dnn.ShapeError, "expected one of 4"),
    "optimizer": ({"optimizer": "adagrad"}, dnn.OptionError, "expected one of sgd"),
    "device": ({"device": "tpu"}, dnn.OptionError, "expected 'cpu' or 'cuda'"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    options, error, message = ERRORS[name]
    with pytest.raises(error, match=message):
        NeuralNetworkClassifier(**options).fit(np.ones((4, 4)), [0, 1, 0, 1])
