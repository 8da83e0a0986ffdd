"""Convolution: which algorithms do which operation."""

from __future__ import annotations

from dnnarray._cuda import conv_depthwise
from dnnarray._select import Method

ALGORITHMS: dict[str, tuple[Method, ...]] = {
    "conv": (
        Method("depthwise", conv_depthwise.forward, "one channel a group: windows in registers, no matrix product", conv_depthwise.rejects),
    ),
    "conv_backward_input": (
        Method("depthwise", conv_depthwise.input_gradient, "the forward turned round, or a gather for strides", conv_depthwise.rejects),
    ),
}
