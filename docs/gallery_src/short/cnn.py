"""A CNN on handwritten digits
===========================
"""

import numpy as np
from sklearn.datasets import load_digits

import dnnarray as dnn

rng = np.random.default_rng(0)
images, labels = load_digits(return_X_y=True)
images = (images.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
train, test = np.split(rng.permutation(len(images)), [1408])
shapes = {"conv1": (16, 1, 3, 3), "conv2": (32, 16, 3, 3), "linear": (10, 128)}
params = {n: (rng.standard_normal(s) * (2 / np.prod(s[1:])) ** 0.5).astype(np.float32) for n, s in shapes.items()}


def network(params, x):
    x = dnn.max_pool(dnn.conv(x, params["conv1"], padding=1, activation="relu"), 2)
    x = dnn.max_pool(dnn.conv(x, params["conv2"], padding=1, activation="relu"), 2)
    return dnn.linear(x.reshape(len(x), -1), params["linear"])


step, state = dnn.value_and_grad(lambda params, x, y: dnn.cross_entropy(network(params, x), y)), None
for _ in range(20):
    for batch in np.split(rng.permutation(train), 22):
        loss, grads = step(params, images[batch], labels[batch])
        params, state = dnn.adamw(params, grads, state, lr=3e-3)
accuracy = (network(params, images[test]).argmax(axis=1) == labels[test]).mean()
print(f"{accuracy:.1%} of the {len(test)} digits held out are read correctly")
