"""Choosing an algorithm: pure, shared by both engines, testable with a made-up device."""

from dnnarray._select.choose import choose, rank
from dnnarray._select.device import Device
from dnnarray._select.method import Algorithm, Cost, Method, share_of_peak

__all__ = ["Algorithm", "Cost", "Device", "Method", "choose", "rank", "share_of_peak"]
