"""What a step of an LSTM or a GRU does with its sums, on vectors in memory: activated gates and new states, and their
gradients. Imports Numba.

Each works on a vector of units of one sequence; of the last ones there may be fewer than a vector has (`count` of the
masked form), and no memory beyond them is touched. Gates lie one after the other, `step` bytes apart, in a row of
gates, in a row of biases, and in the gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from dnnarray._cpu.compiled.lanes import Lanes, arithmetic
from dnnarray._cpu.compiled.tile import intrinsic

_WORD = ir.IntType(64)
Address = Any


class _Units(Lanes):
    """Arithmetic on what lies `step` bytes apart."""

    def after(self, first: Address, step: Any, count: int) -> list[Address]:
        """Addresses `step` bytes apart."""
        return [self.builder.add(first, self.builder.mul(step, _WORD(k))) for k in range(count)]

    def sum(self, first: Any, *others: Any) -> Any:
        for each in others:
            first = self.builder.fadd(first, each)
        return first

    def product(self, first: Any, *others: Any) -> Any:
        for each in others:
            first = self.builder.fmul(first, each)
        return first

    def less(self, a: Any, b: Any) -> Any:
        return self.builder.fsub(a, b)

    def rest(self, a: Any) -> Any:
        """1 - a."""
        return self.less(self.real(1.0), a)


def _lstm_units(
    u: _Units, gates: Any, step: Any, bias: Any, sums: Any, sum_step: Any, c: Any, h: Any, kept: Any, taped: Any
) -> None:
    """The input's share `gates` and the products `sums` to the new c (in place) and h; with a tape the activated gates
    in place, and tanh(c) to `kept`."""
    at = u.after(gates, step, 4)
    places = zip(at, u.after(bias, step, 4), u.after(sums, sum_step, 4), strict=True)
    i, f, g, o = (u.sum(u.load(x), u.load(b), u.whole(p)) for x, b, p in places)
    i, f, g, o = u.sigmoid(i), u.sigmoid(f), u.tanh(g), u.sigmoid(o)
    new = u.sum(u.product(f, u.load(c)), u.product(i, g))
    squashed = u.tanh(new)
    u.store(new, c)
    u.store(u.product(o, squashed), h)
    _keep(u, taped, [*zip((i, f, g, o), at, strict=True), (squashed, kept)])


def _gru_units(
    u: _Units, gates: Any, step: Any, bias: Any, sums: Any, sum_step: Any, before: Any, h: Any, kept: Any, taped: Any
) -> None:
    """As `_lstm_units`; the fourth bias belongs to the product of the n gate, and their sum is what is kept."""
    at, biases, products = u.after(gates, step, 3), u.after(bias, step, 4), u.after(sums, sum_step, 3)
    r, z = (u.sigmoid(u.sum(u.load(at[k]), u.load(biases[k]), u.whole(products[k]))) for k in range(2))
    share = u.sum(u.whole(products[2]), u.load(biases[3]))
    n = u.tanh(u.sum(u.load(at[2]), u.load(biases[2]), u.product(r, share)))
    u.store(u.sum(n, u.product(z, u.less(u.load(before), n))), h)
    _keep(u, taped, [*zip((r, z, n), at, strict=True), (share, kept)])


def _keep(u: _Units, taped: Any, values: list[tuple[Any, Address]]) -> None:
    with u.builder.if_then(taped):
        for value, address in values:
            u.store(value, address)


def _lstm_slopes(
    u: _Units, gates: Any, step: Any, before: Any, squashed: Any, into: Any, unused: Any, dy: Any, dh: Any, dc: Any
) -> None:  # fmt: skip
    """From the gates the gradients of their arguments, dc to that of the cell state before the step; nothing of dh goes
    past the gates."""
    i, f, g, o = (u.load(each) for each in u.after(gates, step, 4))
    at = u.after(into, step, 4)
    t, whole = u.load(squashed), u.sum(u.load(dh), u.load(dy))
    d = u.sum(u.load(dc), u.product(whole, o, u.rest(u.product(t, t))))
    slopes = (
        u.product(d, g, i, u.rest(i)),
        u.product(d, u.load(before), f, u.rest(f)),
        u.product(d, i, u.rest(u.product(g, g))),
        u.product(whole, t, o, u.rest(o)),
    )
    for value, address in (*zip(slopes, at, strict=True), (u.product(d, f), dc), (u.real(0.0), dh)):
        u.store(value, address)


def _gru_slopes(
    u: _Units, gates: Any, step: Any, before: Any, share: Any, into: Any, share_into: Any, dy: Any, dh: Any, both: Any
) -> None:  # fmt: skip
    """As `_lstm_slopes`. `share_into` receives the gradient of the n gate's product with the state, dh its part that
    goes past the gates; `both` is what the weight meets."""
    at, met = u.after(into, step, 3), u.after(both, step, 3)
    r, z, n = (u.load(each) for each in u.after(gates, step, 3))
    d = u.sum(u.load(dh), u.load(dy))
    dn = u.product(d, u.rest(z), u.rest(u.product(n, n)))
    dr = u.product(dn, u.load(share), r, u.rest(r))
    dz = u.product(d, u.less(u.load(before), n), z, u.rest(z))
    de = u.product(dn, r)
    for value, address in (
        *zip((dr, dz, dn), at, strict=True),
        *zip((dr, dz, de), met, strict=True),
        (de, share_into),
        (u.product(d, z), dh),
    ):
        u.store(value, address)


# --- as intrinsics ----------------------------------------------------------------------------------------------------


def _units_intrinsic(body: Callable[..., None], masked: bool) -> Any:
    def typed(
        typing: Any,
        like: Any,
        count: Any,
        gates: Any,
        step: Any,
        bias: Any,
        sums: Any,
        sum_step: Any,
        state: Any,
        h: Any,
        kept: Any,
        taped: Any,
    ) -> Any:
        return types.void(like, *[types.int64] * 9, types.boolean), _generator(body, masked)

    return intrinsic(typed)


def _slopes_intrinsic(body: Callable[..., None], masked: bool) -> Any:
    def typed(
        typing: Any,
        like: Any,
        count: Any,
        gates: Any,
        step: Any,
        before: Any,
        kept: Any,
        into: Any,
        kept_into: Any,
        dy: Any,
        dh: Any,
        more: Any,
    ) -> Any:
        return types.void(like, *[types.int64] * 10), _generator(body, masked)

    return intrinsic(typed)


def _generator(body: Callable[..., None], masked: bool) -> Callable[..., Any]:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        _, vector, item = arithmetic(context, builder, signature.args[0])
        _, count, *addresses = arguments
        body(_Units(builder, vector, item, count if masked else None), *addresses)
        return context.get_dummy_value()

    return generate


# (like, count, then what the functions above take); the masked form does `count` units, the other one a vector of them.
lstm_units, gru_units = (_units_intrinsic(body, False) for body in (_lstm_units, _gru_units))
masked_lstm_units, masked_gru_units = (_units_intrinsic(body, True) for body in (_lstm_units, _gru_units))
lstm_slopes, gru_slopes = (_slopes_intrinsic(body, False) for body in (_lstm_slopes, _gru_slopes))
masked_lstm_slopes, masked_gru_slopes = (_slopes_intrinsic(body, True) for body in (_lstm_slopes, _gru_slopes))
