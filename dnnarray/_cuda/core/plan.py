"""`Plan`: one kernel launch, described without a GPU: which source, compiled how, launched how."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dnnarray._records import frozen
from dnnarray._spec import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, HALF

if TYPE_CHECKING:
    from dnnarray._cuda.core.arguments import Arguments

TYPES = {FLOAT64: "double", FLOAT32: "float", FLOAT16: "dnnarray::float16_t", BFLOAT16: "dnnarray::bfloat16_t"}
SHORT = {FLOAT64: "f64", FLOAT32: "f32", FLOAT16: "f16", BFLOAT16: "bf16"}
INTEGERS = {
    np.dtype(name): kind
    for name, kind in {
        "int8": "signed char",
        "int16": "short",
        "int32": "int",
        "int64": "long long",
        "uint8": "unsigned char",
        "uint16": "unsigned short",
        "uint32": "unsigned",
        "uint64": "unsigned long long",
    }.items()
}


@frozen
class Config:
    """Base of a kernel's compile-time settings; never holds problem sizes, so that the number of compilations stays
    bounded.

    Text fields become types (``element`` -> ``using Element = ...``), numbers and booleans constants (``tile_m`` ->
    ``kTileM``)."""

    def prologue(self) -> str:
        """The settings as C++."""
        return (
            "struct Config {\n"
            + "".join(f"  {_member(f.name, getattr(self, f.name))};\n" for f in fields(self))
            + "};\n"
        )


def _member(name: str, value: Any) -> str:
    camel = "".join(part.capitalize() for part in name.split("_"))
    if isinstance(value, str):
        return f"using {camel} = {value}"
    kind, text = ("bool", str(value).lower()) if isinstance(value, bool) else ("int", str(value))
    return f"static constexpr {kind} k{camel} = {text}"


@frozen
class Struct:
    """C++ text of the parameters that a kernel's record of arguments stands for (`Arguments`): the struct, and the type
    of the entry."""

    text: str
    entry: str


@frozen
class Kernel:
    """What is compiled: a source under ``kernels/``, its settings and the name it has in a profiler; `ahead` is its
    plan's."""

    source: str
    symbol: str
    config: Config
    includes: tuple[str, ...] = ()
    ahead: bool = False
    arguments: Struct | None = None

    def code(self) -> str:
        """The translation unit: the vocabulary that the settings speak of, the settings, then the kernel file by
        name."""
        ahead = "#define DNNARRAY_AHEAD\n" if self.ahead else ""
        own = f"{self.source.partition('/')[0]}/"  # the folder of headers that a single family uses
        paths = (name if name.startswith(own) else f"dnnarray/{name}" for name in ("core/dtype", *self.includes))
        includes = "".join(f'#include "{path}.cuh"\n' for path in paths)
        names = f"#define DNNARRAY_CONFIG\n#define DNNARRAY_ENTRY {self.symbol}\n"
        before, behind = "", ""
        if self.arguments is not None:
            before = self.arguments.text
            behind = f"static_assert(dnnarray::kSame<decltype({self.symbol}), {self.arguments.entry}>);\n"
        return f'{ahead}{includes}{names}{self.config.prologue()}{before}#include "{self.source}"\n{behind}'


@frozen
class Array:
    """A launch argument: the pointer of the `index`-th array (inputs first, then outputs, then the scratch memory)."""

    index: int
    offset: int = 0


@frozen
class Structure:
    """A launch argument: one structure of numbers, first those of 64 bits, then those of 32."""

    wide: tuple[int, ...]
    narrow: tuple[int, ...]

    @property
    def block(self) -> Block:
        """As the kernel reads it; a number that does not fit is an error."""
        numbers = [(n, 8) for n in self.wide] + [(n, 4) for n in self.narrow]
        return Block(b"".join(n.to_bytes(size, "little", signed=n < 0 or size == 8) for n, size in numbers))


@frozen
class Runtime:
    """A launch argument: the `index`-th run-time option of the operation (``seed``, ``offset``), an unsigned 64-bit
    integer."""

    index: int


@frozen
class TensorMap:
    """A launch argument of 128 bytes: what TMA (sm_90) is told of an array, to fetch boxes of it as rows of
    128 bytes, or of `row` bytes, swizzled; as they are where `row` is 0.

    Axes run from the fastest to the slowest; `strides` are bytes, from the second axis on. Where `corners` is given,
    (lower, upper) along the axes of space, the boxes are of windows: `box` is (channels, pixels) and `steps` are the
    window's along all axes."""

    array: Array
    dtype: np.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...] = ()
    corners: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    row: int = 128


@frozen
class Block:
    """A launch argument as the driver takes it: the bytes of a struct, and what a call writes into them, each with its
    offset."""

    data: bytes
    words: tuple[tuple[int, Array | Runtime], ...] = ()
    maps: tuple[tuple[int, TensorMap], ...] = ()


Parameter = Array | TensorMap | Structure | Runtime | Block | int | float | None


@frozen
class Plan:
    """One launch. `arguments` is the record that the kernel's struct is generated from, or, in families that have none
    yet, a tuple in the order of the kernel's parameters: `Array` pointers, `TensorMap`, `Structure`, `Runtime` options,
    ints (64 bits) and floats (double).

    `cooperative` is for kernels whose blocks wait for each other: the driver starts all of them together, or says that
    it cannot. `early` lets a launch behind another one of its program begin while that one ends; its kernel waits by
    itself (``overlap.cuh``). `ahead` lets any small launch begin while the last kernel of its stream ends, whoever
    queued that; its kernel waits before it touches any array (`ahead_if_small`)."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: int
    arguments: Arguments | tuple[Parameter, ...]
    shared_memory: int = 0
    cooperative: bool = False
    early: bool = False
    ahead: bool = False

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The arguments one by one, in the order of the kernel's parameters."""
        return self.arguments if isinstance(self.arguments, tuple) else self.arguments.parameters

    @property
    def arrays(self) -> tuple[Array, ...]:
        """All memory that it touches."""
        found: list[Array] = []
        for parameter in self.parameters:
            block = block_of(parameter)
            places = (
                (parameter,) if block is None else (*(p for _, p in block.words), *(m.array for _, m in block.maps))
            )
            found += [place for place in places if isinstance(place, Array)]
        return tuple(found)


def block_of(parameter: Parameter) -> Block | None:
    """The struct that a parameter is, None for a pointer or a number."""
    if isinstance(parameter, TensorMap):
        return Block(bytes(_MAP), maps=((0, parameter),))
    if isinstance(parameter, Structure):
        return parameter.block
    return parameter if isinstance(parameter, Block) else None


_MAP = 128  # bytes of a tensor map
_FEW = 1 << 17  # threads of a launch that leaves room on the card for the next one


def ahead_if_small(plan: Plan) -> Plan:
    """The plan as one that begins ahead, with a kernel of its own: the instructions for it cost large launches of short
    blocks a fifth of their speed."""
    if math.prod(plan.grid) * plan.block > _FEW:
        return plan
    return replace(plan, kernel=replace(plan.kernel, symbol=f"{plan.kernel.symbol}_ahead", ahead=True), ahead=True)


@frozen
class Matrix:
    """A batch of row-major matrices in memory: where they begin and the distances, in elements, between rows and
    between matrices.

    `transposed` says that the product takes each matrix the other way round than it is stored.
    """

    array: Array
    row: int
    batch: int = 0
    transposed: bool = False


@frozen
class MatMul:
    """A batch of matrix products by cuBLAS, ``c = alpha * a @ b + beta * c``, a (m, k), b (k, n), c (m, n), each
    row-major.

    `dtype` is of a and b, `result` of c (half operands may have a float32 result). `precision` is the option
    ``float32_precision``: what float32 operands may be rounded to; products of half types are summed in float32."""

    a: Matrix
    b: Matrix
    c: Matrix
    m: int
    n: int
    k: int
    dtype: np.dtype
    result: np.dtype
    batch: int = 1
    alpha: float = 1.0
    beta: float = 0.0
    precision: str = "highest"

    @property
    def arrays(self) -> tuple[Array, ...]:
        """All memory that it touches."""
        return self.a.array, self.b.array, self.c.array


@frozen
class Transform:
    """A batch of float32 Fourier transforms by cuFFT over arrays of `lengths`, dense one behind the other: from real
    ones to their spectra, of which the last axis has the first half, or back (`inverse`, which destroys the spectra),
    not scaled. `work` are `work_bytes` for the library to work in."""

    source: Array
    target: Array
    work: Array
    lengths: tuple[int, ...]
    batch: int
    inverse: bool
    work_bytes: int

    @property
    def arrays(self) -> tuple[Array, ...]:
        """All memory that it touches."""
        return self.source, self.target, self.work


Step = Plan | MatMul | Transform


def moved_by(steps: Iterable[Step], count: int) -> tuple[int, ...]:
    """Which of the first `count` arrays libraries take at multiples of 16 bytes alone: cuBLAS those of half types, and
    cuFFT all."""
    libraries = [s for s in steps if isinstance(s, Transform) or (isinstance(s, MatMul) and s.dtype in HALF)]
    return tuple(sorted({a.index for step in libraries for a in step.arrays if a.index < count}))


@frozen
class Program:
    """All launches of a problem, in stream order, and the memory they expect.

    `orders` holds, for each input that is given, the axes from the slowest to the fastest in memory; an input that lies
    otherwise is copied first. None stands for an input that is not read, however it lies. Empty means C order for all.
    Outputs are dense in the order of their `Spec`. `workspace` is the bytes of scratch memory where planning finds them
    on the way; None leaves them to `Method.workspace`."""

    plans: tuple[Step, ...]
    orders: tuple[tuple[int, ...] | None, ...] = ()
    workspace: int | None = None

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of our own that the launches need."""
        return tuple(plan.kernel for plan in self.plans if isinstance(plan, Plan))


def vector_length(dtype: np.dtype, aligned: bool, *extents: int) -> int:
    """Elements that a thread may move at once: 16 bytes, or fewer where a row's extent is not a multiple; 1 if not
    aligned."""
    length = 16 // dtype.itemsize if aligned else 1
    while any(n % length for n in extents):
        length //= 2
    return length
