"""One time step forward."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent
from dnnarray._cuda.core.plan import Config
from dnnarray._cuda.rnn.network import Described
from dnnarray._records import frozen


@frozen
class StepConfig(Config):
    """Compile-time settings of ``kernels/rnn/step.cu`` and ``kernels/rnn/step_backward.cu``."""

    element: str
    output: str
    kind: int
    projects: bool
    threads: int


@frozen
class StepArguments(Arguments, restrict=True):
    """What ``kernels/rnn/step.cu`` is called with."""

    description: Described
    step: Extent
