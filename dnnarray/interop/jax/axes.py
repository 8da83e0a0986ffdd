"""The axes of a mesh along which arrays differ inside of `jax.shard_map`; JAX checks that a call's arrays agree on
them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax


def _varying(array: Any) -> frozenset[str]:
    """The axes along which an array differs from device to device; none for versions of JAX that do not follow them."""
    typeof = getattr(jax, "typeof", None)
    if typeof is None:
        return frozenset()
    kind = typeof(array)
    manual = getattr(kind, "mat", None)
    return frozenset(getattr(kind, "vma", ()) if manual is None else manual.varying)


def alike(arrays: Sequence[Any]) -> list[Any]:
    """The arrays, all of them differing along the axes along which any of them does. The transpose of this sums
    gradients over devices."""
    axes = [_varying(array) for array in arrays]
    union = frozenset[str]().union(*axes)
    return [_cast(a, tuple(sorted(union - own))) if union - own else a for a, own in zip(arrays, axes, strict=True)]


def _cast(array: Any, axes: tuple[str, ...]) -> Any:
    lax: Any = jax.lax
    return lax.pcast(array, axes, to="varying") if hasattr(lax, "pcast") else lax.pvary(array, axes)


def shape_varying(shape: tuple[int, ...], dtype: Any, arrays: Sequence[Any]) -> jax.ShapeDtypeStruct:
    """What a result of a call is, which differs along the same axes as the arrays, all of which are `alike`."""
    axes = _varying(arrays[0])
    if not axes:
        return jax.ShapeDtypeStruct(shape, dtype)
    if not hasattr(jax.sharding, "ManualAxisType"):
        made: Any = jax.ShapeDtypeStruct
        return made(shape, dtype, vma=axes)
    mesh: Any = jax.typeof(arrays[0]).sharding.mesh
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.ShapeDtypeStruct(
        shape, dtype, sharding=sharding, manual_axis_type=jax.sharding.ManualAxisType(varying=axes)
    )
