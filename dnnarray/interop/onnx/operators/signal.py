"""Fourier transforms. A complex number is a last axis of two."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import namespace, number, widened


def _complex(x: Any) -> Any:
    """An array with real and imaginary parts along its last axis as a complex one; of extent 1, the axis is real."""
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


def _parts(xp: Any, x: Any, dtype: Any) -> Any:
    return xp.stack([x.real, x.imag], axis=-1).astype(dtype)


def _transformed(xp: Any, x: Any, length: int, axis: int, onesided: bool) -> Any:
    found = xp.fft.fft(x, n=length, axis=axis)
    return found[(slice(None),) * axis + (slice(length // 2 + 1),)] if onesided else found


@operator("DFT", host=(1, 2))
def dft(node: Node, x: Any, length: Any = None, axis: Any = None) -> Any:
    """The axis is an attribute before opset 20."""
    xp = namespace(x)
    place = (node.get("axis", 1) if node.opset < 20 else -2) if axis is None else int(number(axis))
    place %= x.ndim
    onesided, inverse = bool(node.get("onesided", 0)), bool(node.get("inverse", 0))
    usual = 2 * (x.shape[place] - 1) if onesided and inverse else x.shape[place]
    count = usual if length is None else int(number(length))
    values = _complex(widened(x))
    if not inverse:
        return _parts(xp, _transformed(xp, values, count, place, onesided), x.dtype)
    if onesided:
        return xp.fft.irfft(values, n=count, axis=place)[..., None].astype(x.dtype)
    return _parts(xp, xp.fft.ifft(values, n=count, axis=place), x.dtype)


@operator("STFT", host=(1, 3))
def stft(node: Node, x: Any, step: Any, window: Any = None, length: Any = None) -> Any:
    xp = namespace(x)
    size = int(number(length)) if length is not None else x.shape[1] if window is None else window.shape[0]
    starts = np.arange(0, x.shape[1] - size + 1, int(number(step)))
    frames = _complex(widened(x))[:, xp.asarray(starts[:, None] + np.arange(size))]
    frames = frames if window is None else frames * widened(window)
    return _parts(xp, _transformed(xp, frames, size, 2, bool(node.get("onesided", 1))), x.dtype)
