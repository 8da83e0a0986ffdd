"""An LSTM that forecasts a chaotic series
=======================================
"""

import numpy as np

import dnnarray as dnn

rng = np.random.default_rng(0)
series = np.full(2500, 1.2, np.float32)
for t in range(18, len(series)):  # the equation of Mackey and Glass, by Euler's method
    series[t] = 0.9 * series[t - 1] + 0.2 * series[t - 18] / (1 + series[t - 18] ** 10)
windows = np.lib.stride_tricks.sliding_window_view(series[500:] - 0.9, 33)[..., None]
train, test = windows[:1500], windows[1600:]
w_ih, w_hh, out = (rng.uniform(-0.2, 0.2, shape).astype(np.float32) for shape in ((128, 1), (128, 32), (1, 32)))
params = {"lstm": [dnn.RNNWeights(w_ih, w_hh, np.zeros(128, np.float32))], "out": out, "bias": np.zeros(1, np.float32)}


def error(params, x):
    y = dnn.lstm(x[:, :-1], params["lstm"], layout="NTC").y
    return ((dnn.linear(y, params["out"], params["bias"]) - x[:, 1:])[:, 16:] ** 2).mean()


step, state = dnn.value_and_grad(error), None
for batch in rng.integers(0, len(train), (400, 32)):
    loss, grads = step(params, train[batch])
    params, state = dnn.adamw(params, grads, state, lr=1e-2)
error = float(error(params, test)) ** 0.5 / test.std()
print(f"the next value is forecast to {error:.3f} standard deviations")
