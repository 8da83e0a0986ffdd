"""The operators of ``torch.ops.dnnarray``, made from the registry of operations.

An operator takes the arrays of the operation in signature order, its run-time options (``seed``, ``offset``) as
integers, and all other options as a text in JSON: options of one name have several types (an int, a tuple, a text),
which PyTorch's schemas do not have. Its result is always a list of tensors: the results of the operation that are
present, then what its gradient wants to keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from dnnarray._call.introspect import question
from dnnarray._call.operation import Operation
from dnnarray._errors import ShapeError
from dnnarray._problems.base import leaves, tree_map
from dnnarray._spec import Spec, as_dtype, name_of
from dnnarray.interop import options as texts
from dnnarray.interop.torch import autocast

_NAMESPACE = "dnnarray"
LIBRARY = torch.library.Library(_NAMESPACE, "DEF")


@torch.compiler.assume_constant_result
def text_of(*pairs: Any) -> str:
    """Options as text; names and values by turns."""
    return texts.write(dict(zip(pairs[::2], pairs[1::2], strict=True)))


def spec_of_tensor(tensor: torch.Tensor) -> Spec:
    """What dnnarray knows of a tensor without data, a fake one too."""
    shape, strides = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
    return Spec(shape, as_dtype(tensor.dtype), strides)


def _empty(output: Spec, like: torch.Tensor) -> torch.Tensor:
    strides = output.c_strides if output.strides is None else output.strides
    return torch.empty_strided(output.shape, strides, dtype=getattr(torch, name_of(output.dtype)), device=like.device)


class Shape:
    """An array of which only the `Spec` is known: calls of dnnarray on it give the shapes of their results, by the
    protocol of `dispatch`."""

    def __init__(self, known: Spec) -> None:
        self.spec, self.shape, self.dtype, self.ndim, self.strides = (
            known,
            known.shape,
            known.dtype,
            known.ndim,
            known.strides,
        )

    @staticmethod
    def __dnnarray_function__(
        operation: Operation, arrays: tuple[Any, ...], options: dict[str, Any], out: Any, workspace: Any
    ) -> Any:
        specs = tuple(tree_map(lambda a: a.spec if isinstance(a, Shape) else a, a) for a in arrays)
        problem = question(operation.function, specs, options).problem
        outputs: tuple[Any, ...] = problem.outputs
        results = [None if s is None else Shape(s) for s in outputs]
        return results[0] if problem.returns is None else problem.returns(*results)


def signed(number: int | None) -> int | None:
    """An unsigned number of 64 bits (a seed) as PyTorch's integers hold it."""
    return number if number is None or number < 2**63 else number - 2**64


def present(result: Any) -> list[Any]:
    """The results that are there, one behind the other."""
    return leaves(result if isinstance(result, tuple) else (result,))


def _entry(argument: Any, axis: Any, number: int) -> Any:
    """One entry of the batch of `torch.vmap`; a list has an axis for each of its tensors."""
    if isinstance(argument, (list, tuple)):
        return [_entry(a, x, number) for a, x in zip(argument, axis or [None] * len(argument), strict=True)]
    return argument if axis is None else argument.select(axis, number)


class Operator:
    """An operation, or another function of its arrays, as an operator of PyTorch.

    Parameters
    ----------
    name : the operator's name in ``torch.ops.dnnarray``
    operation : says what the arguments are
    run : ``run(arrays, options, text)`` gives the list of results, `text` is that of the options that are not run-time
        ones; on arrays that are `Shape` it is what the fake rule calls
    lists : the types in PyTorch's schema of the arguments that are lists of tensors, by their names
    """

    def __init__(
        self,
        name: str,
        operation: Operation,
        run: Callable[[tuple[Any, ...], dict[str, Any], str], list[Any]],
        lists: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.name, self.arrays, self.runtime, self._run = (
            f"{_NAMESPACE}::{name}",
            operation.arrays,
            operation.runtime,
            run,
        )
        kinds = {n: "Tensor" if n in operation.required else "Tensor?" for n in self.arrays} | dict(lists)
        tensors = [f"{kinds[n]} {n}" for n in self.arrays]
        LIBRARY.define(
            f"{name}({', '.join([*tensors, *(f'SymInt? {n}' for n in self.runtime), 'str options'])}) -> Tensor[]"
        )
        LIBRARY.impl(name, self._on_tensors, "CompositeExplicitAutograd")
        torch.library.register_fake(self.name, self._on_shapes, lib=LIBRARY)
        torch.library.register_vmap(self.name, self._on_batches, lib=LIBRARY)
        self.call = getattr(getattr(torch.ops, _NAMESPACE), name).default
        autocast.register(LIBRARY, name, self.call)

    def _split(self, arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any], str]:
        count = len(self.arrays)
        drawn = {n: int(v) % 2**64 for n, v in zip(self.runtime, arguments[count:-1], strict=True) if v is not None}
        return arguments[:count], texts.read(arguments[-1]) | drawn, arguments[-1]

    def _on_tensors(self, *arguments: Any) -> list[torch.Tensor]:
        with torch.no_grad():
            return self._run(*self._split(arguments))

    def _on_batches(self, info: Any, axes: tuple[Any, ...], *arguments: Any) -> tuple[list[torch.Tensor], list[int]]:
        """The rule of `torch.vmap`: one entry of the batch after the other, since few operations take another leading
        axis."""

        def entry(i: int) -> list[torch.Tensor]:
            return self.call(*(_entry(a, axis, i) for a, axis in zip(arguments, axes, strict=True)))

        if not info.batch_size:
            raise ShapeError(f"{self.name}: the batch of torch.vmap is empty; expected one entry or more.")
        results = [torch.stack(entries) for entries in zip(*map(entry, range(info.batch_size)), strict=True)]
        return results, [0] * len(results)

    def _on_shapes(self, *arguments: Any) -> list[torch.Tensor]:
        arrays, options, text = self._split(arguments)
        like = leaves(arrays)[0]
        shapes = tree_map(lambda a: Shape(spec_of_tensor(a)), arrays)
        return [_empty(s.spec, like) for s in self._run(shapes, options, text)]


class _Form:
    """How the list of an operator's results becomes what the function returns, and what of the list the gradient keeps.

    Attributes
    ----------
    count : how many tensors of the list belong to the function's result
    kept : those behind them
    names, places : what the gradient calls the tensors that it keeps, and where each stands in the list; one that is a
        result stands once
    spared : the arrays of the call that the gradient takes none of, in the place of which it keeps others
    """

    def __init__(self, result: Any, saved: dict[str, Any]) -> None:
        self.spared = frozenset(n for n, tensor in saved.items() if tensor is None)
        saved = {n: tensor for n, tensor in saved.items() if tensor is not None}
        self.results, self.names = present(result), tuple(saved)
        self.kept: list[Any] = []
        self.places: list[int] = []
        self.count = len(self.results)
        for tensor in saved.values():
            place = next((i for i, r in enumerate(self.results) if r is tensor), None)
            if place is None:
                place = self.count + len(self.kept)
                self.kept.append(tensor)
            self.places.append(place)
        self._kind = type(result) if isinstance(result, tuple) else None
        self._absent = [r is None for r in result] if isinstance(result, tuple) else []

    def build(self, *tensors: Any) -> Any:
        if self._kind is None:
            return tensors[0]
        given = iter(tensors)
        placed: list[Any] = [None if absent else next(given) for absent in self._absent]
        return self._kind(*placed)


class Differentiable:
    """The operators of an operation and of its gradient, and the autograd rule between them.

    With the option ``keep`` the forward operator gives, behind the results, what the gradient takes from the forward
    run, such as the statistics of a norm; the names of these are in `kept`, by the options."""

    def __init__(self, operation: Operation, backward: Operation) -> None:
        self._operation, self._backward = operation, backward
        self._results: dict[Any, _Form] = {}
        self._fields: dict[Any, tuple[str, ...]] = {}
        self.forward = Operator(operation.name, operation, self._run_forward)
        self._pull = Operator(backward.name, backward, self._run_backward)
        torch.library.register_autograd(self.forward.name, self._gradients, setup_context=self._keep, lib=LIBRARY)

    def _run_forward(self, arrays: tuple[Any, ...], options: dict[str, Any], text: str) -> list[Any]:
        chosen = dict(options)
        if chosen.pop("keep") and self._operation.save is not None:
            result, saved = self._operation.save(*arrays, **chosen)
        else:
            result, saved = self._operation.call(arrays, chosen), {}
        form = _Form(result, saved)
        self._results[_absent(arrays), text] = form
        return [*form.results, *form.kept]

    def result(self, *given: Any) -> Any:
        """What the function returns, of its arrays, the results of the operator and the text of its options."""
        *arrays, results, text = given
        build, count = self._form(_absent(tuple(arrays)), text)
        return build(*results[:count])

    def _form(self, absent: tuple[bool, ...], text: str) -> tuple[Callable[..., Any], int]:
        form = self._results[absent, text]
        return form.build, form.count

    def _run_backward(self, arrays: tuple[Any, ...], options: dict[str, Any], text: str) -> list[Any]:
        result: Any = self._backward.call(arrays, options)
        named = result._asdict() if hasattr(result, "_asdict") else {self._operation.gradients[0]: result}
        self._fields[_absent(arrays), text] = tuple(n for n, v in named.items() if v is not None)
        return present(result)

    def _keep(self, ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
        arrays, text = inputs[: len(self.forward.arrays)], inputs[-1]
        form = self._results[_absent(arrays), text]
        ctx.names = form.names
        kept = (None if n in form.spared else a for n, a in zip(self.forward.arrays, arrays, strict=True))
        ctx.save_for_backward(*kept, *[output[i] for i in form.places])
        ctx.inputs = inputs[len(arrays) :]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    def _gradients(self, ctx: Any, gradients: list[Any]) -> tuple[Any, ...]:
        arrays = ctx.saved_tensors[: len(self.forward.arrays)]
        kept = dict(zip(ctx.names, ctx.saved_tensors[len(arrays) :], strict=True))
        known = dict(zip(self.forward.arrays, arrays, strict=True)) | kept | {"grad": gradients[0]}
        options = texts.read(ctx.inputs[-1]) | dict(zip(self.forward.runtime, ctx.inputs[:-1], strict=True))
        chosen = {n: v for n, v in options.items() if n in self._backward.static}
        given = tuple(known.get(n) for n in self._backward.arrays)
        drawn = [options[n] for n in self._backward.runtime]
        text = texts.write(chosen)
        found = self._pull.call(*given, *drawn, text)
        by_name = dict(zip(self._fields[_absent(given), text], found, strict=True))
        return (*(by_name.get(n) for n in self.forward.arrays), *(None for _ in ctx.inputs))


def _absent(arrays: tuple[Any, ...]) -> tuple[bool, ...]:
    """Which arrays are left out: with the options, that decides how many results there are."""
    return tuple(a is None for a in arrays)
