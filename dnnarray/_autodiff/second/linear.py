"""Second derivatives of operations that are linear in each of their arrays: convolution, linear layers, pooling,
resampling, and what moves data."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dnnarray._autodiff import functions as xp
from dnnarray._autodiff.second.given import Given, channel_axis, public, spatial_axes, zeros_like
from dnnarray._autodiff.traced import plain
from dnnarray._errors import UnsupportedError


def bilinear(v: dict[str, Any], given: Given) -> dict[str, Any]:
    """Of ``y = F(x, weight) + bias + residual`` with an F that is linear in `x` and in `weight`.

    Its gradients are linear in `grad`, and that of `x` is a function of `weight` alone, that of `weight` of `x`."""
    g, x = given.arrays["grad"], given.arrays["x"]
    vx, vw = v.get("x"), v.get("weight")
    rest = {n: v.get(n) for n in ("bias", "residual") if n in given.forward.arrays}
    found: dict[str, Any] = {}
    if vx is not None or vw is None or any(a is not None for a in rest.values()):
        found["grad"] = given.call_forward(x=zeros_like(x) if vx is None else vx, **rest)
    if vx is not None:
        found["weight"] = given.gradient("weight", grad=g, x=vx, bias=None)
    if vw is not None:
        alone = given.call_forward(weight=vw, **dict.fromkeys(rest))
        found["grad"] = found["grad"] + alone if "grad" in found else alone
        found["x"] = given.gradient("x", grad=g, weight=vw, bias=None)
    return found


def _linear(v: dict[str, Any], given: Given) -> dict[str, Any]:
    """Of an operation that is linear in all arrays that have gradients together: the gradients do not depend on
    them."""
    moved = {n: zeros_like(given.arrays[n]) if v.get(n) is None else v[n] for n in given.fields if n in given.arrays}
    return {"grad": given.call_forward(**{n: a for n, a in moved.items() if given.arrays[n] is not None})}


def _embedding(v: dict[str, Any], given: Given) -> dict[str, Any]:
    grad = given.call_forward(weight=v["weight"])
    padding = given.options["padding_index"]
    if padding is None:
        return {"grad": grad}
    indices = given.arrays["indices"]
    rows = v["weight"].shape[0]
    return {"grad": xp.where((indices == padding % rows)[..., None], 0.0 * grad, grad)}


def _roi_align(v: dict[str, Any], given: Given) -> dict[str, Any]:
    if given.options["mode"] != "avg":
        raise UnsupportedError(
            f'roi_align_backward: mode is {given.options["mode"]!r}, which has no second derivative here; mode="avg" '
            "has one."
        )
    return _linear(v, given)


def _largest(v: dict[str, Any], given: Given) -> dict[str, Any]:
    """Of the greatest elements of windows, whose places stay where they are."""
    x, indices, layout = given.arrays["x"], given.arrays["indices"], given.options["layout"]
    if indices is None:
        name = given.forward.base.removesuffix("_with_indices")
        indices = public(f"{name}_with_indices")(plain(x), **given.options).indices
    indices = plain(indices)
    axis = channel_axis(x, layout)
    size = math.prod(indices.shape[a] for a in spatial_axes(x, layout))
    flat = (x.shape[0], size, x.shape[-1]) if axis > 1 else (*x.shape[:2], size)
    space = math.prod(x.shape[a] for a in spatial_axes(x, layout))
    whole = (x.shape[0], space, x.shape[-1]) if axis > 1 else (*x.shape[:2], space)
    picked = xp.take_along_axis(xp.reshape(v["x"], whole), indices.reshape(flat), axis=1 if axis > 1 else 2)
    return {"grad": xp.reshape(picked, tuple(indices.shape))}


_MOVING = (
    *("unfold", "fold", "avg_pool", "adaptive_avg_pool", "max_unpool", "interpolate", "affine_grid", "nll_loss"),
    *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "dropout", "bias_dropout_add"),
)
_LARGEST = ("max_pool", "max_pool_with_indices", "adaptive_max_pool", "adaptive_max_pool_with_indices")
RULES: dict[str, Callable[[dict[str, Any], Given], dict[str, Any]]] = {
    **dict.fromkeys(_MOVING, _linear),
    **dict.fromkeys(_LARGEST, _largest),
    "embedding": _embedding,
    "roi_align": _roi_align,
}
