"""
Reading words without segmentation: CTC
=======================================

Connectionist temporal classification (CTC) trains a network on pairs of a long input and a short label, without any
record of where in the input each symbol lies. This tutorial draws words of digits as wide images with random gaps,
trains a convolutional network that reads an image column by column, and decodes its answers. The digits ship with
scikit-learn."""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import dnnarray as dnn

rng = np.random.default_rng(0)
digits, classes = load_digits(return_X_y=True)
digits = (digits.reshape(-1, 8, 8) / 16).astype(np.float32)
held_out = rng.random(len(digits)) < 0.2

# %%
# A word has three digits. Gaps of random width come between the digits, so that the position of a digit does not tell
# which symbol of the word it is.

LENGTH, COLUMNS, BLANK = 3, 36, 10


def words(count, chosen):
    images, labels = np.zeros((count, COLUMNS, 8), np.float32), np.empty((count, LENGTH), np.int64)
    for image, label in zip(images, labels, strict=True):
        picks = rng.choice(chosen, LENGTH)
        label[:] = classes[picks]
        spare = np.sort(rng.integers(0, COLUMNS - 8 * LENGTH + 1, LENGTH))
        for place, (start, pick) in enumerate(zip(spare, picks, strict=True)):
            image[start + 8 * place : start + 8 * place + 8] = digits[pick].T
    return images, labels


# %%
# The network reads the image by three convolutions over its columns, of which the first has the width of a digit and
# the second halves the number of positions. Its output is one distribution over the ten digits and the *blank* for
# each position. The blank stands for "no new symbol here".

CHANNELS, POSITIONS = 64, COLUMNS // 2


def normal(*shape):
    return (rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)


params = {
    "first": normal(CHANNELS, 9, 8),
    "second": normal(CHANNELS, 3, CHANNELS),
    "third": normal(CHANNELS, 3, CHANNELS),
    "weight": normal(11, CHANNELS) / 8,
    "bias": np.zeros(11, np.float32),
}


def log_probabilities(params, images):
    x = images
    for name, stride in (("first", 1), ("second", 2), ("third", 1)):
        x = dnn.conv(x, params[name], stride=stride, padding="same", layout="channels_last", activation="relu")
    scores = dnn.linear(x, params["weight"], params["bias"])
    return dnn.log_softmax(scores.transpose(1, 0, 2))  # time, batch and classes, as ctc_loss takes them


def loss(params, images, labels):
    inputs, targets = np.full(len(images), POSITIONS), np.full(len(images), LENGTH)
    return dnn.ctc_loss(log_probabilities(params, images), labels, inputs, targets, blank=BLANK)


# %%
# The loss of a word is minus the logarithm of the probability of all alignments that spell it.
# :func:`dnnarray.ctc_loss` computes the sum over the alignments by the forward algorithm, and its gradient by the
# backward algorithm.

STEPS, BATCH = 450, 16
step, state, losses = dnn.value_and_grad(loss), None, []
rate = dnn.cosine_schedule(5e-3, STEPS, warmup_steps=20)
for i in range(STEPS):
    value, grads = step(params, *words(BATCH, np.flatnonzero(~held_out)))
    grads, norm = dnn.clip_by_global_norm(grads, 1.0)
    params, state = dnn.adamw(params, grads, state, lr=rate(i))
    losses.append(float(value))

# %%
# The best path takes the likeliest symbol of each column, merges repetitions and removes blanks.


def decoded(log_p):
    path = log_p.argmax(axis=-1)
    starts = np.concatenate([[True], path[1:] != path[:-1]])
    return path[starts & (path != BLANK)].tolist()


images, labels = words(300, np.flatnonzero(held_out))
log_p = log_probabilities(params, images)
answers = [decoded(log_p[:, n]) for n in range(len(images))]
accuracy = np.mean([answer == label.tolist() for answer, label in zip(answers, labels, strict=True)])
print(f"{accuracy:.1%} of {len(images)} words of digits that were held out are read without an error")

# %%
# The loss, and for two words the probability of each symbol at each position of the image. The network answers in
# narrow peaks, and gives the blank everywhere else.

figure, axes = plt.subplots(figsize=(7, 2.5), layout="constrained")
axes.semilogy(losses, linewidth=0.8)
axes.set(title="training loss", xlabel="step", ylabel="nats a symbol")

figure, axes = plt.subplots(2, 2, figsize=(9, 4), layout="constrained", height_ratios=(1, 2), sharex=True)
for n, (image_axes, symbol_axes) in enumerate(axes.T):
    image_axes.imshow(images[n].T, cmap="gray_r", aspect="auto")
    image_axes.set_title(f"{''.join(map(str, labels[n]))}, read as {''.join(map(str, answers[n]))}")
    image_axes.set_yticks([])
    symbol_axes.imshow(
        np.exp(log_p[:, n]).T, aspect="auto", cmap="viridis", vmin=0, vmax=1, extent=(0, COLUMNS, 10.5, -0.5)
    )
    symbol_axes.set_yticks(range(11), [*map(str, range(10)), "blank"], fontsize=7)
    symbol_axes.set_xlabel("column")
