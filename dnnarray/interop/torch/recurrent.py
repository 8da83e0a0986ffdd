"""The operators of recurrent networks in ``torch.ops.dnnarray``: their weights are lists of tensors, and the gradients
of the last states count beside that of the output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dnnarray._call.operation import Operation
from dnnarray._problems.rnn import RNNWeights
from dnnarray._problems.rnn_results import HiddenOutput, RNNOutput
from dnnarray.interop import options as texts
from dnnarray.interop.torch.operators import LIBRARY, Operator, present


def flat(weights: Sequence[RNNWeights]) -> list[torch.Tensor]:
    """The weights of all layers and directions, one behind the other."""
    return [tensor for cell in weights for tensor in cell if tensor is not None]


def fields(weights: Sequence[RNNWeights]) -> tuple[tuple[int, ...], ...]:
    """For each layer and direction the numbers of those of its weights that are there."""
    return tuple([tuple([i for i, tensor in enumerate(cell) if tensor is not None]) for cell in weights])


def _structured(tensors: Sequence[Any], numbers: Sequence[Sequence[int]]) -> tuple[RNNWeights, ...]:
    """The inverse of `flat`."""
    given = iter(tensors)
    names = RNNWeights._fields
    return tuple([RNNWeights(**{"w_ih": None, "w_hh": None, **{names[i]: next(given) for i in n}}) for n in numbers])


class Recurrent:
    """The operators of a recurrent network and of its gradient, and the autograd rule between them.

    The forward operator takes the weights as one list, and gives its tape behind its results where a gradient will be
    wanted."""

    def __init__(self, operation: Operation, backward: Operation) -> None:
        self._operation, self._backward = operation, backward
        self.forward = Operator(operation.name, operation, self._run_forward, {"weights": "Tensor[]"})
        self._pull = Operator(backward.name, backward, self._run_backward, {"grad": "Tensor?[]", "weights": "Tensor[]"})
        torch.library.register_autograd(self.forward.name, self._gradients, setup_context=self._keep, lib=LIBRARY)

    def _run_forward(self, arrays: tuple[Any, ...], options: dict[str, Any], text: str) -> list[Any]:
        chosen = dict(options)
        chosen["return_tape"] = chosen.pop("keep")
        result = self._operation.call(_with_weights(self._operation, arrays, chosen.pop("fields")), chosen)
        return present(result)

    def result(self, *given: Any) -> Any:
        """What the function returns, of its arrays, the results of the operator and the text of its options."""
        results = given[-2]
        return RNNOutput(*results[:3]) if "c0" in self.forward.arrays else HiddenOutput(*results[:2])

    def _run_backward(self, arrays: tuple[Any, ...], options: dict[str, Any], text: str) -> list[Any]:
        chosen = dict(options)
        grad, *rest = _with_weights(self._backward, arrays, chosen.pop("fields"))
        return present(self._backward.call((tuple(grad), *rest), chosen))

    def _keep(self, ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
        arrays = dict(zip(self.forward.arrays, inputs, strict=False))
        weights = arrays.pop("weights")
        options = texts.read(inputs[-1])
        tape = output[-1] if options["keep"] else None
        ctx.names, ctx.options, ctx.count = tuple(arrays), inputs[len(arrays) + 1 :], len(output) - options["keep"]
        ctx.save_for_backward(*arrays.values(), tape, *weights)
        if tape is not None:
            ctx.mark_non_differentiable(tape)
        ctx.set_materialize_grads(False)

    def _gradients(self, ctx: Any, gradients: list[Any]) -> tuple[Any, ...]:
        known = dict(zip((*ctx.names, "tape"), ctx.saved_tensors, strict=False))
        known["weights"] = ctx.saved_tensors[len(known) :]
        wanted = {n for n in (*ctx.names, "weights") if any(t.requires_grad for t in present(known[n]))}
        needs = tuple(n for n in self.forward.arrays if n in wanted)  # the order in which the backward gives them
        grad = gradients[: ctx.count]
        by_name: dict[str, Any] = {"weights": [None] * len(known["weights"])}
        if not needs or all(g is None for g in grad):
            return (*(by_name.get(n) for n in self.forward.arrays), *(None for _ in ctx.options))
        options = texts.read(ctx.options[-1]) | dict(zip(self.forward.runtime, ctx.options[:-1], strict=True))
        known_options = (*self._backward.static, "fields")
        text = texts.write({n: v for n, v in options.items() if n in known_options} | {"needs": needs})
        given = {"grad": grad, **known, "weights": list(known["weights"])}
        drawn = [options[n] for n in self._backward.runtime]
        found = iter(self._pull.call(*(given[n] for n in self._backward.arrays), *drawn, text))
        by_name |= {n: [next(found) for _ in known[n]] if n == "weights" else next(found) for n in needs}
        return (*(by_name.get(n) for n in self.forward.arrays), *(None for _ in ctx.options))


def _with_weights(operation: Operation, arrays: tuple[Any, ...], numbers: Any) -> tuple[Any, ...]:
    place = operation.arrays.index("weights")
    return (*arrays[:place], _structured(arrays[place], numbers), *arrays[place + 1 :])
