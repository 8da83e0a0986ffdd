"""Which parameters of a kernel its accesses to global memory come from, and how wide they are: read from the PTX that
NVRTC makes, without a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from dnnarray._cuda.core import module
from dnnarray._cuda.core.plan import Kernel

_REGISTER = re.compile(r"%[a-z]+\d+")
_PARAMETER = re.compile(r"(\w+_param_\d+)(?:\+(\d+))?")
_BASE = re.compile(r"\[(%rd\d+)")
_PASSES_ON = ("cvta", "mov", "add", "sub", "mad", "selp", "min", "max", "and", "or", "cvt", "shl")
_ELSEWHERE = (".shared", ".local", ".param", ".const")  # state spaces other than global memory
_BYTES = re.compile(r"(?:[busf]|bf)(8|16|32|64|128)(x2)?")


Place = tuple[int, int]  # the number of a parameter, and the byte in it where a member begins
Origins = dict[str, frozenset[Place]]  # the parameters that each register was computed from


class Access(NamedTuple):
    """An instruction, the bytes that a thread moves by it and the parameters that its address was computed from."""

    operation: str
    bytes: int
    parameters: frozenset[Place]

    @property
    def scalar(self) -> bool:
        return not re.search(r"\.v\d|x2|async", self.operation)


def compile_ptx(kernel: Kernel, architecture: str) -> str:
    """What NVRTC makes of a kernel before it is assembled."""
    nvrtc, root = module._nvrtc(), module.kernels_folder()
    _, program = nvrtc.nvrtcCreateProgram(kernel.code().encode(), f"{kernel.symbol}.cu".encode(), 0, [], [])
    try:
        options = [f"-arch={architecture}", f"-I{root}", f"-I{root / 'include'}", *module._OPTIONS]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, module._log(nvrtc, program)
        text = bytes(nvrtc.nvrtcGetPTXSize(program)[1])
        nvrtc.nvrtcGetPTX(program, text)
        return text.decode().rstrip("\0")
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def accesses(text: str) -> set[Access]:
    """All loads, stores, copies and atomic operations of a kernel that may touch global memory; addresses that were
    loaded from memory come from nowhere."""
    head, _, body = text[text.index(".entry") :].partition("{")
    numbers = {name: i for i, (name, _) in enumerate(_PARAMETER.findall(head))}
    instructions = list(_instructions(body))
    origins = _origins(list(_read(instructions, numbers)), list(_steps(instructions)))
    return {
        Access(
            operation,
            _bytes(operation, operands),
            frozenset().union(*(origins.get(r, frozenset()) for r in _REGISTER.findall(address))),
        )
        for operation, operands in instructions
        if _touches_memory(operation)
        for address in _addresses(operation, operands)
    }


def _instructions(body: str) -> Iterator[tuple[str, str]]:
    """(operation, operands) of each instruction, without its predicate."""
    for line in re.split(r"[;\n]", body):
        found = re.match(r"\s*(?:@!?%?\w+\s+)?([a-z][\w.:]*)\s+(.*)$", line)
        assert found or "[" not in line or line.lstrip().startswith("."), (
            f"an instruction that is not understood: {line}"
        )
        if found:
            yield found[1], found[2]


def _split(operands: str) -> tuple[list[str], str]:
    """The registers that an instruction writes, several of them in braces, and the rest of its operands."""
    target, _, sources = operands.partition("}" if operands.startswith("{") else ",")
    return _REGISTER.findall(target), sources


def _read(instructions: list[tuple[str, str]], numbers: dict[str, int]) -> Iterator[tuple[str, Place]]:
    """The registers that members of the parameters are loaded into: by the name of a parameter, or by a register that
    holds its address."""
    names: dict[str, str] = {}
    for operation, operands in instructions:
        targets, sources = _split(operands)
        if operation.startswith("mov") and _PARAMETER.fullmatch(sources.strip()):
            names[targets[0]] = sources.strip()
        elif operation.startswith("ld.param"):
            named = _BASE.sub(lambda base: f"[{names.get(base[1], '')}", sources)
            for name, at in _PARAMETER.findall(named):
                for i, target in enumerate(targets):
                    yield target, (numbers[name], int(at or 0) + i * _bytes(operation, operands) // len(targets))


def _steps(instructions: list[tuple[str, str]]) -> Iterator[tuple[list[str], list[str]]]:
    """The registers written and read by each instruction that computes an address."""
    for operation, operands in instructions:
        if operation.startswith(_PASSES_ON):
            targets, sources = _split(operands)
            yield targets, _REGISTER.findall(sources)


def _origins(read: list[tuple[str, Place]], steps: list[tuple[list[str], list[str]]]) -> Origins:
    """The parameters that each register depends on, by sums and choices."""
    origins: Origins = {register: frozenset([place]) for register, place in read}
    changed = True
    while changed:
        changed = False
        for targets, sources in steps:
            found = frozenset().union(*(origins.get(r, frozenset()) for r in sources))
            for register in targets:
                known = origins.get(register, frozenset())
                if not found <= known:
                    origins[register], changed = known | found, True
    return origins


def _touches_memory(operation: str) -> bool:
    kind = operation.partition(".")[0]
    if kind == "cp":
        return operation.startswith("cp.async") and not operation.startswith(
            ("cp.async.commit", "cp.async.wait", "cp.async.mbarrier")
        )
    return kind in ("ld", "ldu", "st", "atom", "red") and not any(space in operation for space in _ELSEWHERE)


def _addresses(operation: str, operands: str) -> list[str]:
    """What stands in the brackets that speak of global memory; both sides of a bulk copy, of which one is shared memory
    that no parameter leads to."""
    found = re.findall(r"\[([^\]]*)\]", operands)
    if operation.startswith("cp.async.bulk"):
        return found
    return found[1:2] if operation.startswith("cp.async") else found[:1]


def _bytes(operation: str, operands: str) -> int:
    if operation.startswith("cp.async.bulk"):
        return 16
    if operation.startswith("cp.async"):
        return int(operands.rpartition("]")[2].strip(" ,").partition(",")[0])
    parts = operation.split(".")
    size = next(
        (int(found[1]) // 8 * (2 if found[2] else 1) for part in reversed(parts) if (found := _BYTES.fullmatch(part))),
        0,
    )
    return size * next((int(part[1:]) for part in parts if re.fullmatch(r"v\d", part)), 1)
