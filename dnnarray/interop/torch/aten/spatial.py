"""Sampling on a grid, interpolation, embedding, and the rearrangement of channels and pixels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import dnnarray as dnn
from dnnarray.interop.torch.aten.kernels import chosen, decline, kernel

_MODES = ("bilinear", "nearest", "bicubic")  # by PyTorch's numbers
_PADDINGS = ("zeros", "border", "reflection")


def _grid_options(mode: int, padding: int, align_corners: bool) -> dict[str, Any]:
    return {"mode": _MODES[mode], "padding_mode": _PADDINGS[padding], "align_corners": align_corners}


@kernel("grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    # PyTorch's result is in the default order
    out = None if x.is_contiguous() else x.new_empty((*x.shape[:2], *grid.shape[1:-1]))
    return dnn.grid_sample(x, grid, out=out, **_grid_options(mode, padding, align_corners))


@kernel("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(
    grad: Tensor, x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool, mask: list[bool]
) -> tuple[Any, Any]:
    needs = chosen(("x", "grid"), mask)
    if not needs:
        return None, None
    found = dnn.grid_sample_backward(grad, x, grid, needs=needs, **_grid_options(mode, padding, align_corners))
    return found.x, found.grid


def _positions(extents: list[int], output_size: list[int], scales: tuple[float | None, ...]) -> dict[str, Any]:
    """The size of the result, or the scales where PyTorch computes positions by them."""
    given = [s is not None for s in scales]
    if not any(given):
        return {"size": tuple(output_size)}
    found = tuple([float(s) for s in scales if s is not None])
    if not all(given) or [math.floor(n * s) for n, s in zip(extents, found, strict=True)] != list(output_size):
        raise decline("interpolate: scales that do not give the size of the result")
    return {"scale": found}


def _resampling(mode: str, aligned: bool, antialias: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """An interpolation and its gradient; `aligned` says whether PyTorch's operator has the option ``align_corners``."""
    options: dict[str, Any] = {"mode": mode, "antialias": antialias}

    def forward(x: Tensor, output_size: list[int], *rest: Any) -> Tensor:
        corners, scales = _split(rest, aligned, len(output_size))
        return dnn.interpolate(
            x, **_positions(list(x.shape[2:]), output_size, scales), align_corners=corners, **options
        )

    def backward(grad: Tensor, output_size: list[int], input_size: list[int], *rest: Any) -> Tensor:
        corners, scales = _split(rest, aligned, len(output_size))
        x = torch.empty(input_size, dtype=grad.dtype, device=grad.device)  # its shape matters, and its order in memory
        if grad.dim() == 4 and not grad.is_contiguous() and grad.is_contiguous(memory_format=torch.channels_last):
            x = x.contiguous(memory_format=torch.channels_last)
        positions = _positions(list(input_size[2:]), output_size, scales)
        return dnn.interpolate_backward(grad, x, **positions, align_corners=corners, **options)

    return forward, backward


def _split(rest: tuple[Any, ...], aligned: bool, axes: int) -> tuple[bool, tuple[float | None, ...]]:
    """``align_corners`` and the scales, None where they were left out."""
    corners, scales = (bool(rest[0]), rest[1:]) if aligned else (False, rest)
    return corners, (*scales, *(None,) * (axes - len(scales)))


def _enter_resampling(name: str, mode: str, aligned: bool, antialias: bool = False) -> None:
    forward, backward = _resampling(mode, aligned, antialias)
    kernel(name)(forward)
    kernel(f"{name}_backward")(backward)


for _axes in (1, 2, 3):
    _enter_resampling(f"upsample_nearest{_axes}d", "nearest", False)
    _enter_resampling(f"_upsample_nearest_exact{_axes}d", "nearest_exact", False)
for _name in ("linear1d", "bilinear2d", "trilinear3d"):
    _enter_resampling(f"upsample_{_name}", "linear", True)
_enter_resampling("upsample_bicubic2d", "cubic", True)
_enter_resampling("_upsample_bilinear2d_aa", "linear", True, antialias=True)
_enter_resampling("_upsample_bicubic2d_aa", "cubic", True, antialias=True)


@kernel("embedding")
def embedding(
    weight: Tensor, indices: Tensor, padding: int = -1, by_frequency: bool = False, sparse: bool = False
) -> Tensor:
    return dnn.embedding(indices, weight)


@kernel("embedding_dense_backward")
def embedding_backward(grad: Tensor, indices: Tensor, rows: int, padding: int, by_frequency: bool) -> Tensor:
    if by_frequency:
        raise decline("embedding: scale_grad_by_freq")
    weight = grad.new_empty(rows, grad.shape[-1])  # only its shape matters
    return dnn.embedding_backward(grad, indices, weight, padding_index=padding if 0 <= padding < rows else None)


def _image(x: Tensor) -> Tensor:
    if x.dim() != 4:
        raise decline("an image without exactly one batch axis")
    return x


@kernel("pixel_shuffle")
def pixel_shuffle(x: Tensor, factor: int) -> Tensor:
    return dnn.pixel_shuffle(_image(x), factor)


@kernel("pixel_unshuffle")
def pixel_unshuffle(x: Tensor, factor: int) -> Tensor:
    return dnn.pixel_unshuffle(_image(x), factor)


@kernel("channel_shuffle")
def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    return dnn.channel_shuffle(_image(x), groups)
