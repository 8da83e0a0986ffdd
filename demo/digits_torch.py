"""The network of `demo.digits` as a `torch.nn` model, trained under `dnnarray.interop.torch.accelerate()`."""

from __future__ import annotations

import time

import numpy as np
import torch

from dnnarray.interop.torch import accelerate, report

BATCH, EPOCHS, PEAK_RATE = 64, 3, 0.05


def network() -> torch.nn.Module:
    """conv 3x3 -> norm -> relu, three times, with a max pool behind the second and the third."""
    layers: list[torch.nn.Module] = []
    for channels, width, pooled in ((1, 32, False), (32, 64, True), (64, 64, True)):
        layers += [torch.nn.Conv2d(channels, width, 3, padding=1), torch.nn.BatchNorm2d(width), torch.nn.ReLU()]
        layers += [torch.nn.MaxPool2d(2)] if pooled else []
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(256, 10))


def train(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, seed: int) -> float:
    """Train for a few epochs; returns the seconds."""
    optimizer = torch.optim.SGD(model.parameters(), lr=PEAK_RATE, momentum=0.9, weight_decay=5e-4)
    generator, start = torch.Generator().manual_seed(seed), time.perf_counter()
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(images), generator=generator).split(BATCH):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
    if images.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def show(
    training: tuple[np.ndarray, np.ndarray], held_out: tuple[np.ndarray, np.ndarray], device: str, seed: int
) -> None:
    """Train by PyTorch alone and under `accelerate`, and print what each reached and which operators dnnarray took."""
    images, labels, unseen, truth = (torch.from_numpy(a).to(device) for a in (*training, *held_out))
    for enabled in (False, True):
        torch.manual_seed(seed)
        model = network().to(device)
        with accelerate(enabled, devices=(device,)):
            seconds = train(model, images, labels, seed)
            with torch.no_grad():
                right = (model.eval()(unseen).argmax(1) == truth).float().mean().item()
        name = "PyTorch under accelerate()" if enabled else "PyTorch alone"
        print(f"\n{name}: held-out accuracy {right:.2%} after {EPOCHS} epochs, {seconds:.1f} s on {device}")
    print(report())
