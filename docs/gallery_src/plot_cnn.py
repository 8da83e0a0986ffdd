"""
A convolutional network on digits
=================================

This tutorial trains a small convolutional network on the digits that ship with scikit-learn: 1797 images of 8x8 pixels.
The network is a plain function of its parameters, :func:`dnnarray.value_and_grad` differentiates it, and
:func:`dnnarray.adamw` computes the next parameters."""

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import dnnarray as dnn

rng = np.random.default_rng(0)
images, labels = load_digits(return_X_y=True)
images = (images.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
train, test = np.split(rng.permutation(len(images)), [1408])

# %%
# Parameters are a nested structure of arrays. dnnarray has no modules, so any structure of dicts, lists and tuples will
# do. The running statistics of the batch norms are a structure of their own, because they are not trained by gradients.

CHANNELS = (1, 16, 32)


def normal(*shape):
    return (rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)


def block(c, k):
    return {"conv": normal(k, c, 3, 3), "scale": np.ones(k, np.float32), "shift": np.zeros(k, np.float32)}


params = {
    "blocks": [block(c, k) for c, k in pairwise(CHANNELS)],
    "linear": {"weight": normal(10, 128), "bias": np.zeros(10, np.float32)},
}
running = [(np.zeros(k, np.float32), np.ones(k, np.float32)) for k in CHANNELS[1:]]

# %%
# The network in training normalizes with the statistics of the batch and returns the moved running statistics. The
# batch norm applies the ReLU in the same pass over memory. The loss returns the running statistics as its auxiliary
# output.


def loss(params, running, x, target):
    moved = []
    for p, (mean, variance) in zip(params["blocks"], running, strict=True):
        x = dnn.conv(x, p["conv"], padding=1)
        norm = dnn.batch_norm_train(x, p["scale"], p["shift"], mean, variance, activation="relu")
        moved.append((norm.running_mean, norm.running_var))
        x = dnn.max_pool(norm.y, 2)
    logits = dnn.linear(x.reshape(len(x), -1), params["linear"]["weight"], params["linear"]["bias"])
    return dnn.cross_entropy(logits, target), moved


def predict(params, running, x):
    for p, (mean, variance) in zip(params["blocks"], running, strict=True):
        x = dnn.conv(x, p["conv"], padding=1)
        x = dnn.max_pool(dnn.batch_norm(x, mean, variance, p["scale"], p["shift"], activation="relu"), 2)
    logits = dnn.linear(x.reshape(len(x), -1), params["linear"]["weight"], params["linear"]["bias"])
    return dnn.softmax(logits)


# %%
# The training loop. ``has_aux=True`` says that the loss returns a pair.

EPOCHS, STEPS = 12, 22
step = dnn.value_and_grad(loss, has_aux=True)
rate = dnn.cosine_schedule(1e-2, EPOCHS * STEPS, warmup_steps=STEPS)
state, losses, accuracies = None, [], []
for _ in range(EPOCHS):
    for batch in np.split(rng.permutation(train), STEPS):
        (value, running), grads = step(params, running, images[batch], labels[batch])
        params, state = dnn.adamw(params, grads, state, lr=rate(len(losses)))
        losses.append(float(value))
    accuracies.append((predict(params, running, images[test]).argmax(axis=1) == labels[test]).mean())
accuracy = accuracies[-1]
print(f"{accuracy:.1%} of {len(test)} digits that were held out are read correctly")

# %%
# The loss on the training digits and the accuracy on the digits that were held out:

figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
axes[0].semilogy(losses)
axes[0].set(title="training loss", xlabel="step", ylabel="nats")
axes[1].plot(np.arange(1, EPOCHS + 1), accuracies, "o-", color="tab:green")
axes[1].set(title="held-out accuracy", xlabel="epoch")
for axis in axes:
    axis.grid(alpha=0.3)

# %%
# The held-out digits of which the network is least sure, and the probability of its answer:

probabilities = predict(params, running, images[test])
unsure = probabilities.max(axis=1).argsort()[:10]
figure, axes = plt.subplots(1, 10, figsize=(11, 1.8), layout="constrained")
for axis, i in zip(axes, unsure, strict=True):
    answer = probabilities[i].argmax()
    axis.imshow(images[test][i, 0], cmap="gray_r")
    axis.set_title(
        f"{labels[test][i]}, read as {answer}\n({probabilities[i, answer]:.0%})",
        fontsize=8,
        color="black" if answer == labels[test][i] else "tab:red",
    )
    axis.axis("off")

# %%
# :func:`dnnarray.explain` says which algorithm a layer takes, and why:

print(dnn.explain("conv", images[:64], params["blocks"][0]["conv"], padding=1))
