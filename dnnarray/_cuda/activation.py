"""Activations: plans for the elementwise kernel."""

from __future__ import annotations

from dataclasses import dataclass

from dnnarray._cuda.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._problems.activation import PARAMETERS, ElementwiseProblem
from dnnarray._select import Device, Method

_THREADS = 128


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


def elementwise(problem: ElementwiseProblem, device: Device, aligned: bool) -> Program:
    """One launch over the flat memory of the arrays."""
    spec, gradient = problem.outputs[0], len(problem.inputs) == 2
    assert spec is not None
    if spec.size == 0:
        return Program(())
    name, dtype = problem.activation.name, spec.dtype
    vector = vector_length(dtype, aligned)
    config = ElementwiseConfig(TYPES[dtype], struct_name(name), gradient, vector, _THREADS)
    direction = "backward" if gradient else "forward"
    kernel = Kernel("activation/elementwise.cu", f"{name}_elementwise_{direction}_{SHORT[dtype]}x{vector}", config, ("activation",))
    blocks = -(-spec.size // (_THREADS * vector))
    p, q = (*map(float, problem.activation.parameters), 0.0, 0.0)[:2]
    pointers = (Array(0), Array(1), Array(2)) if gradient else (Array(0), Array(0), Array(1))
    order = spec.axis_order() or tuple(range(spec.ndim))
    return Program((Plan(kernel, (blocks, 1, 1), _THREADS, (*pointers, spec.size, p, q)),), (order,) * len(problem.inputs))


_METHOD = Method("elementwise", elementwise, "the formula over each element")
ALGORITHMS = dict.fromkeys(PARAMETERS, (_METHOD,)) | {f"{name}_backward": (_METHOD,) for name in PARAMETERS}
