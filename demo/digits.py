"""Train a small convolutional network on handwritten digits with dnnarray alone: `value_and_grad`, `sgd` and a
schedule.

    python -m demo.digits [--device cpu|cuda] [--epochs 30]

The data are the 1797 digits of 8x8 pixels that ship inside scikit-learn (UCI "Optical Recognition of Handwritten
Digits"). Where PyTorch is installed, the same network is trained a second time as a `torch.nn` model under
`dnnarray.interop.torch.accelerate()`, and the report shows which of PyTorch's operators dnnarray's kernels took."""

from __future__ import annotations

import argparse
import time
from importlib.util import find_spec
from pathlib import Path

import matplotlib as mpl
import numpy as np
from sklearn.datasets import load_digits
from tqdm import tqdm

import dnnarray as dnn

mpl.use("Agg")
import matplotlib.pyplot as plt

BATCH = 64
HELD_OUT = 360  # a fifth of the digits, never trained on
MOMENTUM, WEIGHT_DECAY, PEAK_RATE = 0.9, 5e-4, 0.05


class Network:
    """conv 3x3 -> norm -> relu -> conv 3x3 -> norm -> relu -> max pool -> conv 3x3 -> norm -> relu -> max pool ->
    linear."""

    WIDTHS = (1, 32, 64, 64)
    POOLED = (1, 2)  # the convolutions that a max pool follows

    def __init__(self, xp, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.xp = xp
        self.parameters = {}
        for i, (c, k) in enumerate(zip(self.WIDTHS[:-1], self.WIDTHS[1:], strict=True)):
            self.parameters[f"conv{i}"] = rng.standard_normal((k, c, 3, 3)) * np.sqrt(2 / (9 * c))
            self.parameters |= {f"scale{i}": np.ones(k), f"shift{i}": np.zeros(k)}
        features = self.WIDTHS[-1] * 2 * 2
        self.parameters |= {"linear": rng.standard_normal((10, features)) * np.sqrt(1 / features), "bias": np.zeros(10)}
        self.parameters = {n: xp.asarray(p.astype(np.float32)) for n, p in self.parameters.items()}
        self.running = {i: (xp.zeros(k, np.float32), xp.ones(k, np.float32)) for i, k in enumerate(self.WIDTHS[1:])}

    def loss(self, parameters, images, labels):
        """Mean cross entropy of a batch, and the running statistics that the norms leave behind."""
        p, x, running = parameters, images, {}
        for i, statistics in self.running.items():
            x = dnn.conv(x, p[f"conv{i}"], padding=1)
            norm = dnn.batch_norm_train(x, p[f"scale{i}"], p[f"shift{i}"], *statistics)
            running[i] = (norm.running_mean, norm.running_var)
            x = dnn.relu(norm.y)
            if i in self.POOLED:
                x = dnn.max_pool(x, 2)
        logits = dnn.linear(x.reshape(x.shape[0], -1), p["linear"], p["bias"])
        return dnn.cross_entropy(logits, labels), running

    def logits(self, images):
        """Inference: the norm and the ReLU are fused, statistics are the running ones."""
        p, x = self.parameters, images
        for i, statistics in self.running.items():
            x = dnn.conv(x, p[f"conv{i}"], padding=1)
            x = dnn.batch_norm(x, *statistics, p[f"scale{i}"], p[f"shift{i}"], activation="relu")
            if i in self.POOLED:
                x = dnn.max_pool(x, 2)
        return dnn.linear(x.reshape(len(x), -1), p["linear"], p["bias"])


def shifted(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each image moved by up to one pixel: the only augmentation."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (8, 8), axis=(2, 3))
    return windows[np.arange(len(images)), :, rng.integers(0, 3, len(images)), rng.integers(0, 3, len(images))]


def train(network: Network, images: np.ndarray, labels: np.ndarray, held_out, epochs: int, rng: np.random.Generator):
    """Stochastic gradient descent with momentum under a one-cycle rate; returns the curves."""
    xp, state = network.xp, None
    curves = {"loss": [], "accuracy": []}
    steps = len(images) // BATCH
    rate = dnn.cosine_schedule(PEAK_RATE, epochs * steps, warmup_steps=epochs * steps // 5)
    loss_and_gradients = dnn.value_and_grad(network.loss, has_aux=True)
    with tqdm(total=epochs * steps, desc="training", unit="step") as progress:
        for epoch in range(epochs):
            order, losses = rng.permutation(len(images)), []
            for s in range(steps):
                chosen = order[s * BATCH : (s + 1) * BATCH]
                batch = xp.asarray(np.ascontiguousarray(shifted(images[chosen], rng)))
                (loss, network.running), gradients = loss_and_gradients(
                    network.parameters, batch, xp.asarray(labels[chosen])
                )
                network.parameters, state = dnn.sgd(
                    network.parameters,
                    gradients,
                    state,
                    lr=rate(epoch * steps + s),
                    momentum=MOMENTUM,
                    weight_decay=WEIGHT_DECAY,
                )
                losses.append(loss)
                progress.update()
            curves["loss"].append(float(sum(map(float, losses)) / steps))
            curves["accuracy"].append(accuracy(network, *held_out))
            progress.set_postfix(loss=f"{curves['loss'][-1]:.4f}", held_out=f"{curves['accuracy'][-1]:.2%}")
    return curves


def predict(network: Network, images) -> np.ndarray:
    """The most likely digit of each image, on the host."""
    best = network.logits(network.xp.asarray(images)).argmax(axis=1)
    return best.get() if hasattr(best, "get") else best


def accuracy(network: Network, images, labels) -> float:
    return float((predict(network, images) == labels).mean())


def explain_layers(network: Network) -> None:
    """Print which algorithm each layer chose, and why."""
    extent = 8
    for i, (c, k) in enumerate(zip(network.WIDTHS[:-1], network.WIDTHS[1:], strict=True)):
        x = network.xp.zeros((BATCH, c, extent, extent), np.float32)
        print(
            f"\nlayer {i}: {c} -> {k} channels, "
            f"{extent}x{extent}\n{dnn.explain('conv', x, network.parameters[f'conv{i}'], padding=1)}"
        )
        extent //= 2 if i in network.POOLED else 1


def picture(network: Network, curves, images, labels, path: Path) -> None:
    """Curves, first-layer filters, and the held-out digits that the network got wrong."""
    predicted = predict(network, images)
    wrong = np.flatnonzero(predicted != labels)[:8]
    figure = plt.figure(figsize=(12, 7), layout="constrained")
    grid = figure.add_gridspec(3, 8)
    for column, (name, values) in enumerate(curves.items()):
        axes = figure.add_subplot(grid[0, 4 * column : 4 * column + 4])
        axes.plot(range(1, len(values) + 1), values, color=("tab:blue", "tab:green")[column])
        axes.set(title={"loss": "training loss", "accuracy": "held-out accuracy"}[name], xlabel="epoch")
        axes.grid(alpha=0.3)
    filters = network.parameters["conv0"]
    filters = filters.get() if hasattr(filters, "get") else filters
    for i in range(8):
        show(figure.add_subplot(grid[1, i]), filters[i, 0], f"filter {i}", "RdBu")
    for i, w in enumerate(wrong):
        show(figure.add_subplot(grid[2, i]), images[w, 0], f"{labels[w]}, taken for {predicted[w]}", "gray_r")
    figure.suptitle(
        f"dnnarray on handwritten digits: {curves['accuracy'][-1]:.2%} of {len(labels)} held-out digits right"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def show(axes, image, title: str, colours: str) -> None:
    axes.imshow(image, cmap=colours)
    axes.set_title(title, fontsize=8)
    axes.axis("off")


def array_module(device: str):
    """NumPy, or CuPy for a GPU."""
    if device == "cpu":
        return np
    import cupy

    return cupy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("demo-output/digits.png"))
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    digits = load_digits()
    order = rng.permutation(len(digits.target))
    images = (digits.images[order, None] / 16 - 0.5).astype(np.float32)
    labels = digits.target[order].astype(np.int64)
    held_out = images[:HELD_OUT], labels[:HELD_OUT]
    network = Network(array_module(arguments.device), arguments.seed)
    start = time.perf_counter()
    curves = train(network, images[HELD_OUT:], labels[HELD_OUT:], held_out, arguments.epochs, rng)
    seconds = time.perf_counter() - start
    explain_layers(network)
    picture(network, curves, *held_out, arguments.output)
    print(
        f"\nheld-out accuracy {curves['accuracy'][-1]:.2%} after {arguments.epochs} epochs, {seconds:.1f} s on "
        f"{arguments.device}"
    )
    print(f"picture: {arguments.output}")
    if find_spec("torch"):
        from demo import digits_torch

        digits_torch.show((images[HELD_OUT:], labels[HELD_OUT:]), held_out, arguments.device, arguments.seed)


if __name__ == "__main__":
    main()
