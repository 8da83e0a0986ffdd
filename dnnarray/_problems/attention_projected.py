"""Attention with the projections around it: the problems."""

from __future__ import annotations

from typing import Any, NamedTuple

from dnnarray._errors import OptionError, ShapeError, fail
from dnnarray._problems import checks
from dnnarray._problems.attention import ARRAYS, AttentionProblem, Sizes, attention
from dnnarray._problems.base import Problem
from dnnarray._records import frozen
from dnnarray._spec import Spec


class MultiHeadAttentionGradients(NamedTuple):
    """Gradients of `multi_head_attention`; None for an array that was not given."""

    x_q: Any
    x_k: Any
    x_v: Any
    w_q: Any
    w_k: Any
    w_v: Any
    w_o: Any
    b_q: Any
    b_k: Any
    b_v: Any
    b_o: Any
    bias: Any
    sink: Any


_PROJECTED = ("x_q", "x_k", "x_v", "w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o", *ARRAYS[3:])


@frozen(kw_only=True)
class MultiHeadProblem(Problem):
    """Projections around an attention; `core` is the problem of the attention in the middle, layout BSHD."""

    core: AttentionProblem
    arrays: tuple[str, ...]

    @property
    def needs_seed(self) -> bool:
        return self.core.needs_seed

    @property
    def sizes(self) -> Sizes:
        return self.core.sizes

    @property
    def flops(self) -> int:
        given = dict(zip(self.arrays, self.inputs, strict=True))
        projected = sum(2 * given[f"x_{n}"].shape[0] * given[f"x_{n}"].shape[1] * given[f"w_{n}"].size for n in "qkv")
        projected += 2 * self.sizes.batch * self.sizes.queries * given["w_o"].size
        return self.core.flops + (3 if self.op.endswith("_backward") else 1) * projected


def multi_head_attention(op: str, *specs: Any, num_heads: Any, num_kv_heads: Any, **options: Any) -> MultiHeadProblem:
    """The builder of `multi_head_attention`, specs in the order of `_PROJECTED`."""
    given = dict(zip(_PROJECTED, specs, strict=True))
    checks.same_dtype(op, **{n: given[n] for n in _PROJECTED[:11]})
    heads = checks.integer(op, "num_heads", num_heads, 1)
    kv_heads = heads if num_kv_heads is None else checks.integer(op, "num_kv_heads", num_kv_heads, 1)
    if heads % kv_heads:
        fail(OptionError, op, "num_kv_heads", kv_heads, f"a divisor of num_heads, {heads}")
    q, k, v = _projected(op, given, heads, kv_heads)
    core = attention(op, q, k, v, *specs[11:], layout="BSHD", return_lse=True, **options)
    x_q, out_width = given["x_q"], given["w_o"].shape[0]
    output = Spec((*x_q.shape[:2], out_width), x_q.dtype)
    return MultiHeadProblem(op=op, inputs=specs, outputs=(output,), core=core, arrays=_PROJECTED)


def _projected(op: str, given: dict[str, Any], heads: int, kv_heads: int) -> tuple[Spec, Spec, Spec]:
    """Specs of q, k and v behind their projections, all shapes checked."""
    for letter in "qkv":
        checks.rank(op, f"x_{letter}", given[f"x_{letter}"], 3, "B S E")
    for letter in "qkvo":
        checks.rank(op, f"w_{letter}", given[f"w_{letter}"], 2, "out in")
    x_q, x_k, x_v = (given[f"x_{letter}"] for letter in "qkv")
    checks.shape(op, "x_k", x_k, (x_q.shape[0], None, None), "B S E, B as in x_q")
    checks.shape(op, "x_v", x_v, (x_q.shape[0], x_k.shape[1], None), "B S E, B and S as in x_k")
    for name, option, count in (("w_q", "num_heads", heads), ("w_v", "num_kv_heads", kv_heads)):
        if given[name].shape[0] % count:
            fail(ShapeError, op, name, f"of shape {given[name].shape}", f"heads * D rows, a multiple of {option}, {count}")
    width, value_width = given["w_q"].shape[0] // heads, given["w_v"].shape[0] // kv_heads
    outs = {"q": heads * width, "k": kv_heads * width, "v": kv_heads * value_width, "o": None}
    ins = {letter: given[f"x_{letter}"].shape[2] for letter in "qkv"} | {"o": heads * value_width}
    for letter, out in outs.items():
        axes = "out in: heads * D, and E of the input"
        checks.shape(op, f"w_{letter}", given[f"w_{letter}"], (out, ins[letter]), axes)
        if given[f"b_{letter}"] is not None:
            checks.shape(op, f"b_{letter}", given[f"b_{letter}"], given[f"w_{letter}"].shape[:1], f"out of w_{letter}")
    (batch, queries, _), keys, dtype = x_q.shape, x_k.shape[1], x_q.dtype
    return (
        Spec((batch, queries, heads, width), dtype),
        Spec((batch, keys, kv_heads, width), dtype),
        Spec((batch, keys, kv_heads, value_width), dtype),
    )


def multi_head_attention_backward(op: str, grad: Spec, *specs: Any, **options: Any) -> MultiHeadProblem:
    """The builder of `multi_head_attention_backward`: the specs of the forward behind the gradient."""
    forward = multi_head_attention(op, *specs, **options)
    output = forward.outputs[0]
    assert output is not None
    checks.gradient(op, grad, output)
    given = dict(zip(_PROJECTED, specs, strict=True))
    wanted = [given[name] for name in MultiHeadAttentionGradients._fields]
    return MultiHeadProblem(
        op=op,
        inputs=(grad, *specs),
        outputs=tuple(None if s is None else s.like() if s is given["bias"] else Spec(s.shape, s.dtype) for s in wanted),
        returns=MultiHeadAttentionGradients,
        core=forward.core,
        arrays=("grad", *_PROJECTED),
    )
