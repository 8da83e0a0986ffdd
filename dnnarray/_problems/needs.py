"""``needs=``: the gradients of a backward that are wanted. The others are absent from the problem, so that no engine
works for them."""

from __future__ import annotations

from typing import Any

from dnnarray._errors import OptionError, fail
from dnnarray._problems.base import Problem
from dnnarray._records import changed

NEEDS = "needs"  # the option of every operation that has several gradients
_EXPECTED = "a tuple of names of arrays"


def needed(problem: Problem, needs: Any) -> Problem:
    """The problem of the gradients that `needs` names; of all of them where it is None."""
    if needs is None:
        return problem
    fields = problem.fields
    check_names(problem.op, needs, fields)
    outputs = tuple(spec if field in needs else None for field, spec in zip(fields, problem.outputs, strict=True))
    if not any(outputs):
        given = dict.fromkeys(field for field, spec in zip(fields, problem.outputs, strict=True) if spec is not None)
        fail(
            OptionError,
            problem.op,
            "needs",
            repr(needs),
            f"one name or more of the arrays given, which are {', '.join(given)}",
        )
    return changed(problem, outputs=outputs)


def check_names(op: str, needs: Any, known: tuple[str, ...]) -> None:
    """`needs` is a tuple, or a list, of one or more of the names `known`."""
    if not isinstance(needs, (tuple, list)) or not needs:
        fix = f"Write needs=({needs!r},)." if isinstance(needs, str) else None
        fail(OptionError, op, "needs", repr(needs), _EXPECTED, fix)
    for name in needs:
        if name not in known:
            from difflib import get_close_matches  # few programs come here

            close = get_close_matches(str(name), known, n=1)
            expected = f"{_EXPECTED} that have a gradient, which are {', '.join(dict.fromkeys(known))}"
            fail(OptionError, op, "needs", repr(needs), expected, f"Did you mean {close[0]!r}?" if close else None)
