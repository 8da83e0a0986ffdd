"""
A PyTorch model with dnnarray's kernels
=======================================

:func:`dnnarray.interop.torch.accelerate` puts dnnarray's kernels under PyTorch's own operators. The model, the
optimizer and the training loop stay as they are. This tutorial trains the same small network twice, once by
PyTorch's kernels and once by dnnarray's, and shows that both runs agree. It needs ``pip install 'dnnarray[torch]'``."""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from dnnarray.interop.torch import accelerate, linear_cross_entropy, report

images, labels = load_digits(return_X_y=True)
images = torch.from_numpy(images.reshape(-1, 1, 8, 8) / 16).float()
labels = torch.from_numpy(labels)
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
train, test = order[:1408], order[1408:]

# %%
# The model is an ordinary PyTorch module.


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 10)),
    )


def trained(epochs=2):
    network = model()
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    losses, shuffled = [], torch.Generator().manual_seed(1)
    for _ in range(epochs):
        for batch in train[torch.randperm(len(train), generator=shuffled)].split(64):
            loss = nn.functional.cross_entropy(network(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return network.eval(), losses


# %%
# On a GPU, ``accelerate()`` needs no arguments. On the CPU the device is named, because PyTorch's own CPU kernels
# remain the default there.

_, by_pytorch = trained()
with accelerate(devices=("cpu",)):
    network, by_dnnarray = trained()
    with torch.no_grad():
        accuracy = (network(images[test]).argmax(dim=1) == labels[test]).float().mean().item()
print(f"{accuracy:.1%} of {len(test)} digits that were held out are read correctly")

# %%
# :func:`~dnnarray.interop.torch.report` says which calls were taken, and why others were left to PyTorch.

calls = report()
print(calls)
taken = calls["aten::convolution"].taken

# %%
# The two runs differ by the rounding of float32, which training amplifies from step to step.

difference = np.abs(np.subtract(by_pytorch, by_dnnarray))
figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
axes[0].semilogy(by_pytorch, label="PyTorch's kernels")
axes[0].semilogy(by_dnnarray, "--", label="dnnarray's kernels")
axes[0].set(title="training loss", xlabel="step", ylabel="nats")
axes[0].legend()
axes[1].semilogy(np.maximum(difference, 1e-9))
axes[1].set(title="difference of the two losses", xlabel="step", ylabel="nats")

# %%
# dnnarray's functions that PyTorch does not have are operators with gradients of their own. ``linear_cross_entropy``
# is a linear layer and the loss behind it; the scores of all classes are never in memory at once.

features = torch.randn(256, 64, generator=torch.Generator().manual_seed(2)).requires_grad_()
weight = (torch.randn(5000, 64, generator=torch.Generator().manual_seed(3)) / 8).requires_grad_()
loss = linear_cross_entropy(features, weight, torch.arange(256))
loss.backward()
print(f"loss {loss.item():.3f}, gradient of the weight of shape {tuple(weight.grad.shape)}")
