"""The gradients of a convolution: the image's by a compiled correlation, the weight's by the compiled gradient of
weights. Imports Numba."""

from __future__ import annotations

from types import ModuleType

from dnnarray._cpu.compiled.conv import channel_lanes as conv_lanes
from dnnarray._cpu.compiled.conv import depthwise_lanes as conv_depthwise_lanes
from dnnarray._cpu.compiled.conv import depthwise_lanes_weight as conv_depthwise_lanes_weight
from dnnarray._cpu.compiled.conv import shifted as conv
from dnnarray._cpu.compiled.conv import shifted_weight as conv_weight
from dnnarray._cpu.compiled.conv import split_gemm as conv_split
from dnnarray._cpu.compiled.conv import split_shifted as conv_split_shifts
from dnnarray._cpu.compiled.conv import winograd_4x4 as winograd
from dnnarray._cpu.compiled.conv import winograd_4x4_weight as winograd_weight
from dnnarray._cpu.compiled.conv.drivers import bound
from dnnarray._cpu.compiled.kernel import Driver
from dnnarray._cpu.conv import maps as conv_maps
from dnnarray._cpu.conv.blocks import Way


def _beside(way: Way, weight: Way) -> Way:
    """The images by one way, the weight by another."""
    return way._replace(weight_buffers=weight.weight_buffers, weight_gradient=weight.weight_gradient)


WAYS = {
    module.WAY.name: _beside(module.WAY, conv_weight.WAY)
    for module in (conv, conv_lanes, conv_split, conv_split_shifts)
}
WAYS[winograd.WAY.name] = _beside(winograd.WAY, winograd_weight.WAY)
WAYS[conv_depthwise_lanes.WAY.name] = conv_depthwise_lanes_weight.WAY


def _drivers(module: ModuleType, weight: ModuleType = conv_weight) -> tuple[Driver, Driver]:
    """Of a convolution, and of a transposed one."""
    kernels = (*module.conv.kernels, *weight.conv_backward_weight.kernels)
    operations = (conv_maps.conv_backward, conv_maps.conv_transpose_backward)
    back, transposed_back = (bound(WAYS[module.WAY.name], operation, *kernels) for operation in operations)
    return back, transposed_back


shifted_conv_backward, shifted_conv_transpose_backward = _drivers(conv)
channel_lanes_conv_backward, channel_lanes_conv_transpose_backward = _drivers(conv_lanes)
winograd_4x4_conv_backward, winograd_4x4_conv_transpose_backward = _drivers(winograd, winograd_weight)
depthwise_lanes_conv_backward, depthwise_lanes_conv_transpose_backward = _drivers(
    conv_depthwise_lanes, conv_depthwise_lanes_weight
)
split_gemm_conv_backward, split_gemm_conv_transpose_backward = _drivers(conv_split)
split_shifted_conv_backward, split_shifted_conv_transpose_backward = _drivers(conv_split_shifts)
