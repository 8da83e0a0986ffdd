"""The matrix micro-kernel and vector copies, written as LLVM vectors whose length comes from the target. Imports Numba.

`tile` multiplies a few rows of one matrix (scalars, broadcast) with a few vectors of another and keeps all sums in
registers: ``c[i, j] = sum over k of a[i, k] * b[offset[k] + j]``. The second matrix is addressed through a table of
offsets, so that a convolution's taps are shifted views of one image and nothing has to be gathered.

All functions take addresses (integers), byte strides, and `like`, any number of the element type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba.extending
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features

intrinsic: Any = numba.extending.intrinsic
_njit: Any = numba.njit  # whose own types leave out the options that begin with a line
_config: Any = numba.config
_INT, _WORD = ir.IntType(32), ir.IntType(64)


def vector_bytes(features: str) -> int:
    """Bytes of a vector register, from LLVM's list of the target's features."""
    for feature, size in (("+avx512f", 64), ("+avx", 32)):
        if feature in features.split(","):
            return size
    return 16


def shape_of(size: int, features: str) -> tuple[int, int]:
    """(rows, vectors) of the largest tile whose sums, with what they are made of, fit the registers: 32 of them, or 16
    on x86 before AVX-512."""
    return (6, 2) if "+sse2" in features.split(",") and size < 64 else (8, 3)


FEATURES: str = _config.CPU_FEATURES if _config.CPU_FEATURES is not None else get_host_cpu_features()
BYTES = vector_bytes(FEATURES)
ROWS, VECTORS = shape_of(BYTES, FEATURES)
LONG_VECTORS = 8  # of a tile of a single row


def lanes(itemsize: int) -> int:
    """Elements of a vector."""
    return BYTES // itemsize


# --- building blocks of the IR ----------------------------------------------------------------------------------------


def vector_of(context: Any, like: types.Float) -> tuple[ir.Type, ir.VectorType, int]:
    item = like.bitwidth // 8
    element = context.get_value_type(like)
    return element, ir.VectorType(element, lanes(item)), item


def _pointer(builder: ir.IRBuilder, address: Any, kind: ir.Type) -> Any:
    return builder.inttoptr(address, ir.PointerType(kind))


def load_at(builder: ir.IRBuilder, address: Any, kind: ir.Type, align: int) -> Any:
    """A value of this type at an address."""
    value = builder.load(_pointer(builder, address, kind))
    value.align = align
    return value


def store_at(builder: ir.IRBuilder, value: Any, address: Any, align: int) -> None:
    builder.store(value, _pointer(builder, address, value.type)).align = align


def _plus(builder: ir.IRBuilder, address: Any, step: int) -> Any:
    return builder.add(address, _WORD(step)) if step else address


def splat(builder: ir.IRBuilder, value: Any, kind: ir.VectorType) -> Any:
    undefined = ir.Constant(kind, ir.Undefined)
    single = builder.insert_element(undefined, value, _INT(0))
    return builder.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(_INT, kind.count), None))


# --- the micro-kernel -------------------------------------------------------------------------------------------------


class Tile:
    """The body for a number of rows and vectors: the loop over k, what was in c added or not, the stores."""

    def __init__(
        self, builder: ir.IRBuilder, element: ir.Type, vector: ir.VectorType, item: int, rows: int, vectors: int
    ) -> None:
        self.builder, self.element, self.vector, self.item = builder, element, vector, item
        self.rows, self.vectors, self.width = rows, vectors, vector.count * item
        suffix = f"v{vector.count}f{item * 8}"
        self.fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.{suffix}"
        )

    def emit(
        self,
        a: Any,
        a_row: Any,
        a_step: Any,
        b: Any,
        offsets: Any,
        count: Any,
        chain: Any,
        c: Any,
        c_row: Any,
        add: Any,
    ) -> None:
        """Rows at equal steps; the scalars of a row follow each other at equal steps, and each step's vectors lie at an
        offset of their own."""
        builder = self.builder
        into = [builder.add(c, builder.mul(c_row, _WORD(i))) for i in range(self.rows)]
        sources = [builder.add(a, builder.mul(a_row, _WORD(i))) for i in range(self.rows)]
        self.loop(
            sources,
            into,
            _WORD(0),
            a_step,
            offsets,
            count,
            chain,
            add,
            lambda moving, offset: (moving, builder.add(b, offset)),
        )

    def loop(
        self,
        sources: list[Any],
        into: list[Any],
        start: Any,
        stride: Any,
        offsets: Any,
        count: Any,
        chain: Any,
        add: Any,
        places: Callable[[Any, Any], tuple[Any, Any]],
    ) -> None:
        """`places(moving, offset)` says how far behind `sources` the scalars of a step lie and where its vectors do:
        `moving` goes from `start` by `stride`, `offset` is the step's entry of the table `offsets`. `chain` steps at
        most are added up in a row, all where it is None."""
        builder = self.builder

        def body(k: Any, moving: Any, sums: list[Any]) -> list[Any]:
            at, b = places(moving, load_at(builder, builder.add(offsets, builder.mul(k, _WORD(8))), _WORD, 8))
            return self._step(sources, at, b, sums)

        if chain is None:
            results = self._chain(_WORD(0), count, start, stride, body)[1]
        else:
            results = self.chains(count, chain, start, stride, body)
        finished, sum_up, done = builder.block, builder.append_basic_block("sum_up"), builder.append_basic_block("done")
        builder.cbranch(add, sum_up, done)
        builder.position_at_end(
            sum_up
        )  # what was there is added at the end: sums of sums are more exact than one long one
        totals = [
            builder.fadd(load_at(builder, place, self.vector, self.item), value)
            for value, place in zip(results, self._places(into), strict=True)
        ]
        builder.branch(done)
        builder.position_at_end(done)
        stored = [self._phi(((value, finished), (total, sum_up))) for value, total in zip(results, totals, strict=True)]
        for value, address in zip(stored, self._places(into), strict=True):
            store_at(builder, value, address, self.item)

    def _chain(
        self, first: Any, last: Any, start: Any, stride: Any, body: Callable[..., list[Any]]
    ) -> tuple[Any, list[Any]]:
        """The sums over the steps from `first` to `last`, at least one, and what `moving` has come to."""
        builder = self.builder
        before, loop, finished = (
            builder.block,
            builder.append_basic_block("loop"),
            builder.append_basic_block("finished"),
        )
        builder.branch(loop)
        builder.position_at_end(loop)
        k, moving = (self._phi(((value, before),), _WORD) for value in (first, start))
        sums = [self._phi(((ir.Constant(self.vector, None), before),)) for _ in range(self.rows * self.vectors)]
        results = body(k, moving, sums)
        following, moved = builder.add(k, _WORD(1)), builder.add(moving, stride)
        for phi, value in ((k, following), (moving, moved), *zip(sums, results, strict=True)):
            phi.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", following, last), loop, finished)
        builder.position_at_end(finished)
        return moved, results

    def chains(self, count: Any, chain: Any, start: Any, stride: Any, body: Callable[..., list[Any]]) -> list[Any]:
        """The sums of chains of so many steps; a single chain needs no sum."""
        builder = self.builder
        before = builder.block
        outer, fold, done = (builder.append_basic_block(name) for name in ("chain", "fold", "folded"))
        single = builder.icmp_signed("<=", count, chain)
        builder.branch(outer)
        builder.position_at_end(outer)
        first, moving = (self._phi(((value, before),), _WORD) for value in (_WORD(0), start))
        totals = [self._phi(((ir.Constant(self.vector, None), before),)) for _ in range(self.rows * self.vectors)]
        ahead = builder.add(first, chain)
        last = builder.select(builder.icmp_signed("<", ahead, count), ahead, count)
        moved, results = self._chain(first, last, moving, stride, body)
        after = builder.block
        builder.cbranch(single, done, fold)
        builder.position_at_end(fold)
        folded = [builder.fadd(total, value) for total, value in zip(totals, results, strict=True)]
        for phi, value in ((first, last), (moving, moved), *zip(totals, folded, strict=True)):
            phi.add_incoming(value, fold)
        builder.cbranch(builder.icmp_signed("<", last, count), outer, done)
        builder.position_at_end(done)
        return [self._phi(((value, after), (total, fold))) for value, total in zip(results, folded, strict=True)]

    def _places(self, rows: list[Any]) -> list[Any]:
        return [_plus(self.builder, row, v * self.width) for row in rows for v in range(self.vectors)]

    def _phi(self, incoming: Any, kind: ir.Type | None = None) -> Any:
        phi = self.builder.phi(kind or self.vector)
        for value, block in incoming:
            phi.add_incoming(value, block)
        return phi

    def _step(self, sources: list[Any], at: Any, b: Any, sums: list[Any]) -> list[Any]:
        builder = self.builder
        columns = [load_at(builder, address, self.vector, self.item) for address in self._places([b])]
        results = []
        for i, source in enumerate(sources):
            scalar = splat(builder, load_at(builder, builder.add(source, at), self.element, self.item), self.vector)
            results += [builder.call(self.fma, [scalar, x, sums[i * self.vectors + v]]) for v, x in enumerate(columns)]
        return results


def switch_function(module: ir.Module, name: str, words: int) -> tuple[ir.Function, ir.IRBuilder, ir.Block]:
    """A function of so many integers and a truth value, a builder at its entry, and the block that ends it."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_WORD] * words + [ir.IntType(1)]), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("optsize")  # unrolled, the loop of the largest tile no longer fits the registers
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    end = function.append_basic_block("end")
    ir.IRBuilder(end).ret_void()
    return function, builder, end


def _tile_function(
    module: ir.Module, element: ir.Type, vector: ir.VectorType, item: int, rows: int, vectors: int, chained: bool
) -> ir.Function:
    """The function that switches to the body for its number of rows; one in each module."""
    name = f"dnnarray_{'chained_' * chained}tile_{vector.count}f{item * 8}_{rows}x{vectors}"
    found = module.globals.get(name)
    if found is not None:
        return found
    function, builder, end = switch_function(module, name, 9 + chained)
    which, *arguments = function.args
    if not chained:
        arguments.insert(6, None)
    switch = builder.switch(which, end)
    for m in range(1, rows + 1):
        block = function.append_basic_block(f"rows{m}")
        switch.add_case(_WORD(m), block)
        builder.position_at_end(block)
        Tile(builder, element, vector, item, m, vectors).emit(*arguments)
        builder.branch(end)
    return function


def _call_tile(rows: int, vectors: int, chained: bool) -> Callable[..., Any]:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        element, vector, item = vector_of(context, signature.args[0])
        builder.call(_tile_function(builder.module, element, vector, item, rows, vectors, chained), arguments[1:])
        return context.get_dummy_value()

    return generate


@intrinsic
def tile(
    typing: Any,
    like: Any,
    m: Any,
    a: Any,
    a_row: Any,
    a_step: Any,
    b: Any,
    offsets: Any,
    count: Any,
    c: Any,
    c_row: Any,
    add: Any,
) -> Any:
    """`m` rows at c, all `count` steps added up in a row."""
    return types.void(like, *[types.int64] * 9, types.boolean), _call_tile(ROWS, VECTORS, False)


@intrinsic
def narrow_tile(
    typing: Any,
    like: Any,
    vectors: Any,
    m: Any,
    a: Any,
    a_row: Any,
    a_step: Any,
    b: Any,
    offsets: Any,
    count: Any,
    c: Any,
    c_row: Any,
    add: Any,
) -> Any:
    """`tile` of so many vectors, `VECTORS` at most: the last of a row of tiles."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        end = builder.append_basic_block("tiled")
        switch = builder.switch(arguments[1], end)
        for n in range(1, VECTORS + 1):
            block = builder.append_basic_block(f"vectors{n}")
            switch.add_case(_WORD(n), block)
            builder.position_at_end(block)
            _call_tile(ROWS, n, False)(context, builder, signature, (arguments[0], *arguments[2:]))
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 10, types.boolean), generate


def _chained_tile(rows: int, vectors: int) -> Any:
    def typed(
        typing: Any,
        like: Any,
        m: Any,
        a: Any,
        a_row: Any,
        a_step: Any,
        b: Any,
        offsets: Any,
        count: Any,
        chain: Any,
        c: Any,
        c_row: Any,
        add: Any,
    ) -> Any:
        return types.void(like, *[types.int64] * 10, types.boolean), _call_tile(rows, vectors, True)

    return intrinsic(typed)


chained_tile = _chained_tile(ROWS, VECTORS)  # `chain` steps at most are added up in a row
long_tile = _chained_tile(1, LONG_VECTORS)


DOTS = 5  # inner products side by side: enough to hide the latency of the sums, few enough for windows of 3x3


@intrinsic
def dots(typing: Any, like: Any, a: Any, b: Any, offsets: Any, count: Any, chain: Any, sums: Any) -> Any:
    """`DOTS` vectors at `sums`: of a[j] * b[offset + j], the sums of each lane over `count` vectors, `chain` at most in
    a row; one offset after the other in the table."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        element, vector, item = vector_of(context, signature.args[0])
        _, a, b, offsets, count, chain, sums = arguments
        math = Tile(builder, element, vector, item, 1, DOTS)
        sources = [builder.add(b, load_at(builder, _plus(builder, offsets, 8 * i), _WORD, 1)) for i in range(DOTS)]

        def body(_: Any, at: Any, totals: list[Any]) -> list[Any]:
            left = load_at(builder, builder.add(a, at), vector, item)
            return [
                builder.call(math.fma, [left, load_at(builder, builder.add(source, at), vector, item), total])
                for source, total in zip(sources, totals, strict=True)
            ]

        for i, value in enumerate(math.chains(count, chain, _WORD(0), _WORD(math.width), body)):
            store_at(builder, value, _plus(builder, sums, i * vector.count * item), item)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 6), generate


# --- reading, writing, copying ----------------------------------------------------------------------------------------


@intrinsic
def read(typing: Any, like: Any, address: Any) -> Any:
    """The element at an address."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        element, _, item = vector_of(context, signature.args[0])
        return load_at(builder, arguments[1], element, item)

    return like(like, types.int64), generate


@intrinsic
def write(typing: Any, like: Any, address: Any, value: Any) -> Any:
    """Put an element at an address."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        _, _, item = vector_of(context, signature.args[0])
        store_at(builder, arguments[2], arguments[1], item)
        return context.get_dummy_value()

    return types.void(like, types.int64, like), generate


@intrinsic
def copy_vector(typing: Any, like: Any, source: Any, target: Any) -> Any:
    """Copy as many elements as a vector has."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        _, vector, item = vector_of(context, signature.args[0])
        store_at(builder, load_at(builder, arguments[1], vector, item), arguments[2], item)
        return context.get_dummy_value()

    return types.void(like, types.int64, types.int64), generate


@intrinsic
def add_vector(typing: Any, like: Any, source: Any, target: Any) -> Any:
    """Add as many elements as a vector has to those at `target`."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        _, vector, item = vector_of(context, signature.args[0])
        more, there = (load_at(builder, address, vector, item) for address in arguments[1:])
        store_at(builder, builder.fadd(there, more), arguments[2], item)
        return context.get_dummy_value()

    return types.void(like, types.int64, types.int64), generate


@intrinsic
def pick_vector(typing: Any, like: Any, source: Any, target: Any) -> Any:
    """Copy every second of the elements at `source`, as many as a vector has; what lies behind the last one is not
    read."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        _, vector, item = vector_of(context, signature.args[0])
        _, source, target = arguments
        first, second = (
            load_at(builder, _plus(builder, source, at * item), vector, item) for at in (0, vector.count - 1)
        )
        taken = [
            i + (i >= vector.count) for i in range(0, 2 * vector.count, 2)
        ]  # the second begins with the last element of the first
        store_at(
            builder,
            builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(_INT, vector.count), taken)),
            target,
            item,
        )
        return context.get_dummy_value()

    return types.void(like, types.int64, types.int64), generate


@intrinsic
def spread_vector(typing: Any, like: Any, source: Any, target: Any) -> Any:
    """Copy a vector to every second of the elements at `target`; those between stay as they are, and what lies behind
    the last one is not touched."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        _, vector, item = vector_of(context, signature.args[0])
        _, source, target = arguments
        value, half = load_at(builder, source, vector, item), vector.count // 2
        for first, parity in ((0, 0), (vector.count - 1, 1)):
            address = _plus(builder, target, first * item)
            old = load_at(builder, address, vector, item)
            # The old element, or the next one of the value: they stand at even places of the first half and at odd ones
            # of the second.
            taken = [half * parity + i // 2 + vector.count if i % 2 == parity else i for i in range(vector.count)]
            store_at(
                builder,
                builder.shuffle_vector(old, value, ir.Constant(ir.VectorType(_INT, vector.count), taken)),
                address,
                item,
            )
        return context.get_dummy_value()

    return types.void(like, types.int64, types.int64), generate


def _parts_of_rows(
    builder: ir.IRBuilder, vector: ir.VectorType, item: int, part: int, rows: list[Any], column: int
) -> Any:
    """A vector of so many elements of each row, from a column on: put together as they are loaded, which takes no
    shuffle."""
    some, kind = ir.VectorType(vector.element, part), ir.VectorType(_INT, vector.count)
    total, lanes = ir.Constant(vector, ir.Undefined), range(vector.count)
    for i, row in enumerate(rows):
        loaded = load_at(builder, _plus(builder, row, column * item), some, item)
        wide = builder.shuffle_vector(
            loaded, ir.Constant(some, ir.Undefined), ir.Constant(kind, [j % part for j in lanes])
        )
        total = builder.shuffle_vector(
            total, wide, ir.Constant(kind, [j + vector.count * (j // part == i) for j in lanes])
        )
    return total


@intrinsic
def turn_square(typing: Any, like: Any, source: Any, source_step: Any, target: Any, target_step: Any) -> Any:
    """As many rows as a vector has elements, transposed; the steps are bytes from row to row."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        _, vector, item = vector_of(context, signature.args[0])
        _, source, source_step, target, target_step = arguments
        count = vector.count
        kind = ir.VectorType(_INT, count)
        starts = [builder.add(source, builder.mul(source_step, _WORD(i))) for i in range(count)]
        part = min(count, 16 // item)
        rows = [
            _parts_of_rows(builder, vector, item, part, starts[i % part :: part], i // part * part)
            for i in range(count)
        ]
        half = 1
        while half < part:  # swap what stands off the diagonal in squares of 2, 4, ... rows
            for i in range(count):
                if i & half:
                    continue
                a, b = rows[i], rows[i + half]
                low = [j - half + count if j & half else j for j in range(count)]
                high = [j + count if j & half else j + half for j in range(count)]
                rows[i], rows[i + half] = (
                    builder.shuffle_vector(a, b, ir.Constant(kind, places)) for places in (low, high)
                )
            half *= 2
        for i, row in enumerate(rows):
            store_at(builder, row, builder.add(target, builder.mul(target_step, _WORD(i))), item)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 4), generate


@intrinsic
def read_word(typing: Any, address: Any) -> Any:
    """The 64-bit integer at an address."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return load_at(builder, arguments[0], _WORD, 1)

    return types.int64(types.int64), generate


@intrinsic
def write_word(typing: Any, address: Any, value: Any) -> Any:
    """Put a 64-bit integer at an address."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        store_at(builder, arguments[1], arguments[0], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def routine(function: Any) -> Any:
    """A function that kernels call and that stays one of its own, compiled once for all its callers; its first line is
    ``apart()``.

    It makes no arrays and counts no references to those that it gets, which would cost two atomic operations a call on
    numbers that all threads share."""
    return _njit(nogil=True, error_model="numpy", forceinline=False, _nrt=False)(function)


@intrinsic
def apart(typing: Any) -> Any:
    """Keep the function in which this stands from being compiled into others."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate
