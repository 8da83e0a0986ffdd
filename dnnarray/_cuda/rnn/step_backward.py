"""One time step backward; the settings are those of a step forward."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent
from dnnarray._cuda.rnn.network import Described
from dnnarray._records import frozen


@frozen
class StepBackwardArguments(Arguments, restrict=True):
    """What ``kernels/rnn/step_backward.cu`` is called with."""

    description: Described
    step: Extent
