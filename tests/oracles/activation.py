"""Activations by definition, one number at a time in float64."""

import math

import numpy as np


def elementwise(formula):
    """An oracle that applies a formula over Python floats to every element."""

    def oracle(x, **options):
        return np.array([formula(float(v), **options) for v in np.ravel(x)], np.float64).reshape(np.shape(x))

    return oracle


def relu(x):
    return x if math.isnan(x) else max(x, 0.0)


ORACLES = {"relu": elementwise(relu)}
