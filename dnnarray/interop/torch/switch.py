"""`accelerate` puts dnnarray's kernels under PyTorch's own operators; `report` says which calls they took."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch

from dnnarray._errors import OptionError, UnsupportedError, closest, fail
from dnnarray._options import current
from dnnarray.interop.torch.aten import KERNELS, Kernel
from dnnarray.interop.torch.aten.kernels import ABOVE_AUTOGRAD
from dnnarray.interop.torch.routes import Count, Settings, route, without_grad

DEVICES = ("cuda", "cpu")
FAMILIES = tuple(dict.fromkeys(kernel.family for kernel in KERNELS.values()))


class _Switch:
    """The registrations that are in force, for the whole process: each operator on each type of device at most once,
    however many ask for it.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.counts: dict[str, Count] = {}
        self.replaced: Counter[str] = Counter()  # in compiled graphs
        self.settings = Settings()
        self._users: dict[tuple[str, str], int] = {}
        self._libraries: dict[tuple[str, str], torch.library.Library] = {}

    def enter(self, wanted: Sequence[tuple[str, str]]) -> None:
        """Register what `wanted` names, pairs of an operator and a type of device, where nobody has yet."""
        with self.lock:
            self.settings.last = current()
            for pair in wanted:
                if pair not in self._libraries:
                    self._libraries[pair] = self._register(KERNELS[pair[0]], pair[1])
                self._users[pair] = self._users.get(pair, 0) + 1

    def leave(self, wanted: Sequence[tuple[str, str]]) -> None:
        """Take back what nobody wants any more, upon which PyTorch's own kernels are in force again."""
        with self.lock:
            for pair in wanted:
                self._users[pair] -= 1
                if not self._users[pair]:
                    self._libraries.pop(pair)._destroy()

    def _register(self, kernel: Kernel, device: str) -> torch.library.Library:
        library = torch.library.Library("aten", "IMPL")
        count = self.count(kernel.name)
        originals = {
            key: torch.library.get_kernel(kernel.name, key) for key in kernel.keys_on(device)
        }  # before any of them is replaced
        for key, original in originals.items():
            run = kernel.run if kernel.keys is ABOVE_AUTOGRAD else without_grad(kernel.run)
            routed = route(run, _otherwise(kernel, original), count, self.settings)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="(?s).*[Oo]verrid")  # PyTorch warns of what is meant here
                library.impl(kernel.name.removeprefix("aten::"), routed, key, with_keyset=True)
        return library

    def count(self, name: str) -> Count:
        """The count of the calls of an operator."""
        return self.counts.setdefault(name, Count())

    def take_counts(self, reset: bool) -> tuple[dict[str, Count], Counter[str]]:
        """Copies of the counts of operators that were called, and of what was replaced in compiled graphs."""
        with self.lock:
            found = {n: Count(c.taken, c.declined.copy()) for n, c in self.counts.items() if c.taken or c.declined}
            replaced = self.replaced.copy()
            if reset:
                self.replaced.clear()
                for count in self.counts.values():
                    count.taken = 0
                    count.declined.clear()
            return found, replaced


def _otherwise(kernel: Kernel, original: Any) -> Callable[..., Any]:
    """What runs where dnnarray declines: PyTorch's own kernel, or what stands for it."""
    instead = kernel.instead
    return original.call_boxed if instead is None else lambda keys, *arguments, **named: instead(*arguments, **named)


SWITCH = _Switch()


def _checked(name: str, given: Any, known: tuple[str, ...]) -> tuple[str, ...]:
    """A tuple of names that are known."""
    if isinstance(given, str) or not isinstance(given, (tuple, list)):
        fail(
            OptionError,
            "accelerate",
            name,
            repr(given),
            "a tuple of names",
            f"Write {name}=({given!r},)." if isinstance(given, str) else None,
        )
    for one in given:
        if one not in known:
            fail(OptionError, "accelerate", name, repr(one), f"names among {', '.join(known)}", closest(one, known))
    return tuple(given)


class accelerate:  # noqa: N801 - a context manager that is called like a function
    """Put dnnarray's kernels under PyTorch's own operators, for a ``with`` block or until `restore` is called.

    Models, losses and training loops stay as they are: convolutions, normalization, pooling, activations, softmax,
    attention, losses, sampling and embedding reach dnnarray through the dispatcher of PyTorch, forward and backward,
    with results in PyTorch's own memory and on its current stream. Operators that are not replaced cost nothing. A call
    that dnnarray does not do goes to PyTorch's own kernel, and `report` says why.

    Parameters
    ----------
    enabled : bool
        True begins at once, and goes on after the statement; False takes back everything that such calls began. Left
        out in a ``with`` statement, where the end of the block takes back what its beginning registered.
    devices : tuple of {"cuda", "cpu"}
        The types of device whose tensors are accelerated. On the processor PyTorch's own kernels are usually the faster
        ones for small arrays.
    families : tuple of str, optional
        The families of operators: ``"activation"``, ``"attention"``, ``"convolution"``, ``"loss"``, ``"norm"``,
        ``"pool"``, ``"recurrent"``, ``"softmax"``, ``"spatial"``. None (the default) for all.

    Raises
    ------
    OptionError
        A device or a family is not one of these.
    UnsupportedError
        PyTorch is too old to have ``torch.library.get_kernel``.

    See Also
    --------
    report : Which calls were taken, and which were not, with the reason.

    Notes
    -----
    The registration is that of the process: it holds in all threads, those of autograd too. Like any registration of an
    operator it must not change while another thread is inside an operator. Blocks may be nested and may overlap;
    PyTorch's own kernels come back when the last one ends, by an exception too.

    The options of `dnnarray.options` hold for the operators in the threads that set them. A thread that has set none,
    such as those in which autograd runs the backward on a GPU, takes those of the operator that ran last in a thread
    that has. ``torch.use_deterministic_algorithms(True)`` turns ``deterministic`` on.

    The gradient of ``ctc_loss`` is the true derivative by `log_probs`; PyTorch's own differs from it by a term that
    vanishes behind ``log_softmax``.

    Examples
    --------
    >>> import torch
    >>> from dnnarray.interop.torch import accelerate, report
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    >>> before = report(reset=True)
    >>> with accelerate(devices=("cpu",)):
    ...     model(torch.randn(2, 3, 8, 8)).sum().backward()
    >>> report(reset=True)["aten::convolution"].taken
    1
    """

    def __init__(
        self, enabled: bool | None = None, *, devices: Sequence[str] = ("cuda",), families: Sequence[str] | None = None
    ) -> None:
        if enabled is not None and not isinstance(enabled, bool):
            fail(OptionError, "accelerate", "enabled", repr(enabled), "True, False, or nothing")
        if not hasattr(torch.library, "get_kernel"):
            raise UnsupportedError(
                f"accelerate: PyTorch {torch.__version__} has no torch.library.get_kernel, by which calls go back "
                "to PyTorch's own "
                "kernels; install a newer version."
            )
        devices = _checked("devices", devices, DEVICES)
        families = FAMILIES if families is None else _checked("families", families, FAMILIES)
        self._wanted = [
            (name, device)
            for name, kernel in KERNELS.items()
            for device in devices
            if kernel.family in families and device in kernel.devices
        ]
        self._entered = 0
        if enabled is True:
            self.__enter__()
            _begun.append(self)
        elif enabled is False:
            restore()

    def __enter__(self) -> accelerate:
        SWITCH.enter(self._wanted)
        self._entered += 1
        return self

    def __exit__(self, *exc: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Take back one beginning of this object; PyTorch's kernels come back where nobody wants dnnarray's."""
        with SWITCH.lock:
            if not self._entered:
                return
            self._entered -= 1
            SWITCH.leave(self._wanted)
            with suppress(ValueError):
                _begun.remove(self)


_begun: list[accelerate] = []  # by accelerate(True)


def restore() -> None:
    """Take back everything that ``accelerate(True)`` began. Blocks of ``with accelerate()`` stay in force until they
    end.
    """
    with SWITCH.lock:
        for begun in tuple(_begun):
            begun.restore()


class Report:
    """What became of the calls of PyTorch's operators under `accelerate` and in graphs that the backend ``"dnnarray"``
    of `torch.compile` made: a mapping of operators to counts, which prints as a table.

    The values have the attributes ``taken`` and ``declined``, which counts reasons.

    Attributes
    ----------
    replaced : Counter
        What the backend replaced in the graphs that it compiled: single operators and fused forms.
    """

    def __init__(self, counts: dict[str, Count], replaced: Counter[str]) -> None:
        self._counts = dict(sorted(counts.items()))
        self.replaced = replaced

    def __getitem__(self, operator: str) -> Count:
        return self._counts[operator]

    def __contains__(self, operator: object) -> bool:
        return operator in self._counts

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def taken(self) -> int:
        """Calls that dnnarray computed."""
        return sum(c.taken for c in self._counts.values())

    @property
    def declined(self) -> int:
        """Calls that PyTorch's own kernels computed."""
        return sum(c.declined.total() for c in self._counts.values())

    def __str__(self) -> str:
        if not self._counts and not self.replaced:
            return "No operator was called under accelerate()."
        return "\n\n".join(filter(None, (self._calls(), self._replacements())))

    def _replacements(self) -> str:
        if not self.replaced:
            return ""
        width = max(map(len, self.replaced))
        lines = [f"{name:{width}}  {number:8}" for name, number in sorted(self.replaced.items())]
        return "\n".join([f"{'in compiled graphs':{width}}  {'replaced':>8}", *lines])

    def _calls(self) -> str:
        if not self._counts:
            return ""
        width = max(map(len, self._counts))
        lines = [f"{'operator':{width}}  {'taken':>8}  {'declined':>8}"]
        for name, count in self._counts.items():
            lines.append(f"{name:{width}}  {count.taken:8}  {count.declined.total():8}")
            lines += [f"{'':{width}}  {number} times: {reason}" for reason, number in count.declined.most_common()]
        return "\n".join(lines)

    __repr__ = __str__


def report(*, reset: bool = False) -> Report:
    """Which calls of PyTorch's operators dnnarray computed under `accelerate` and in compiled graphs, and which it left
    to PyTorch, with the reasons; and what ``torch.compile(backend="dnnarray")`` replaced.

    Parameters
    ----------
    reset : bool
        Whether to count from 0 again.

    Returns
    -------
    Report
        A mapping of operators, such as ``"aten::convolution"``, to counts with the attributes ``taken`` (an int) and
        ``declined`` (a `collections.Counter` of reasons). Its attribute ``replaced`` counts the operators and fused
        forms that were replaced in compiled graphs. It prints as a table.

    Raises
    ------
    OptionError
        `reset` is not True or False.

    Examples
    --------
    >>> from dnnarray.interop.torch import report
    >>> before = report(reset=True)
    >>> print(report())
    No operator was called under accelerate().
    """
    if not isinstance(reset, bool):
        fail(OptionError, "report", "reset", repr(reset), "True or False")
    return Report(*SWITCH.take_counts(reset))
