"""A compiled function over the parts of a range, on the threads of the team: what stands between Python and a kernel.
Imports Numba."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dnnarray import _source

_WORD, _CODE = ir.IntType(64), ir.IntType(32)
_TOTAL, _PARTS, _PIECES, _STATUS, _ERROR, _ARGUMENTS = range(6)  # of a job


def symbol(name: str, kinds: Iterable[types.Type]) -> str:
    """What the linker calls a kernel for arguments of these types."""
    return f"dnnarray {name}({', '.join(map(str, kinds))})"


def publish(name: str, kinds: tuple[types.Type, ...], dispatcher: Any) -> None:
    """Let the linker find the machine code of a kernel: its way over threads is compiled, kept and loaded apart from
    it."""
    built = dispatcher.overloads[kinds]
    binding.add_symbol(symbol(name, kinds[2:]), built.library.get_pointer_to_function(built.fndesc.llvm_func_name))


@cast(Any, intrinsic(prefer_literal=True))
def spread(typing: Any, name: Any, team: Any, parts: Any, long: Any, total: Any, pieces: Any, arguments: Any) -> Any:
    """The kernel of this name over all of range(total) in so many parts by the threads of a team, or in one where these
    are at work.

    `long`: it takes long enough to wake them for it. With several pieces a part runs from its end to its beginning.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        kinds = tuple(signature.args[-1])
        crew, count, lasts, length, run, packed = values[1:]
        kind = ir.LiteralStructType((_WORD, _WORD, _WORD, _CODE, _excinfo(context, builder), packed.type))
        job = cgutils.alloca_once(builder, kind)
        for field, value in (
            (_TOTAL, length),
            (_PARTS, count),
            (_PIECES, run),
            (_STATUS, _CODE(0)),
            (_ARGUMENTS, packed),
        ):
            builder.store(value, cgutils.gep_inbounds(builder, job, 0, field))
        part = _part_of_a_job(context, builder.module, symbol(name.literal_value, kinds), kind, kinds)
        place = builder.ptrtoint(job, _WORD)
        served = _launch(context, builder, crew, (count, crew, builder.ptrtoint(part, _WORD), place, lasts))
        with builder.if_then(builder.not_(served), likely=False):
            builder.store(_WORD(1), cgutils.gep_inbounds(builder, job, 0, _PARTS))
            builder.call(part, (place, _WORD(0)))
        _raise_again(context, builder, job)
        return context.get_dummy_value()

    return types.void(name, *LEADING, arguments), generate


def _excinfo(context: Any, builder: ir.IRBuilder) -> ir.Type:
    """The type by which a function tells of an exception."""
    return context.call_conv._get_excinfo_argument(builder.function).type.pointee


def _launch(context: Any, builder: ir.IRBuilder, team: Any, arguments: tuple[Any, ...]) -> Any:
    """Call the function whose address stands at the beginning of a team; gives whether it ran the parts."""
    kinds = (types.intp, types.intp, types.intp, types.intp, types.boolean)
    function = context.call_conv.get_function_type(types.boolean, kinds)
    launch = builder.inttoptr(builder.load(builder.inttoptr(team, _WORD.as_pointer())), function.as_pointer())
    _, served = context.call_conv.call_function(builder, launch, types.boolean, kinds, arguments)
    return served


def _part_of_a_job(
    context: Any, module: ir.Module, name: str, kind: ir.Type, kinds: tuple[types.Type, ...]
) -> ir.Function:
    """A C function ``(job, part)`` that calls the kernel on a part of the range."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), (_WORD, _WORD)), f"{name} part")
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block())
    job = builder.inttoptr(function.args[0], kind.as_pointer())
    total, parts, pieces, arguments = (
        builder.load(cgutils.gep_inbounds(builder, job, 0, field)) for field in (_TOTAL, _PARTS, _PIECES, _ARGUMENTS)
    )
    first, last = (
        builder.sdiv(builder.mul(total, part), parts)
        for part in (function.args[1], builder.add(function.args[1], _WORD(1)))
    )
    length, given = builder.sub(last, first), cgutils.unpack_tuple(builder, arguments)
    whole = (types.intp, types.intp, *kinds)
    kernel = cgutils.get_or_insert_function(module, context.call_conv.get_function_type(types.none, whole), name)
    with cgutils.for_range(builder, pieces) as loop:
        left = builder.sub(pieces, loop.index)
        ends = (builder.sub(left, _WORD(1)), left)
        start, stop = (builder.add(first, builder.sdiv(builder.mul(length, end), pieces)) for end in ends)
        status, _ = context.call_conv.call_function(builder, kernel, types.none, whole, (start, stop, *given))
        with builder.if_then(status.is_error, likely=False):
            builder.store(status.code, cgutils.gep_inbounds(builder, job, 0, _STATUS))
            builder.store(status.excinfoptr, cgutils.gep_inbounds(builder, job, 0, _ERROR))
    builder.ret_void()
    return function


def _raise_again(context: Any, builder: ir.IRBuilder, job: Any) -> None:
    """Let the caller have an error of one of the parts."""
    code, error = (builder.load(cgutils.gep_inbounds(builder, job, 0, field)) for field in (_STATUS, _ERROR))
    status = context.call_conv._get_return_status(builder, code, error)
    with builder.if_then(status.is_error, likely=False):
        context.call_conv.return_status_propagate(builder, status)


LEADING = (types.intp, types.intp, types.boolean, types.intp, types.intp)  # arguments before those of the kernel
_TEXT = """\
def {name}_spread(team, parts, long, total, pieces, {arguments}):
    spread({full!r}, team, parts, long, total, pieces, ({arguments},))
"""


def over_threads(function: Callable[..., None], name: str, count: int) -> Callable[..., None]:
    """``(team, parts, long, total, pieces, ...)`` with so many arguments of the kernel's, for Numba: made of text,
    since Numba keeps no code of closures."""
    text = _TEXT.format(name=function.__name__, full=name, arguments=", ".join(f"a{i}" for i in range(count)))
    return _source.function(f"{function.__name__}_spread", text, {"spread": spread}, function.__module__)
