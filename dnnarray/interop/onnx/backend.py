"""The interface of ``onnx.backend``: a model is prepared once, and then runs for any inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from os import PathLike, fspath
from os.path import isfile
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, ValueInfoProto, helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from dnnarray._call.arrays import NUMPY, Borrowed, Door, borrow
from dnnarray._errors import ArrayTypeError, DeviceError, DTypeError, OptionError, ShapeError, UnsupportedError, fail
from dnnarray.interop.onnx import operators
from dnnarray.interop.onnx.graph import Setting, program_of
from dnnarray.interop.onnx.values import Place, arrays_in, dtype_of, is_array, on_host

assert operators  # importing them registers them


class DnnarrayRep(BackendRep):
    """A model that is ready to run; `prepare` makes it.

    Attributes
    ----------
    input_names, output_names : the names of the model's inputs without those that the model holds itself, and of its
        outputs
    device : where the model runs, "CPU", "CUDA" or "CUDA:1"
    """

    def __init__(self, model: ModelProto, device: str) -> None:
        self._place = Place(device)
        self.device = device
        with self._place.current():
            self._program = program_of(model.graph, Setting.of(model, self._place))
        held = {t.name for t in model.graph.initializer} | {t.values.name for t in model.graph.sparse_initializer}
        self._declared = {v.name: v for v in model.graph.input}
        self.input_names = tuple(n for n in self._declared if n not in held)
        self._held = tuple(n for n in self._declared if n in held)
        self.output_names = self._program.outputs
        self._result: Any = namedtupledict("Outputs", self.output_names)

    def run(self, inputs: Any, **options: Any) -> Any:
        """Run the model.

        Parameters
        ----------
        inputs : mapping or sequence
            The inputs by name, or in the order of the model; a single array where the model has one input. Values
            that the model holds for inputs may be replaced by name. Sequences of ONNX are lists.

        Returns
        -------
        outputs : named tuple
            The outputs in order; ``outputs["name"]`` finds one by its name. Where the inputs are NumPy arrays, the
            outputs are brought to the memory of the processor; other arrays (CuPy, PyTorch, JAX) have their results
            in their own namespace, on their device.

        Raises
        ------
        OptionError
            An input is missing, or the model has none of that name.
        ShapeError, DTypeError, ArrayTypeError
            An input is not as the model declares it, or is no array.
        DeviceError
            An input lies on another device than the model.
        """
        if options:
            raise OptionError(f"onnx: run takes no options; got {', '.join(options)}.")
        named = self._named(inputs)
        for name, value in named.items():
            self._check(name, value)
        numpy = all(on_host(a) for a in arrays_in(named.values()))
        borrowed = _borrowed(named)
        values = dict(zip(named, borrowed.arrays, strict=True)) if borrowed else named
        with self._running(borrowed), np.errstate(all="ignore"):
            given = {n: self._taken(n, _as_list(v)) for n, v in values.items()}
            constants = self._program.constants
            order = [given.get(n, constants.get(n)) for n in self._program.inputs]
            results = self._program({}, *order)
        give = Place.given_back if numpy or borrowed is None else _through(_way_back(borrowed.door))
        return self._result(*[give(r) for r in results])

    def _running(self, borrowed: Borrowed | None) -> AbstractContextManager[Any]:
        """On the device of the model, in order with what the library of the inputs has queued there."""
        return (
            borrowed.in_place()
            if borrowed and self._place.cuda and borrowed.door is not NUMPY
            else self._place.current()
        )

    def _named(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            named = dict(inputs)
        elif is_array(inputs):
            named = self._in_order([inputs])
        else:
            named = self._in_order(list(inputs))
        for name in named:
            if name not in self._declared:
                raise OptionError(
                    f"onnx: the model has no input {name!r}; it takes "
                    f"{', '.join(map(repr, self.input_names)) or 'none'}."
                )
        for name in self.input_names:
            if name not in named and not self._declared[name].type.HasField("optional_type"):
                raise OptionError(
                    f"onnx: the input {name!r} is missing; the model takes {', '.join(map(repr, self.input_names))}."
                )
        return named

    def _in_order(self, values: Sequence[Any]) -> dict[str, Any]:
        names = self.input_names if len(values) <= len(self.input_names) else tuple(self._declared)
        if len(values) > len(names):
            raise OptionError(
                f"onnx: got {len(values)} inputs; the model takes {len(self.input_names)}: "
                f"{', '.join(map(repr, self.input_names))}."
            )
        return dict(zip(names, values, strict=False))

    def _check(self, name: str, value: Any) -> None:
        """That an input is of the dtype and the shape that the model declares."""
        kind = self._declared[name].type
        if not kind.HasField("tensor_type"):
            return
        if not is_array(value):
            fail(ArrayTypeError, "onnx", f"the input {name!r}", f"a {type(value).__name__}", "an array")
        dtype, got = dtype_of(kind.tensor_type.elem_type), str(value.dtype).rpartition(".")[2]
        if str(dtype) != got and not (dtype.kind in "OU" and _texts(value)):
            raise DTypeError(f"onnx: the input {name!r} is of {got}; expected {dtype}, as the model declares it.")
        if not kind.tensor_type.HasField("shape"):
            return
        dims = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in kind.tensor_type.shape.dim]
        if len(dims) != value.ndim or any(
            isinstance(d, int) and d != n for d, n in zip(dims, value.shape, strict=True)
        ):
            raise ShapeError(
                f"onnx: the input {name!r} has shape {tuple(value.shape)}; expected ({', '.join(map(str, dims))}), "
                "as the model declares it."
            )

    def _taken(self, name: str, value: Any) -> Any:
        """An input where the model runs; small arrays of integers stay on the processor, where shapes are used."""
        if not self._place.cuda:
            if any(not on_host(a) for a in arrays_in([value])):
                raise DeviceError(
                    f"onnx: the input {name!r} lies on a CUDA device; the model was prepared for 'CPU'. Prepare it "
                    "with device='CUDA'."
                )
            return value
        return self._place.constant(value) if is_array(value) and on_host(value) else self._place.taken(value)


def _borrowed(named: Mapping[str, Any]) -> Borrowed | None:
    """The inputs as NumPy or CuPy arrays over the same memory; None where there is no array, or one of texts."""
    arrays = list(arrays_in(named.values()))
    if not arrays or any(_texts(a) for a in arrays):
        return None
    return borrow("onnx", tuple(named), tuple(named.values()), nested=frozenset(named))


def _texts(array: Any) -> bool:
    return getattr(array.dtype, "kind", "") in "OSU" and on_host(array)


def _as_list(value: Any) -> Any:
    return [_as_list(v) for v in value] if isinstance(value, (tuple, list)) else value


def _way_back(door: Door) -> Callable[[Any], Any]:
    """What makes a NumPy or CuPy array one of the namespace that the inputs came from, over the same memory."""
    return _as_tensor if door.namespace == "torch" else door.give


def _as_tensor(array: Any) -> Any:
    """PyTorch takes no bfloat16 from other libraries, but its bits."""
    torch = sys.modules["torch"]
    if str(array.dtype) == "bfloat16":
        return _as_tensor(array.view(np.int16)).view(torch.bfloat16)
    return (
        torch.from_numpy(array if array.flags.writeable else array.copy())
        if on_host(array)
        else torch.from_dlpack(array)
    )


def _through(give: Any) -> Any:
    def way(value: Any) -> Any:
        return [way(v) for v in value] if isinstance(value, list) else give(value) if is_array(value) else value

    return way


class DnnarrayBackend(Backend):
    """dnnarray as a backend of ONNX, for tools that take one (``onnx.backend.test.BackendTest``)."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the device is there: "CPU", "CUDA" or "CUDA:1"."""
        try:
            Place(device)
        except (OptionError, DeviceError):
            return False
        return True

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **options: Any) -> bool:
        """Whether `prepare` takes the model."""
        try:
            cls.prepare(model, device, **options)
        except (OptionError, DeviceError, UnsupportedError):
            return False
        return True

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **options: Any) -> DnnarrayRep:
        """See `dnnarray.interop.onnx.prepare`."""
        if options:
            raise OptionError(f"onnx: prepare takes no options; got {', '.join(options)}.")
        return DnnarrayRep(checked(model), device)

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **options: Any
    ) -> Any:
        """Run one node for these inputs, in their order; ``opset_version`` is the newest one unless given."""
        version = options.pop("opset_version", onnx.defs.onnx_opset_version())
        with _validated():
            super().run_node(node, inputs, device, opset_version=version)
        names = [n for n in node.input if n]
        values = (
            [inputs]
            if is_array(inputs)
            else [inputs[n] for n in names]
            if isinstance(inputs, Mapping)
            else list(inputs)
        )
        given, outputs = ([ValueInfoProto(name=n) for n in listed if n] for listed in (names, node.output))
        graph = helper.make_graph([node], "node", given, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
        return DnnarrayRep(model, device, **options).run(dict(zip(names, values, strict=True)))


@contextmanager
def _validated() -> Iterator[None]:
    """A context in which what ONNX's own checks find is an `OptionError`."""
    try:
        yield
    except onnx.checker.ValidationError as error:
        raise OptionError(f"onnx: the model is not valid: {error}") from None


def checked(model: Any) -> ModelProto:
    """A model by its file, its bytes or itself, after ONNX's own check of it."""
    with _validated():
        if isinstance(model, (str, PathLike)):
            return _loaded(fspath(model))
        model = onnx.load_from_string(model) if isinstance(model, bytes) else model
        if not isinstance(model, ModelProto):
            raise OptionError(f"onnx: model is a {type(model).__name__}; expected a file, bytes or an onnx.ModelProto.")
        onnx.checker.check_model(model)
    return model


def _loaded(path: str) -> ModelProto:
    """By its path, ONNX checks a model with data outside of its file too."""
    if not isfile(path):
        raise OptionError(f"onnx: there is no file {path!r}.")
    onnx.checker.check_model(path)
    return onnx.load(path)
