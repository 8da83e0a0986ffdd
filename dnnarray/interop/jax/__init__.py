"""dnnarray's functions for JAX arrays: under ``jit``, ``grad``, ``vmap`` and ``shard_map``, on the CPU and on CUDA
devices.

Every function of dnnarray is here under its own name, with its own signature (without ``out=`` and ``workspace=``,
since arrays of JAX never change). A call becomes a custom call in XLA's program: XLA's own buffers are read and written
in place, on XLA's own stream.

>>> import jax, jax.numpy as jnp
>>> from dnnarray.interop.jax import conv, max_pool
>>> def loss(w, x):
...     return max_pool(conv(x, w, padding=1, activation="relu"), 2).sum()
>>> jax.jit(jax.grad(loss))(jnp.ones((4, 3, 3, 3)), jnp.ones((1, 3, 8, 8))).shape
(4, 3, 3, 3)
"""

from typing import TYPE_CHECKING

from dnnarray.interop.jax.functions import functions as _functions
from dnnarray.interop.jax.target import registered as _registered

_registered()  # now, so that executables of other processes find the handlers too
_FUNCTIONS = _functions()
__all__ = sorted(_FUNCTIONS)
globals().update(_FUNCTIONS)
if TYPE_CHECKING:  # the signatures are those of dnnarray's own functions, which are generic in the array
    from dnnarray.activation import *
    from dnnarray.attention import *
    from dnnarray.conv import *
    from dnnarray.dropout import *
    from dnnarray.linear import *
    from dnnarray.loss import *
    from dnnarray.norm import *
    from dnnarray.pool import *
    from dnnarray.rnn import *
    from dnnarray.softmax import *
    from dnnarray.spatial import *
