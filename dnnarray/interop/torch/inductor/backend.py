"""``torch.compile(model, backend="dnnarray")``: Inductor with dnnarray's operators in its graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from dnnarray._errors import OptionError, closest, fail
from dnnarray.interop.torch.inductor import differentiable
from dnnarray.interop.torch.inductor.operators import MIRRORS
from dnnarray.interop.torch.inductor.rewrite import kept, rewrite
from dnnarray.interop.torch.switch import SWITCH

FAMILIES = (*sorted(MIRRORS), "linear")
DEFAULT = ("attention", "convolution", "linear", "loss", "norm")


def backend(graph: GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: Any = None) -> Any:
    """Compile a graph of `torch.compile` by Inductor with dnnarray's operators for convolutions, norms, attention and
    losses, and for the fused forms of these.

    Users do not call it: they write ``torch.compile(model, backend="dnnarray")``.

    Parameters
    ----------
    graph, inputs : what `torch.compile` gives to a backend
    mode : str, optional
        As in `torch.compile`.
    options : dict, optional
        ``"families"``, a tuple of the families of operators that are replaced, and whatever options Inductor has.

    Returns
    -------
    callable
        What runs in the place of the graph.

    Raises
    ------
    OptionError
        A family is not one that there is.
    """
    from torch._functorch import config as functorch
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table

    settings = dict(options or {})
    families = _checked(settings.pop("families", DEFAULT))
    table = select_decomp_table()
    if not _casts(graph):
        SWITCH.replaced.update(differentiable.rewrite(graph.graph, families))
        graph.recompile()
    untouched = kept(families, training=_training(graph, inputs))
    unknown = {operator for operator in untouched if operator in table}

    def inner(module: GraphModule, example_inputs: Sequence[Any], **named: Any) -> Any:
        for part in module.modules():
            if isinstance(part, GraphModule):
                SWITCH.replaced.update(rewrite(part.graph, families, unknown))
                part.recompile()
        named.pop("get_decomp_fn", None)  # the graph has been taken apart as Inductor's own table says
        return compile_fx_inner(module, example_inputs, **named)

    # The cache of graphs before this one would give back what another backend has compiled of them.
    with functorch.patch(enable_autograd_cache=False):
        return compile_fx(
            graph,
            inputs,
            inner_compile=inner,
            config_patches={**(list_mode_options(mode) if mode else {}), **settings} or None,
            decompositions={operator: rule for operator, rule in table.items() if operator not in unknown},
        )


def _casts(graph: GraphModule) -> bool:
    """Whether autocast is at work, which chooses dtypes by PyTorch's own functions."""
    inside = any(node.target is torch.amp.autocast_mode._enter_autocast for node in graph.graph.nodes)
    return inside or torch._C._is_any_autocast_enabled()


def _training(graph: GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether autograd will differentiate the graph."""
    tensors = [*inputs, *graph.parameters()]
    return torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)


def _checked(families: Any) -> tuple[str, ...]:
    if isinstance(families, str) or not isinstance(families, (tuple, list)):
        fail(OptionError, "torch.compile", 'options["families"]', repr(families), "a tuple of names")
    for family in families:
        if family not in FAMILIES:
            expected = f"names among {', '.join(FAMILIES)}"
            fail(OptionError, "torch.compile", "a family", repr(family), expected, closest(family, FAMILIES))
    return tuple(families)


def register(name: str, compiler: Callable[..., Any]) -> None:
    """Enter a backend under a name, unless PyTorch has found it by the package's entry point already."""
    from torch._dynamo.backends import registry

    if name not in registry._BACKENDS:
        registry.register_backend(compiler, name=name)
