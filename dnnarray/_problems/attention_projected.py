"""Attention with the projections around it: the problems."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic, NamedTuple

from dnnarray._errors import OptionError, ShapeError, fail
from dnnarray._problems import checks
from dnnarray._problems.attention import ARRAYS, AttentionProblem, Sizes, attention
from dnnarray._problems.base import Problem
from dnnarray._records import frozen
from dnnarray._spec import Spec
from dnnarray._typing import ArrayT


class MultiHeadAttentionGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of `multi_head_attention`; None for an array that was not given."""

    x_q: ArrayT
    x_k: ArrayT
    x_v: ArrayT
    w_q: ArrayT
    w_k: ArrayT
    w_v: ArrayT
    w_o: ArrayT
    b_q: ArrayT
    b_k: ArrayT
    b_v: ArrayT
    b_o: ArrayT
    bias: ArrayT
    sink: ArrayT


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

    def wants(self, *names: str) -> bool:
        """Whether a backward is asked for the gradient of one of these arrays."""
        return any(spec is not None for field, spec in zip(self.fields, self.outputs, strict=True) if field in names)

    @property
    def heads(self) -> str:
        """The letters of those of q, k and v behind their projections whose gradients are needed on the way."""
        return "".join(n for n in "qkv" if self.wants(f"x_{n}", f"w_{n}", f"b_{n}"))

    @property
    def attends_back(self) -> bool:
        """Whether the gradient goes back through the attention: the last projection's own gradients ask for no more
        than its input."""
        return bool(self.heads) or self.wants("bias", "sink")

    def core_backward(self, op: str, inputs: tuple[Any, ...], heads: tuple[Spec, ...]) -> AttentionProblem:
        """The gradients in the middle: of q, k and v, like `heads`, as far as they are needed, and of bias and sink, as
        far as they are wanted."""
        made = tuple(spec if n in self.heads else None for n, spec in zip("qkv", heads, strict=True))
        return replace(self.core, op=op, inputs=inputs, outputs=(*made, *self.outputs[11:]))

    @property
    def flops(self) -> int:
        given = dict(zip(self.arrays, self.inputs, strict=True))
        sizes = {n: 2 * given[f"x_{n}"].shape[0] * given[f"x_{n}"].shape[1] * given[f"w_{n}"].size for n in "qkv"}
        sizes["o"] = 2 * self.sizes.batch * self.sizes.queries * given["w_o"].size
        if not self.op.endswith("_backward"):
            return self.core.flops + sum(sizes.values())
        back = (
            self.core_backward(self.core.op, self.core.inputs, self.core.inputs[:3]).flops if self.attends_back else 0
        )
        again = self.core.flops + sum(sizes[n] for n in "qkv")
        inner = sizes["o"] * self.attends_back + sum(sizes[n] for n in "qkv" if self.wants(f"x_{n}"))
        return again + back + inner + sum(size for n, size in sizes.items() if self.wants(f"w_{n}"))


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
            fail(
                ShapeError,
                op,
                name,
                f"of shape {given[name].shape}",
                f"heads * D rows, a multiple of {option}, {count}",
            )
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
        outputs=tuple(
            None if s is None else s.like() if s is given["bias"] else Spec(s.shape, s.dtype) for s in wanted
        ),
        returns=MultiHeadAttentionGradients,
        core=forward.core,
        arrays=("grad", *_PROJECTED),
    )
