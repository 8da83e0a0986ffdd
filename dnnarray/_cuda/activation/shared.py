"""What the plans of several activations ask of a problem."""

from __future__ import annotations

from dnnarray._cuda.core.plan import Program
from dnnarray._problems.activation import BiasActivationProblem, GatedProblem, PReLUProblem
from dnnarray._spec import Spec

NOTHING = Program(())  # for arrays without elements


def result(problem: GatedProblem | PReLUProblem | BiasActivationProblem, index: int = 0) -> Spec:
    """A result, or what it would be where it is not wanted: the gradient of one of the arrays behind the incoming
    one."""
    found: Spec = problem.outputs[index] or problem.inputs[index + 1].like()
    return found
