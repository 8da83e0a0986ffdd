"""Changes of dtype."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import dtype_of, namespace, on_host

_CODES = {v: k for k, v in TensorProto.DataType.items()}
_NARROW = frozenset(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"))
_NOT_OF_CUPY = frozenset((*_NARROW, "float8_e8m0fnu", "float4_e2m1fn", "int4", "uint4", "int2", "uint2"))


def _refuses(node: Node) -> None:
    code = node.get("to")
    if not isinstance(code, int) or not node.place.cuda:
        return
    if code == TensorProto.STRING or str(dtype_of(code)) in _NOT_OF_CUPY:
        raise node.unsupported(f"CuPy has no arrays of {_CODES[code]}", "Run the model with device='CPU'.")


@operator("Cast", refuses=_refuses)
def cast(node: Node, x: Any) -> Any:
    """The attribute is a name in opset 1 to 5, a number since."""
    code = node.get("to")
    code = getattr(TensorProto, code) if isinstance(code, str) else code
    return _cast(node, x, None if code == TensorProto.STRING else dtype_of(code))


@operator("CastLike")
def cast_like(node: Node, x: Any, target: Any) -> Any:
    return _cast(node, x, None if target.dtype.kind in "OSU" else target.dtype)


def _cast(node: Node, x: Any, dtype: np.dtype | None) -> Any:
    if dtype is None:
        return x if x.dtype == object else np.vectorize(str, otypes=[object])(x)
    if x.dtype == object:
        x = x.astype(np.str_).astype(np.float64 if dtype.kind not in "iub" else dtype)
    if str(dtype) in _NARROW and node.get("saturate", 1):
        return _saturated(x, dtype)
    if str(dtype) == "float8_e8m0fnu":
        return _power_of_two(x, node.get("round_mode", "up"))
    if str(x.dtype) in _NOT_OF_CUPY or str(dtype) in _NOT_OF_CUPY:  # ml_dtypes casts these from and to float32
        return _narrow(x.astype(np.float32) if x.dtype.kind not in "iu" else x, dtype)
    return x.astype(dtype)


def _narrow(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return x.astype(dtype)


def _saturated(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """What lies beyond the largest number becomes the largest number, infinity too."""
    most = float(ml_dtypes.finfo(dtype).max)
    return np.clip(x.astype(np.float32), -most, most).astype(dtype)


def _power_of_two(x: np.ndarray, mode: str) -> np.ndarray:
    """A float8_e8m0fnu holds a power of two alone: the next one, as `mode` says."""
    wide = x.astype(np.float64)
    fraction, exponent = np.frexp(np.abs(wide))  # |x| = fraction * 2**exponent, fraction in [0.5, 1)
    lower = exponent - 1
    raised = {"up": fraction > 0.5, "down": np.zeros(fraction.shape, bool), "nearest": fraction >= 0.75}[mode]
    power = np.clip(np.where(wide == 0, -127, lower + raised), -127, 127)
    return np.where(np.isfinite(wide), np.ldexp(1.0, power), np.nan).astype(ml_dtypes.float8_e8m0fnu)


@operator("BitCast", refuses=_refuses)
def bit_cast(node: Node, x: Any) -> Any:
    return (
        namespace(x)
        .asarray(x, copy=on_host(x) and not x.flags.c_contiguous)
        .view(dtype_of(node.get("to")))
        .reshape(x.shape)
    )
