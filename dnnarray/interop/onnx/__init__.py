"""Models of ONNX on dnnarray: `run` and `prepare`, and the interface of ``onnx.backend`` for tools that take a backend.

Operators of dnnarray's field (convolution, pooling, normalization, activation, softmax, recurrent networks,
attention, losses, sampling) run by dnnarray's own functions, all others by the Array API of the arrays: NumPy with
the device "CPU", CuPy with "CUDA".

>>> import numpy as np
>>> from onnx import TensorProto, helper
>>> x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy")
>>> model = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", [x], [y]))
>>> run(model, {"x": np.array([-1, 0, 2], np.float32)})["y"]
array([0., 0., 2.], dtype=float32)
"""

from __future__ import annotations

from typing import Any

from dnnarray.interop.onnx.backend import DnnarrayBackend, DnnarrayRep
from dnnarray.interop.onnx.values import arrays_in, on_host

__all__ = [
    "DnnarrayBackend",
    "DnnarrayRep",
    "is_compatible",
    "prepare",
    "run",
    "run_model",
    "run_node",
    "supports_device",
]


def prepare(model: Any, device: str = "CPU") -> DnnarrayRep:
    """Check a model and make it ready to run.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, str or path
        The model, or its file.
    device : {"CPU", "CUDA", "CUDA:1", ...}
        Where it runs: on NumPy arrays, or on CuPy arrays on a CUDA device. What the model holds is brought there once.

    Returns
    -------
    prepared : DnnarrayRep
        ``prepared.run(inputs)`` runs the model.

    Raises
    ------
    UnsupportedError
        Nothing here computes an operator of the model, or not with its attributes. The message names the operator,
        the node, the version of the operator set, and what can be done.
    OptionError
        The model is not valid, is no model, or the device is misspelt.
    DeviceError
        There is no such device.

    Notes
    -----
    On a CUDA device the host waits only where a shape or a branch depends on a result: `NonZero`, `Unique`, `If` and
    `Loop` conditions, and inputs such as the shape of `Reshape` that are computed on the device.
    """
    return DnnarrayBackend.prepare(model, device)


def run(model: Any, inputs: Any, device: str | None = None) -> Any:
    """Run a model once. ``prepare(model).run(inputs)`` spares the preparation where it runs more often.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, str or path
        The model, or its file.
    inputs : mapping or sequence of arrays
        The inputs by name, or in the order of the model.
    device : {"CPU", "CUDA", "CUDA:1", ...}, optional
        Where the model runs; by default where the first input lies.

    Returns
    -------
    outputs : named tuple of arrays
        The outputs in order, by name too: ``outputs["name"]``.

    Raises
    ------
    UnsupportedError, OptionError, DeviceError, ShapeError, DTypeError, ArrayTypeError
        As `prepare` and `DnnarrayRep.run`.
    """
    return DnnarrayBackend.prepare(model, _device_of(inputs) if device is None else device).run(inputs)


def _device_of(inputs: Any) -> str:
    values = inputs.values() if hasattr(inputs, "values") else inputs if isinstance(inputs, (list, tuple)) else [inputs]
    for array in arrays_in(values):
        if on_host(array):
            return "CPU"
        kind, index = array.__dlpack_device__()
        return f"CUDA:{index}" if kind == 2 else "CPU"
    return "CPU"


supports_device = DnnarrayBackend.supports_device
is_compatible = DnnarrayBackend.is_compatible
run_model = DnnarrayBackend.run_model
run_node = DnnarrayBackend.run_node
