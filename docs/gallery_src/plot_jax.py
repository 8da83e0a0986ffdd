"""
dnnarray's functions under JAX
==============================

:mod:`dnnarray.interop.jax` offers the functions of dnnarray as functions of JAX arrays, which work under
``jax.jit``, ``jax.grad`` and ``jax.vmap``. A call becomes a custom call in the program that XLA compiles, and works
on XLA's own memory. This tutorial trains a small convolutional network with a jitted training step, and holds its
gradients to those of ``jax.lax``. It needs ``pip install 'dnnarray[jax]'``."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from dnnarray.interop.jax import conv, cross_entropy, linear, max_pool, softmax

rng = np.random.default_rng(0)
images, labels = load_digits(return_X_y=True)
images = (images.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
labels = labels.astype(np.int32)
train, test = np.split(rng.permutation(len(images)), [1408])

# %%
# Parameters are a pytree, as in any JAX program.

SHAPES = {"conv1": (16, 1, 3, 3), "conv2": (32, 16, 3, 3), "linear": (10, 128)}
params = {n: jnp.asarray(rng.standard_normal(s) * (2 / np.prod(s[1:])) ** 0.5, jnp.float32) for n, s in SHAPES.items()}


def scores(params, x):
    x = max_pool(conv(x, params["conv1"], padding=1, activation="relu"), 2)
    x = max_pool(conv(x, params["conv2"], padding=1, activation="relu"), 2)
    return linear(x.reshape(len(x), -1), params["linear"])


def loss(params, x, y):
    return cross_entropy(scores(params, x), y)


# %%
# The same network in ``jax.lax`` has the same gradients, up to the rounding of float32.


def lax_loss(params, x, y):
    for name in ("conv1", "conv2"):
        x = jax.nn.relu(jax.lax.conv(x, params[name], (1, 1), "SAME"))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    log_p = jax.nn.log_softmax(x.reshape(len(x), -1) @ params["linear"].T)
    return -jnp.take_along_axis(log_p, y[:, None], axis=1).mean()


ours, theirs = (jax.jit(jax.grad(f))(params, images[test], labels[test]) for f in (loss, lax_loss))
difference = max(float(abs(ours[n] - theirs[n]).max() / abs(theirs[n]).max()) for n in params)
print(f"largest difference from the gradients of jax.lax: {difference:.1e} of the largest gradient")

# %%
# The whole training step, gradients and momentum included, is one compiled program.

RATE, MOMENTUM, EPOCHS = 0.03, 0.9, 8


@jax.jit
def step(params, velocity, x, y):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v - RATE * g, velocity, grads)
    return jax.tree.map(jnp.add, params, velocity), velocity, value


velocity, losses = jax.tree.map(jnp.zeros_like, params), []
for _ in range(EPOCHS):
    for batch in np.split(rng.permutation(train), 22):
        params, velocity, value = step(params, velocity, images[batch], labels[batch])
        losses.append(float(value))
accuracy = float((scores(params, images[test]).argmax(axis=1) == labels[test]).mean())
print(f"{accuracy:.1%} of {len(test)} digits that were held out are read correctly")

# %%
# ``jax.vmap`` maps a function of a single image over the batch. Here it computes the gradient of the likeliest score
# with respect to each pixel, which shows where the network looks.


def likeliest(image):
    return jnp.log(softmax(scores(params, image[None])).max())


saliency = jax.jit(jax.vmap(jax.grad(likeliest)))(jnp.asarray(images[test[:8]]))
figure, axes = plt.subplots(figsize=(7, 2.5), layout="constrained")
axes.semilogy(losses, linewidth=0.8)
axes.set(title="training loss", xlabel="step", ylabel="nats")
figure, axes = plt.subplots(2, 8, figsize=(10, 2.8), layout="constrained")
for n, (image_axes, gradient_axes) in enumerate(axes.T):
    image_axes.imshow(images[test[n], 0], cmap="gray_r")
    limit = float(abs(saliency[n]).max())
    gradient_axes.imshow(saliency[n, 0], cmap="RdBu", vmin=-limit, vmax=limit)
    image_axes.axis("off")
    gradient_axes.axis("off")
