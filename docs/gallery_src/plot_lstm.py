"""
Forecasting a series with an LSTM
=================================

The equation of Mackey and Glass describes the number of blood cells in a body that reacts late. Its solutions are
chaotic, and a usual test of forecasters. This tutorial trains an LSTM to predict the next value, and then lets the
network run freely on its own predictions."""

import matplotlib.pyplot as plt
import numpy as np

import dnnarray as dnn

rng = np.random.default_rng(0)
DELAY = 17
series = np.full(3000, 1.2)
for t in range(DELAY + 1, len(series)):
    late = series[t - DELAY - 1]
    series[t] = 0.9 * series[t - 1] + 0.2 * late / (1 + late**10)
series = series[500:]
series = ((series - series.mean()) / series.std()).astype(np.float32)
train, test = series[:2000], series[2000:]

# %%
# The weights of a recurrent network are a list of :class:`dnnarray.RNNWeights`, one for each layer. The rows of its
# matrices are the gates in PyTorch's order. Named tuples are part of the structure of parameters, so their gradients
# are named tuples, too.

HIDDEN = 32


def uniform(*shape):
    return rng.uniform(-(HIDDEN**-0.5), HIDDEN**-0.5, shape).astype(np.float32)


params = {
    "lstm": [dnn.RNNWeights(uniform(4 * HIDDEN, 1), uniform(4 * HIDDEN, HIDDEN), uniform(4 * HIDDEN))],
    "weight": uniform(1, HIDDEN),
    "bias": uniform(1),
}


def forecast(params, x, h=None, c=None):
    y, h, c = dnn.lstm(x, params["lstm"], h, c, layout="NTC")
    return x + dnn.linear(y, params["weight"], params["bias"]), h, c


# %%
# The network predicts the difference to the value that it has just read. The first 16 predictions of a window do not
# count, since the network knows too little there.


def loss(params, windows):
    predicted, _, _ = forecast(params, windows[:, :-1])
    return ((predicted - windows[:, 1:])[:, 16:] ** 2).mean()


STEPS, LENGTH = 400, 48
windows = np.lib.stride_tricks.sliding_window_view(train, LENGTH + 1)[..., None]
step, state, losses = dnn.value_and_grad(loss), None, []
rate = dnn.cosine_schedule(1e-2, STEPS, warmup_steps=20)
for i, batch in enumerate(rng.integers(0, len(windows), (STEPS, 24))):
    value, grads = step(params, windows[batch])
    params, state = dnn.adamw(params, grads, state, lr=rate(i), weight_decay=0.0)
    losses.append(float(value))

# %%
# One step ahead, on the part of the series that was held out:

one_step, _, _ = forecast(params, test[None, :-1, None])
error = float(np.sqrt(np.mean((one_step[0, 16:, 0] - test[17:]) ** 2)))
repeated = float(np.sqrt(np.mean((test[16:-1] - test[17:]) ** 2)))
print(f"error of the next value: {error:.4f} standard deviations; of repeating the last value: {repeated:.4f}")

# %%
# Many steps ahead: the network reads 100 values of the held-out part, and then goes on with what it predicts. The
# states `h` and `c` carry on from call to call.

SEEN, AHEAD = 100, 120
predicted, h, c = forecast(params, test[None, :SEEN, None])
free = [predicted[:, -1:]]
for _ in range(AHEAD - 1):
    value, h, c = forecast(params, free[-1], h, c)
    free.append(value)
free = np.concatenate(free, axis=1)[0, :, 0]
free_error = float(np.sqrt(np.mean((free[:40] - test[SEEN : SEEN + 40]) ** 2)))
print(f"error of the first 40 free steps: {free_error:.3f} standard deviations")

figure, axes = plt.subplots(2, 1, figsize=(9, 5), layout="constrained")
axes[0].semilogy(losses, linewidth=0.8)
axes[0].set(title="training loss", xlabel="step", ylabel="mean squared error")
axes[1].plot(np.arange(SEEN + AHEAD), test[: SEEN + AHEAD], color="black", label="series")
axes[1].plot(np.arange(SEEN, SEEN + AHEAD), free, color="tab:orange", label="forecast")
axes[1].axvline(SEEN, color="gray", linestyle="--")
axes[1].set(title=f"forecast from step {SEEN} on", xlabel="step", ylabel="standard deviations")
axes[1].legend(loc="lower left")
