"""What all plans of dropout ask of a problem, and what their kernels are told in the same words."""

from __future__ import annotations

import math
from typing import Any

from dnnarray._cuda.common.channels import NOWHERE, View, lies, strided, too_scattered, view
from dnnarray._cuda.core.arguments import Arguments, Double, Seed, Strided, Unsigned
from dnnarray._cuda.core.extents import order_of
from dnnarray._cuda.core.plan import Program, Runtime
from dnnarray._problems.dropout import DropoutProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import Spec

NOTHING = Program(())  # for arrays without elements
_WORDS = 2**32


@frozen(kw_only=True)
class MaskArguments(Arguments):
    """Which elements are kept: seed, offset, threshold, scale, and the place of an element in C order."""

    seed: Seed
    offset: Seed
    threshold: Unsigned
    scale: Double
    place: Strided


def x_of(problem: DropoutProblem) -> Spec:
    """The array that the mask is for, which the gradient may be asked without."""
    found: Spec = problem.outputs[0] or problem.inputs[1].like()
    return found


def permuted(spec: Spec) -> bool:
    """Whether the elements lie in another order than the one they are counted in."""
    return not lies(spec, range(spec.ndim))


def mask(problem: DropoutProblem) -> dict[str, Any]:
    """The fields of `MaskArguments`."""
    x = x_of(problem)
    place = strided(x.shape, order_of(x), range(x.ndim)) if permuted(x) else NOWHERE
    assert place is not None
    # With p = 1 the scale is 0, so that what one number in 2^32 says does not matter.
    threshold = min(math.floor(problem.p * _WORDS), _WORDS - 1)
    return {"seed": Runtime(0), "offset": Runtime(1), "threshold": threshold, "scale": problem.scale, "place": place}


def by_channel(problem: DropoutProblem) -> View:
    """x with its last axis as channels, for the bias."""
    x = x_of(problem)
    v = view(x.shape, order_of(x), [x.ndim - 1])
    assert v is not None
    return v


def rejects(problem: DropoutProblem, device: Device) -> str | None:
    """Why the arrays' orders in memory cannot be brought together, or None."""
    x = x_of(problem)
    orders = [range(x.ndim), *(order_of(s) for s in problem.outputs[2:] if s is not None)]
    return next((reason for order in orders if (reason := too_scattered(x.shape, order_of(x), order))), None)
