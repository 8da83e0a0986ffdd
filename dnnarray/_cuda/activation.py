"""Activations: plans for the elementwise kernel."""

from __future__ import annotations

from dataclasses import dataclass

from dnnarray._cuda.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._problems.activation import PARAMETERS, ElementwiseProblem
from dnnarray._select import Device, Method

_THREADS, _VECTOR_BYTES = 128, 16


@dataclass(frozen=True)
class ElementwiseConfig(Config):
    """Compile-time settings of ``kernels/activation/elementwise.cu``."""

    element: str
    activation: str
    gradient: bool
    vector: int
    threads: int


def struct_name(activation: str) -> str:
    """The C++ name of an activation: ``hard_swish`` is ``dnnarray::HardSwish``."""
    return "dnnarray::" + "".join(part.capitalize() for part in activation.split("_"))


def elementwise(problem: ElementwiseProblem, device: Device, aligned: bool) -> tuple[Plan, ...]:
    """One launch over the flat memory of the arrays."""
    spec, gradient = problem.outputs[0], len(problem.inputs) == 2
    assert spec is not None
    if spec.size == 0:
        return ()
    name, dtype = problem.activation.name, spec.dtype
    vector = _VECTOR_BYTES // dtype.itemsize if aligned else 1
    config = ElementwiseConfig(TYPES[dtype], struct_name(name), gradient, vector, _THREADS)
    direction = "backward" if gradient else "forward"
    kernel = Kernel("activation/elementwise.cu", f"{name}_elementwise_{direction}_{SHORT[dtype]}x{vector}", config, ("activation",))
    blocks = -(-spec.size // (_THREADS * vector))
    p, q = (*map(float, problem.activation.parameters), 0.0, 0.0)[:2]
    pointers = (Array(0), Array(1), Array(2)) if gradient else (Array(0), Array(0), Array(1))
    return (Plan(kernel, (blocks, 1, 1), _THREADS, (*pointers, spec.size, p, q)),)


_METHOD = Method("elementwise", elementwise, "the formula over each element")
ALGORITHMS = dict.fromkeys(PARAMETERS, (_METHOD,)) | {f"{name}_backward": (_METHOD,) for name in PARAMETERS}
