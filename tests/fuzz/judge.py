"""Makes a call and says what came of it."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from dataclasses import replace
from typing import Any

import numpy as np

import dnnarray as dnn
from dnnarray._call.dispatch import dispatch
from dnnarray._call.introspect import question
from dnnarray._call.operation import find
from dnnarray._engine.outputs import pairs_in_place
from dnnarray._problems.base import leaves, tree_map
from dnnarray._problems.needs import NEEDS
from dnnarray._spec import FLOAT32, FLOATING, HALF
from dnnarray._vjp import _by_name
from tests.fuzz import oracle
from tests.fuzz.calls import Call, float64_of
from tests.fuzz.drawer import Leaf
from tests.fuzz.memory import Pages, Placed, dense
from tests.fuzz.mutate import spoil
from tests.fuzz.verdict import Failed, Verdict
from tests.support import call as call_public
from tests.support import candidates

NAMED = (
    dnn.ShapeError,
    dnn.DTypeError,
    dnn.ArrayTypeError,
    dnn.OptionError,
    dnn.UnsupportedError,
    dnn.WorkspaceError,
    dnn.DeviceError,
)
_PRECISION = {"high": 2.0**-11, "medium": 2.0**-8}  # half a unit in the last place of what the option allows
_ODD_WORKSPACE = (
    ": workspace is at an odd address;"  # what a card says of scratch memory that threads cannot load at once
)
_ODD_ARRAY = "begins at an address that is no multiple of 16"


_LINE = 64  # bytes of a line of the cache: what the address of an array is told by, where bits are to be the same
_MOST = 1 << 22  # bytes of the results of a call that was changed


def judge(call: Call, place: Any) -> Verdict:
    """The verdict on a call, made on arrays of this place."""
    trial = Trial(call, place)
    try:
        with warnings.catch_warnings(), dnn.options(**call.context):
            warnings.simplefilter("error")
            verdict = trial.run()
    except Failed as failed:
        verdict = failed.verdict
    except oracle.Unverified as reason:
        verdict = Verdict("unverified", str(reason))
    except Exception:  # a fault of the fuzzer itself
        verdict = Verdict("FUZZER", traceback.format_exc())
    return verdict._replace(algorithm=trial.algorithm)


class Trial:
    """One call on its way.

    Attributes
    ----------
    operation, forward : what is called by name, and the operation whose arrays are drawn
    algorithm : the one that is named, None for the one that is chosen
    options : of `operation`
    cotangents : the incoming gradients as leaves, one for each result of the forward, None where a result gets none
    needs : the gradients that are wanted, None for all
    aligned : whether every array begins at a multiple of its itemsize, scratch memory at one of 8
    odd_workspace : whether scratch memory was given that does not begin at a multiple of 16 bytes, which a card refuses
        by name
    """

    def __init__(self, call: Call, place: Any) -> None:
        self.call, self.place = call, Pages(call.pages == "end") if call.pages else place
        self.operation, self.forward = call.operation, find(call.drawn.op)
        self.algorithm: str | None = None
        self.options: dict[str, Any] = call.drawn.options
        self.cotangents: list[Leaf | None] = []
        self.odd_workspace = False
        self.needs: tuple[str, ...] | None = None
        self.late = call.drawer()
        every = [leaf for leaf in leaves(call.drawn.arrays) if isinstance(leaf, Leaf)]
        self.aligned = all(leaf.aligned for leaf in every) and not (call.pages and call.workspace)

    def run(self) -> Verdict:
        """Make the call, look at its memory, and compare."""
        try:
            made = self._made()
        except (Failed, oracle.Unverified):
            raise
        except NAMED as error:
            return self._refused(error)
        except Warning as warning:
            return Verdict("WARNING", f"{type(warning).__name__}: {warning}")
        except Exception:
            if self.place.is_dead():  # the process reports it by its end
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            return Verdict("UNNAMED", traceback.format_exc())
        return Verdict("unverified", "values") if self.call.lenient else self._compared(made)

    # --- the call itself ----------------------------------------------------------------------------------------------

    def _made(self) -> list[list[np.ndarray]]:
        """What each of the calls gave, flat and on the host: the call, and its repetition on arrays that begin
        elsewhere."""
        arrays = self.call.drawn.arrays
        if self.call.mode != "forward":
            self.cotangents = self._drawn_cotangents(arrays)
            self.needs = self._drawn_needs((self._grad(self.cotangents), *arrays))
        if self.call.mode == "backward":
            arrays = (self._grad(self.cotangents), *arrays)
            self.options = {n: v for n, v in self.options.items() if n in self.operation.defaults}
            self.options |= {"needs": self.needs} if self.needs else {}
        self.algorithm = self._picked(arrays)
        beside = self.call.mode != "vjp"
        made = [self._once(arrays, self.call.out and beside, self.call.workspace and beside)]
        if self.call.repeat:
            made.append(self._once(tuple(tree_map(self._elsewhere, a) for a in arrays), False, False))
            if not self.call.out and self.call.context.get(
                "deterministic"
            ):  # memory of another order may be gone through another way
                _same_bits(*made)
        if self.call.out and beside and (over := self._in_place(arrays)):
            made.append(over)
        return made

    def _drawn_cotangents(self, arrays: tuple[Any, ...]) -> list[Leaf | None]:
        with dnn.options(workspace_limit=None):
            specs = leaves(dnn.infer(self.forward.name, *self._there(arrays)[0], **self.options).outputs)
        takes_all = "grad" in find(f"{self.forward.base}_backward").nested
        wanted = [s.dtype in FLOATING and (i == 0 or (takes_all and self.late.maybe(0.7))) for i, s in enumerate(specs)]
        return [
            self.late.array(self.late.rng.standard_normal(s.shape), dtype=s.dtype) if want else None
            for s, want in zip(specs, wanted, strict=True)
        ]

    def _drawn_needs(self, given: tuple[Any, ...]) -> tuple[str, ...] | None:
        """The gradients that are wanted, of an operation that has several; None for all."""
        backward = find(f"{self.forward.base}_backward")
        if NEEDS not in backward.defaults or self.late.maybe(0.6):
            return None
        options = {n: v for n, v in self.options.items() if n in backward.defaults}
        with dnn.options(workspace_limit=None):
            found = _by_name(self.forward, dnn.infer(backward.name, *self._there(given)[0], **options).output)
        names = [name for name, spec in found.items() if leaves(spec)]
        return tuple(name for name in names if self.late.maybe()) or (self.late.choice(names),)

    def _wanted(self, gradients: Any) -> list[np.ndarray]:
        """Those of all gradients that are wanted, flat."""
        named = _by_name(self.forward, gradients)
        return [
            leaf
            for name, gradient in named.items()
            if self.needs is None or name in self.needs
            for leaf in leaves(gradient)
        ]

    def _grad(self, cotangents: list[Any]) -> Any:
        """The gradient as the backward takes it."""
        takes_all = "grad" in find(f"{self.forward.base}_backward").nested
        return tuple(cotangents) if takes_all and len(cotangents) > 1 else cotangents[0]

    def _picked(self, arrays: tuple[Any, ...]) -> str | None:
        """The algorithm to be named; raises what the call would raise."""
        there = self._there(arrays)[0]
        if self.call.change:
            found = dnn.infer(self.operation.name, *there, **self.options)
            if sum(s.nbytes for s in leaves(found.outputs)) > _MOST:
                raise oracle.Unverified("too large")
        if self.call.pick is None:
            return None
        names = candidates(self.operation.name, there, self.options)
        return names[int(self.call.pick * len(names))] if names else None

    def _once(self, arrays: tuple[Any, ...], with_out: bool, with_workspace: bool) -> list[np.ndarray]:
        """Make the call and look at all memory that it may not change."""
        there, inputs = self._there(arrays)
        outputs, scratch = self._results(there) if with_out else [], self._scratch(there) if with_workspace else None
        out, workspace = [o.array for o in outputs], scratch.array if scratch else None
        if self.call.spoilt and (with_out or with_workspace):
            self._spoilt(there, out, workspace)
        results = self._called(there, out, workspace)
        self.place.wait()
        flat = leaves(results)
        if outputs and not all(r is o.array for r, o in zip(flat, outputs, strict=True)):
            raise Failed("OUT", "the result is not what was given as out")
        found = [np.array(self.place.back(r)) for r in flat]
        if not all(p.unchanged() for p in inputs):
            raise Failed("CHANGED", "an input, or memory around one, was changed")
        if not all(p.guarded() for p in (*outputs, *([scratch] if scratch else []))):
            raise Failed("GUARD", "memory around out or workspace was written")
        return found

    def _in_place(self, arrays: tuple[Any, ...]) -> list[np.ndarray]:
        """The results where they are written over the arrays that they may be written over; nothing where there is no
        such array."""
        there, inputs = self._there(
            tuple(tree_map(lambda leaf: leaf.writable() if isinstance(leaf, Leaf) else leaf, a) for a in arrays)
        )
        problem, flat = question(self.operation.name, there, self._asked()).problem, leaves(there)
        over: dict[int, int] = {}  # places of inputs by those of the results that are written over them
        for i, j in sorted(pairs_in_place(problem)):
            if j not in over and i not in over.values() and self.late.maybe(0.8):
                over[j] = i
        if not over:
            return []
        outputs = self._results(there)
        out = [flat[over[j]] if j in over else output.array for j, output in enumerate(outputs)]
        results = leaves(self._called(there, out, None))
        self.place.wait()
        if not all(
            p.guarded() if any(p.array is a for a in out) else p.unchanged()
            for p in (*inputs, *outputs)
            if p.array is not None
        ):
            raise Failed("CHANGED", "memory beside an array that was written over, or another array, was changed")
        return [np.array(self.place.back(r)) for r in results]

    def _spoilt(self, there: tuple[Any, ...], out: list[Any], workspace: Any) -> None:
        """Make the call with memory that it must refuse."""
        given, scratch = spoil(self.call.spoilt or "", out, workspace, leaves(there), self._least_scratch(there))
        if not (
            scratch is workspace and len(given) == len(out) and all(a is b for a, b in zip(given, out, strict=True))
        ):
            self._called(there, given, scratch)
            raise Failed("ACCEPTED", f"{self.call.spoilt}, and no error")

    def _called(self, there: tuple[Any, ...], out: list[Any], workspace: Any) -> Any:
        named = {"algorithm": self.algorithm} if self.algorithm else {}
        takes_it = "algorithm" in self.operation.function.__signature__.parameters
        if self.call.mode == "vjp":
            wanted = {"needs": self.needs} if self.needs else {}
            output, pullback = dnn.vjp(
                self.operation.name, *there, **self.options, **wanted, **(named if takes_it else {})
            )
            placed = [None if c is None else self._place(c).array for c in self.cotangents]
            return output, pullback(tuple(placed) if isinstance(output, tuple) else placed[0])
        target = None if not out else out[0] if len(out) == 1 else tuple(out)
        if takes_it or not named:
            return call_public(
                self.operation.name, there, self.options | named | {"out": target, "workspace": workspace}
            )
        bound, chosen = self.operation.bind(there, self.options)
        static, runtime = (tuple(chosen[n] for n in names) for names in (self.operation.static, self.operation.runtime))
        return dispatch(self.operation, bound, static, runtime, target, workspace, self.algorithm)

    def _least_scratch(self, there: tuple[Any, ...]) -> int:
        """Bytes that the call cannot do without: of the algorithm that is named, or, as one that needs less may take
        over, of any."""
        if self.algorithm:
            return int(dnn.infer(self.operation.name, *there, **self._asked()).workspace)
        return min(a.workspace for a in dnn.algorithms(self.operation.name, *there, **self.options))

    # --- memory -------------------------------------------------------------------------------------------------------

    def _place(self, leaf: Leaf) -> Placed:
        return Placed(self.place, leaf.values.shape, leaf.values.dtype, leaf.layout).holding(leaf.values)

    def _there(self, arrays: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Placed]]:
        """The arrays of the call in guarded memory, and all that memory."""
        placed: list[Placed] = []

        def there(leaf: Any) -> Any:
            if not isinstance(leaf, Leaf):
                return leaf
            placed.append(self._place(leaf))
            return placed[-1].array

        return tuple(tree_map(there, a) for a in arrays), placed

    def _elsewhere(self, leaf: Any) -> Any:
        """The same array at another address. On a processor the bits may depend on where an array begins within a line
        of the cache."""
        if not isinstance(leaf, Leaf):
            return leaf
        itemsize, offset = leaf.values.dtype.itemsize, leaf.layout.offset
        if self.place.name == "cpu" and self.call.context.get("deterministic"):
            offset = offset % _LINE + _LINE * self.late.integer(0, 3)
        else:
            offset = itemsize * self.late.integer(0, _LINE // itemsize)
        return Leaf(leaf.values, replace(leaf.layout, offset=offset), leaf.role)

    def _results(self, there: tuple[Any, ...]) -> list[Placed]:
        """Memory for the results that holds what is no number."""
        specs = leaves(dnn.infer(self.operation.name, *there, **self._asked()).outputs)
        return [
            Placed(self.place, s.shape, s.dtype, self.late.lie(s.shape, s.dtype.itemsize, writable=True)).holding(
                np.full(s.shape, np.nan if s.dtype in FLOATING else -1).astype(s.dtype)
            )
            for s in specs
        ]

    def _scratch(self, there: tuple[Any, ...]) -> Placed:
        size = dnn.infer(self.operation.name, *there, **self._asked()).workspace + self.late.choice((0, 0, 1, 100))
        offsets = (0, 16, 16, 64, 8) if self.place.name == "cuda" else (0, 8, 16, 40, 64)
        if self.place.name == "cpu" and self.call.context.get(
            "deterministic"
        ):  # as for arrays: the bits may depend on it
            offsets = (0, _LINE)
        layout = replace(dense((size,)), offset=self.late.choice(offsets) if self.aligned else self.late.integer(0, 64))
        self.odd_workspace = layout.offset % 16 != 0
        return Placed(self.place, (size,), np.dtype(np.uint8), layout).holding(np.full(size, 255, np.uint8))

    def _asked(self) -> dict[str, Any]:
        return self.options | ({"algorithm": self.algorithm} if self.algorithm else {})

    # --- errors -------------------------------------------------------------------------------------------------------

    def _refused(self, error: Exception) -> Verdict:
        """A named error is right for a call that was made wrong, for values that are no numbers, and where scratch
        memory is limited."""
        text = f"{type(error).__name__}: {error}"
        if (
            self.place.name == "cuda"
            and isinstance(error, dnn.OptionError)
            and _ODD_WORKSPACE in text
            and self.odd_workspace
        ):
            return Verdict("refused", text)
        limited = isinstance(error, dnn.WorkspaceError) and self.call.context.get("workspace_limit") is not None
        if self.place.name == "cuda" and self._meets_odd_addresses(text, limited):
            return Verdict("refused", text)
        if self.call.change or self.call.lenient:
            named = any(f" {name}: " in text for name in (self.forward.name, f"{self.forward.base}_backward"))
            return Verdict("refused", text) if named else Verdict("UNNAMED", f"without the function's name: {text}")
        if (limited and self._all_need_more()) or (isinstance(error, dnn.UnsupportedError) and self._is_absent()):
            return Verdict("refused", text)
        return Verdict("REFUSED", text)

    def _meets_odd_addresses(self, text: str, limited: bool) -> bool:
        """Whether the card may refuse an array that begins at no multiple of 16 bytes.

        A named algorithm may need aligned arrays. So may the only algorithm within a limit of scratch memory, and under
        `deterministic` an array at an odd address is copied, which the limit may leave no memory for."""
        return (self.algorithm is not None and _ODD_ARRAY in text) or (
            limited and (self._has_odd_arrays() or bool(self.call.context.get("deterministic")))
        )

    def _has_odd_arrays(self) -> bool:
        arrays = (*leaves(self.call.drawn.arrays), *self.cotangents)
        return any(isinstance(leaf, Leaf) and leaf.layout.offset % 16 for leaf in arrays)

    def _is_absent(self) -> bool:
        """Whether the engine has no algorithm for the call, whichever is named; the CPU engine has one for every
        call."""
        if self.place.name != "cuda":
            return False
        if self.algorithm is None:
            return True
        if self.call.mode != "vjp":  # an algorithm that was offered
            return False
        self.algorithm = None
        try:
            self._once(self.call.drawn.arrays, False, False)
        except dnn.UnsupportedError:
            return True
        return False

    def _all_need_more(self) -> bool:
        """Whether no algorithm stays within the limit of scratch memory: of the call, or of the gradient that `vjp`
        calls."""
        limit = self.call.context["workspace_limit"]
        asked = [] if self.call.mode == "backward" else [(self.forward.name, self.call.drawn.arrays)]
        if self.cotangents:
            asked.append((f"{self.forward.base}_backward", (self._grad(self.cotangents), *self.call.drawn.arrays)))
        for name, arrays in asked:
            options = {n: v for n, v in self.call.drawn.options.items() if n in find(name).defaults}
            with dnn.options(workspace_limit=None):
                least = min(a.workspace for a in dnn.algorithms(name, *self._there(arrays)[0], **options))
            if least > (10**6 if limit == "1MB" else limit):
                return True
        return False

    # --- numbers ------------------------------------------------------------------------------------------------------

    def _compared(self, made: list[list[np.ndarray]]) -> Verdict:
        arrays, rng, level = float64_of(self.call.drawn.arrays), self.late.rng, self._level()
        self._look_at_values(arrays)
        reduction, options = self.call.drawn.reduction, self.call.drawn.options
        exact: list[np.ndarray] = []
        if self.call.mode != "backward":
            exact = oracle.expected(self.forward.base, arrays, options)

            def again(moved: tuple[Any, ...]) -> list[np.ndarray]:
                return oracle.expected(self.forward.base, moved, options)

            for results in made:
                scale = self._meeting(dict(zip(self.forward.arrays, arrays, strict=False)))
                said = oracle.wrong(results[: len(exact)], exact, reduction, again, arrays, level, rng, scale)
                if said:
                    return Verdict("WRONG", said)
        if self.call.mode == "forward":
            return Verdict("ok")
        return self._gradients_compared([results[len(exact) :] for results in made], arrays, level)

    def _look_at_values(self, arrays: tuple[Any, ...]) -> None:
        """A call that was changed may hold values that only an engine whose data the host can read refuses; what others
        give is open."""
        if not self.call.change or self.forward.values is None:
            return
        asked = question(self.forward.name, arrays, dict(self.call.drawn.options))
        try:
            self.forward.values(asked.problem, *asked.arrays)
        except NAMED as error:
            raise oracle.Unverified(f"values: {type(error).__name__}") from error

    def _level(self) -> float:
        """How far a factor of a product may be rounded by what the options and the dtype allow."""
        if self.call.dtype == FLOAT32:
            return _PRECISION.get(self.call.context.get("float32_precision", ""), 0.0)
        if self.call.dtype in HALF and (
            self._keeps() or self.place.name == "cuda"
        ):  # what is kept, and attention's weights, are of that dtype
            return 2.0**-11 if self.call.dtype.kind == "f" else 2.0**-8
        return 0.0

    def _keeps(self) -> bool:
        """Whether the gradient is of what the forward kept, which is rounded to the dtype."""
        return self.call.mode == "vjp" and self.forward.save is not None

    def _meeting(self, arrays: dict[str, Any]) -> float:
        """The size of the numbers that meet on the way of the forward; a card's norms of half types are one product and
        one sum an element."""
        scale = oracle.meeting(self.forward.base, arrays)
        if self.place.name == "cuda" and self.call.dtype in HALF:
            scale = max(scale, oracle.folded(self.forward.base, arrays, self.call.drawn.options))
        return scale

    def _gradients_compared(self, made: list[list[np.ndarray]], arrays: tuple[Any, ...], level: float) -> Verdict:
        backward = find(f"{self.forward.base}_backward")
        cotangents = [None if c is None else c.values.astype(np.float64) for c in self.cotangents]
        options = {n: v for n, v in self.call.drawn.options.items() if n in backward.defaults}
        inputs = (self._grad(cotangents), *arrays)
        exact = oracle.reference(backward.name, inputs, options)
        reduction = max(self.call.drawn.reduction, *(np.size(a) for a in leaves(inputs)))
        named = dict(zip(self.forward.arrays, arrays, strict=False))
        scale = oracle.cancelling(
            self.forward.base, [c for c in cotangents if c is not None], named, self.call.drawn.options, self._keeps()
        )

        def again(moved: tuple[Any, ...]) -> list[np.ndarray]:
            return self._wanted(oracle.reference(backward.name, moved, options))

        for results in made:
            said = oracle.wrong(results, self._wanted(exact), reduction, again, inputs, level, self.late.rng, scale)
            if said:
                return Verdict("WRONG", f"gradient: {said}")
        oracle.look_for_edges(self.forward.base, arrays, self.call.drawn.options)
        gradients = _of_leaves(self.forward, arrays, exact)
        said = oracle.derivative_agrees(
            self.forward.base, arrays, self.call.drawn.options, cotangents, gradients, self.late.rng
        )
        return Verdict("WRONG", f"gradient in float64: {said}") if said else Verdict("ok")


def _same_bits(first: list[np.ndarray], second: list[np.ndarray]) -> None:
    """What ``deterministic=True`` promises: `docs/reference/general.md` says of which addresses."""
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        if a.tobytes() != b.tobytes():
            raise Failed("BITS", f"result {i} has other bits when the call is repeated on arrays at other addresses")


def _of_leaves(forward: Any, arrays: tuple[Any, ...], gradients: Any) -> dict[int, np.ndarray]:
    """The gradients by the number of the leaf, among all of `arrays`, that each is of."""
    named, found, number = _by_name(forward, gradients), {}, 0
    for name, array in zip(forward.arrays, arrays, strict=False):
        count = len(leaves(array))
        for i, gradient in enumerate(leaves(named.get(name))):
            found[number + i] = np.asarray(gradient)
        number += count
    return found
