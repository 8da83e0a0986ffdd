"""Sampling at grids and in regions."""

from __future__ import annotations

from typing import Any

import dnnarray as dnn
from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import integers, namespace

_MODES = {"linear": "bilinear", "cubic": "bicubic"}  # the names since opset 20


@operator("GridSample")
def grid_sample(node: Node, x: Any, grid: Any) -> Any:
    mode = node.get("mode", "linear")
    padding, corners = node.get("padding_mode", "zeros"), bool(node.get("align_corners", 0))
    return dnn.grid_sample(
        x, grid.astype(x.dtype), mode=_MODES.get(mode, mode), padding_mode=padding, align_corners=corners
    )


@operator("AffineGrid", host=(1,))
def affine_grid(node: Node, theta: Any, size: Any) -> Any:
    return dnn.affine_grid(theta, integers(size), align_corners=bool(node.get("align_corners", 0)))


@operator("RoiAlign")
def roi_align(node: Node, x: Any, rois: Any, batch: Any) -> Any:
    """Boxes lie at half pixels by default since opset 16."""
    xp = namespace(x, rois)
    boxes = xp.concat([batch.astype(rois.dtype).reshape(-1, 1), rois], axis=1)
    half = (
        node.get("coordinate_transformation_mode", "half_pixel" if node.opset >= 16 else "output_half_pixel")
        == "half_pixel"
    )
    return dnn.roi_align(
        x,
        boxes,
        output_size=(node.get("output_height", 1), node.get("output_width", 1)),
        spatial_scale=node.get("spatial_scale", 1.0),
        sampling_ratio=node.get("sampling_ratio", 0),
        aligned=half,
        mode=node.get("mode", "avg"),
    )
