"""Convolution: the table of its kernels."""

from dnnarray._cuda import conv_depthwise

ALGORITHMS = conv_depthwise.ALGORITHMS
