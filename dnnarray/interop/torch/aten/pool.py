"""Pooling. PyTorch's operators take an image without a batch axis too, and an empty stride for that of the window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

import dnnarray as dnn
from dnnarray.interop.torch.aten.kernels import batched, decline, kernel, sizes, unbatched


def _window(kernel_size: list[int], stride: list[int], padding: list[int], spatial: int) -> dict[str, Any]:
    """The options of a window, refused where PyTorch refuses them."""
    for size, before in zip(_each(kernel_size, spatial), _each(padding, spatial), strict=True):
        if 2 * before > size:
            raise decline("padding of more than half of the window")
    return {"kernel_size": sizes(kernel_size), "stride": sizes(stride) if stride else None, "padding": sizes(padding)}


def _each(values: list[int], spatial: int) -> list[int]:
    return list(values) * spatial if len(values) == 1 else list(values)


def _max_pool(spatial: int) -> Callable[..., Any]:
    def max_pool_with_indices(
        x: Tensor,
        kernel_size: list[int],
        stride: list[int] = (),  # type: ignore[assignment]
        padding: list[int] = (0,),  # type: ignore[assignment]
        dilation: list[int] = (1,),  # type: ignore[assignment]
        ceil_mode: bool = False,
    ) -> tuple[Tensor, Tensor]:
        x, added = batched(x, spatial)
        options = _window(kernel_size, stride, padding, spatial) | {"dilation": sizes(dilation), "ceil_mode": ceil_mode}
        y, indices = dnn.max_pool_with_indices(x, **options)
        return unbatched(y, added), unbatched(indices, added)

    return max_pool_with_indices


def _max_pool_backward(spatial: int) -> Callable[..., Any]:
    def max_pool_with_indices_backward(
        grad: Tensor,
        x: Tensor,
        kernel_size: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        ceil_mode: bool,
        indices: Tensor,
    ) -> Tensor:
        x, added = batched(x, spatial)
        options = _window(kernel_size, stride, padding, spatial) | {"dilation": sizes(dilation), "ceil_mode": ceil_mode}
        found = dnn.max_pool_with_indices_backward(
            batched(grad, spatial)[0], x, indices=batched(indices, spatial)[0], **options
        )
        return unbatched(found, added)

    return max_pool_with_indices_backward


def _avg_pool(spatial: int) -> Callable[..., Any]:
    def avg_pool(
        x: Tensor,
        kernel_size: list[int],
        stride: list[int] = (),  # type: ignore[assignment]
        padding: list[int] = (0,),  # type: ignore[assignment]
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor: int | None = None,
    ) -> Tensor:
        x, added = batched(x, spatial)
        options = _average(kernel_size, stride, padding, ceil_mode, count_include_pad, divisor, spatial)
        return unbatched(dnn.avg_pool(x, **options), added)

    return avg_pool


def _avg_pool_backward(spatial: int) -> Callable[..., Any]:
    def avg_pool_backward(
        grad: Tensor,
        x: Tensor,
        kernel_size: list[int],
        stride: list[int],
        padding: list[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor: int | None,
    ) -> Tensor:
        x, added = batched(x, spatial)
        options = _average(kernel_size, stride, padding, ceil_mode, count_include_pad, divisor, spatial)
        return unbatched(dnn.avg_pool_backward(batched(grad, spatial)[0], x, **options), added)

    return avg_pool_backward


def _average(
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    counted: bool,
    divisor: int | None,
    spatial: int,
) -> dict[str, Any]:
    if divisor is not None:
        raise decline("avg_pool: divisor_override")
    return _window(kernel_size, stride, padding, spatial) | {"ceil_mode": ceil_mode, "count_include_pad": counted}


def _adaptive(spatial: int, function: Callable[..., Any]) -> Callable[..., Any]:
    def adaptive_pool(x: Tensor, output_size: list[int]) -> Any:
        x, added = batched(x, spatial)
        found = function(x, sizes(output_size))
        return tuple([unbatched(one, added) for one in found]) if isinstance(found, tuple) else unbatched(found, added)

    return adaptive_pool


def _adaptive_avg_backward(spatial: int) -> Callable[..., Any]:
    def adaptive_avg_pool_backward(grad: Tensor, x: Tensor) -> Tensor:
        x, added = batched(x, spatial)
        grad = batched(grad, spatial)[0]
        return unbatched(dnn.adaptive_avg_pool_backward(grad, x, tuple(grad.shape[2:])), added)

    return adaptive_avg_pool_backward


def _adaptive_max_backward(spatial: int) -> Callable[..., Any]:
    def adaptive_max_pool_backward(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
        x, added = batched(x, spatial)
        grad, indices = batched(grad, spatial)[0], batched(indices, spatial)[0]
        return unbatched(
            dnn.adaptive_max_pool_with_indices_backward(grad, x, tuple(grad.shape[2:]), indices=indices), added
        )

    return adaptive_max_pool_backward


for _spatial in (2, 3):
    kernel(f"max_pool{_spatial}d_with_indices")(_max_pool(_spatial))
    kernel(f"max_pool{_spatial}d_with_indices_backward")(_max_pool_backward(_spatial))
    kernel(f"avg_pool{_spatial}d")(_avg_pool(_spatial))
    kernel(f"avg_pool{_spatial}d_backward")(_avg_pool_backward(_spatial))
    kernel(f"_adaptive_avg_pool{_spatial}d")(_adaptive(_spatial, dnn.adaptive_avg_pool))
    kernel(f"_adaptive_avg_pool{_spatial}d_backward")(_adaptive_avg_backward(_spatial))
    kernel(f"adaptive_max_pool{_spatial}d")(_adaptive(_spatial, dnn.adaptive_max_pool_with_indices))
    kernel(f"adaptive_max_pool{_spatial}d_backward")(_adaptive_max_backward(_spatial))
