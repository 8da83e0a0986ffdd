"""All time steps of a layer backward in one launch; the plan is in `persistent`."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Pointer
from dnnarray._cuda.core.plan import Array
from dnnarray._cuda.rnn.network import Counters, Described
from dnnarray._records import frozen

Exchange = Annotated[Array, Pointer("float", False)]


@frozen(kw_only=True)
class PersistentBackwardArguments(Arguments, restrict=True):
    """What ``kernels/rnn/persistent_backward.cu`` is called with; through `exchange` blocks give each other terms of
    the state's gradient."""

    description: Described
    weights: In
    weights_reversed: In
    counters: Counters
    exchange: Exchange
    first_batch: Extent
