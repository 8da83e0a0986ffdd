"""Kernels for the tests of the team that runs them. Imports Numba."""

from dnnarray._cpu.compiled.kernel import In1, Out1, kernel


@kernel
def count(start: int, stop: int, seen: Out1, two: int, half: float, yes: bool) -> None:
    """Add 1, by way of an argument of each kind."""
    for i in range(start, stop):
        if yes:
            seen[i] += two * half


@kernel(streams=True)
def count_backwards(start: int, stop: int, seen: Out1, two: int, half: float, yes: bool) -> None:
    for i in range(start, stop):
        if yes:
            seen[i] += two * half


@kernel
def fail(start: int, stop: int, seen: In1) -> None:
    if start > 0 or stop == len(seen):
        raise ValueError("of a kernel")


for each in (count, count_backwards, fail):
    each.build("float32")
