"""Rotary embedding: the problems."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple

from dnnarray._errors import ShapeError, fail
from dnnarray._problems import checks
from dnnarray._problems.attention import LAYOUTS
from dnnarray._problems.base import Problem
from dnnarray._records import frozen
from dnnarray._spec import Spec
from dnnarray._typing import ArrayT


class RotaryGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of `rotary_embedding`."""

    x: ArrayT
    cos: ArrayT
    sin: ArrayT


@frozen(kw_only=True)
class RotaryProblem(Problem):
    """Rotation of pairs of features by angles that depend on the position."""

    interleaved: bool
    layout: str

    @property
    def own_tables(self) -> bool:
        """Whether each batch item has tables of its own; all batch items share them otherwise."""
        x, cos, _ = self.inputs[-3:]
        return cos.ndim == 3 and cos.shape[0] == x.shape[0]

    @property
    def back(self) -> bool:
        """Whether it is the gradient."""
        return self.op.endswith("_backward")

    @property
    def unread(self) -> frozenset[int]:
        """That of x turns back by the tables, those of the tables are products with x."""
        if not self.back:
            return frozenset()
        x, cos, sin = (spec is not None for spec in self.outputs)
        return frozenset((*(1,) * (not (cos or sin)), *(2, 3) * (not x)))


_TABLES = "S D/2, B S D/2, or 1 S D/2"


def rotary_embedding(op: str, x: Spec, cos: Spec, sin: Spec, *, interleaved: Any, layout: Any) -> RotaryProblem:
    """The builder of `rotary_embedding`."""
    checks.floating(op, "x", x)
    checks.parameter_dtype(op, x, cos=cos, sin=sin)
    layout = checks.choice(op, "layout", layout, LAYOUTS)
    checks.rank(op, "x", x, 4, " ".join(layout))
    batch, sequence, width = x.shape[0], x.shape[layout.index("S")], x.shape[3]
    checks.rank(op, "cos", cos, (2, 3), _TABLES)
    tables = 1 if cos.shape[0] == 1 else batch
    checks.shape(op, "cos", cos, (tables, sequence, None)[3 - cos.ndim :], _TABLES)
    if 2 * cos.shape[-1] > width:
        fail(
            ShapeError, op, "cos", f"of shape {cos.shape}", f"at most {width // 2} columns, half the width {width} of x"
        )
    checks.shape(op, "sin", sin, cos.shape, "the shape of cos")
    turned = checks.boolean(op, "interleaved", interleaved)
    return RotaryProblem(op=op, inputs=(x, cos, sin), outputs=(x.like(),), interleaved=turned, layout=layout)


def rotary_embedding_backward(op: str, grad: Spec, x: Spec, cos: Spec, sin: Spec, **options: Any) -> RotaryProblem:
    """The builder of `rotary_embedding_backward`."""
    forward = rotary_embedding(op, x, cos, sin, **options)
    checks.gradient(op, grad, x)
    return RotaryProblem(
        op=op,
        inputs=(grad, x, cos, sin),
        outputs=(x.like(), Spec(cos.shape, cos.dtype), Spec(sin.shape, sin.dtype)),
        returns=RotaryGradients,
        interleaved=forward.interleaved,
        layout=forward.layout,
    )
