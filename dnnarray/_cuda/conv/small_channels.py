"""Float32 convolution of inputs of few channels: the maps by the kernels of `small_channels_plans`, float32 numbers as
parts of half types."""

from __future__ import annotations

from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.conv import small_channels_plans
from dnnarray._cuda.conv.direct import DirectMaps
from dnnarray._cuda.conv.kinds import AMPERE_SINGLE
from dnnarray._cuda.conv.shared import NO_EPILOGUE, Setting, lying, too_large
from dnnarray._cuda.core.parts import NUMERICS
from dnnarray._cuda.core.planner import Operand
from dnnarray._problems.conv import ConvProblem
from dnnarray._select import Cost, Device, share_of_peak
from dnnarray._spec import FLOAT32

NAMES = {"highest": "few_channels", "high": "few_channels_tf32", "medium": "few_channels_bf16"}  # of the algorithms
SUMMARY = "windows read as rows of pixels in shared memory, products of parts of half types by mma.sync"
_MAPS = (
    "conv",
    "conv_backward_input",
    "conv_backward_weight",
)  # each by the name of an operation that asks `small_channels_plans` for nothing else


class FewMaps:
    """The maps, which `rejects` has found to fit: `shared.Maps`."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._steps, self._how = setting, setting.steps, NUMERICS[setting.precision]

    def forward(self, large: Operand, weight: Operand, small: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        self._steps.add(
            small_channels_plans.forward(
                self._setting.g, large, weight, small, epilogue, self._setting.units, self._how
            )
        )

    def dgrad(self, small: Operand, weight: Operand, large: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        assert epilogue.empty
        self._steps.add(
            small_channels_plans.gradient(self._setting.g, small, weight, large, self._setting.units, self._how)
        )

    def wgrad(self, small: Operand, large: Operand, weight: Operand) -> None:
        small_channels_plans.wgrad(self._setting, small, large, weight, self._how)


def maps(setting: Setting) -> FewMaps | DirectMaps:
    """The kernels need 16-byte addresses; elsewhere the definition does it."""
    return FewMaps(setting) if setting.steps.aligned else DirectMaps(setting)


def _asked(problem: ConvProblem) -> tuple[str, ...]:
    """The maps of a problem."""
    return tuple(name for name, runs in zip(_MAPS, problem.runs, strict=True) if runs)


def rejects(op: str, problem: ConvProblem, device: Device, precision: str = "highest") -> str | None:
    g, dtype = problem.geometry, problem.inputs[0].dtype
    if reason := AMPERE_SINGLE.refuses(dtype, device):
        return reason
    if reason := too_large(g):
        return reason
    lies = lying(problem)
    if lies.mixed or not lies.last:
        return "memory that is not channels-last"
    bias = {"conv_transpose": 2, "conv_transpose_backward": 3}.get(problem.kind)
    if bias is not None and (problem.activation is not None or problem.inputs[bias] is not None):
        return "a bias or an activation behind the transposed convolution"
    missing = next(
        (o for o in _asked(problem) if small_channels_plans.seconds(o, g, dtype, 1, NUMERICS[precision]) is None), None
    )
    return f"extents that its kernels do not take ({missing})" if missing else None


def cost(op: str, problem: ConvProblem, device: Device, precision: str = "highest") -> Cost:
    g, how, asked = problem.geometry, NUMERICS[precision], _asked(problem)
    seconds = sum(small_channels_plans.seconds(o, g, FLOAT32, device.units, how) or 0.0 for o in asked)
    peak = device.peak.get(f"{how.dtype.name}_mma") or device.peak["float32"]
    flops = 2 * g.macs * len(asked)
    launches = len(asked) + sum(o == "conv_backward_weight" for o in asked)
    return Cost(flops, problem.bytes, share_of_peak(flops, seconds, peak), launches, f"{how.dtype.name}_mma")
