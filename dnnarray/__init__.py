"""dnnarray: deep-learning primitives as functions over any array that follows the Array API standard."""

# The star imports take what each family lists in its __all__; a family and its main function share a name, so the lists are
# imported by their full path.
from dnnarray import telemetry
from dnnarray._autotune import autotune
from dnnarray._errors import (
    ArrayTypeError,
    DeviceError,
    DTypeError,
    OptionError,
    ShapeError,
    UnsupportedError,
    WorkspaceError,
)
from dnnarray._introspect import Explanation, Inference, algorithms, explain, infer
from dnnarray._options import Options, options, set_options
from dnnarray._select import Algorithm
from dnnarray._spec import Spec
from dnnarray._version import __version__
from dnnarray._vjp import vjp
from dnnarray.activation import *
from dnnarray.activation import __all__ as _activation
from dnnarray.attention import *
from dnnarray.attention import __all__ as _attention
from dnnarray.conv import *
from dnnarray.conv import __all__ as _conv
from dnnarray.dropout import *
from dnnarray.dropout import __all__ as _dropout
from dnnarray.linear import *
from dnnarray.linear import __all__ as _linear
from dnnarray.loss import *
from dnnarray.loss import __all__ as _loss
from dnnarray.norm import *
from dnnarray.norm import __all__ as _norm
from dnnarray.pool import *
from dnnarray.pool import __all__ as _pool
from dnnarray.rnn import *
from dnnarray.rnn import __all__ as _rnn
from dnnarray.softmax import *
from dnnarray.softmax import __all__ as _softmax
from dnnarray.spatial import *
from dnnarray.spatial import __all__ as _spatial

__all__ = [
    "Algorithm",
    "ArrayTypeError",
    "DTypeError",
    "DeviceError",
    "Explanation",
    "Inference",
    "OptionError",
    "Options",
    "ShapeError",
    "Spec",
    "UnsupportedError",
    "WorkspaceError",
    "__version__",
    "algorithms",
    "autotune",
    "explain",
    "infer",
    "options",
    "set_options",
    "telemetry",
    "vjp",
    *_activation,
    *_attention,
    *_conv,
    *_dropout,
    *_linear,
    *_loss,
    *_norm,
    *_pool,
    *_rnn,
    *_softmax,
    *_spatial,
]
