"""Cases of the spatial family."""

import numpy as np

from tests.support import Case, Draw, fixed, integers, normal, values

_INT64, _INT8, _BOOL = np.dtype(np.int64), np.dtype(np.int8), np.dtype(np.bool_)


def _places(*shape: int) -> Draw:
    """Coordinates inside and up to three images outside, multiples of 1/128 and never on an edge or centre of small
    images."""
    return Draw(lambda rng: rng.integers(-250, 250, shape) / 64 + 1 / 128)


_GRID = [
    Case(
        "grid_sample",
        f"{mode}_{padding_mode}_{'corners' if corners else 'edges'}",
        (normal(2, 3, 5, 7), _places(2, 4, 3, 2)),
        {"mode": mode, "padding_mode": padding_mode, "align_corners": corners},
        reason="every mode beside every padding, far outside too",
        reduction=4,
        condition=8.0,  # a place is an extent times a coordinate, whose rounding errors it multiplies
    )
    for mode in ("bilinear", "nearest", "bicubic")
    for padding_mode in ("zeros", "border", "reflection")
    for corners in (False, True)
]
_GRID += [
    Case(
        "grid_sample",
        f"rank3_{mode}_{padding_mode}",
        (normal(2, 2, 3, 5, 4), _places(2, 2, 3, 2, 3)),
        {"mode": mode, "padding_mode": padding_mode, "align_corners": corners},
        reason="three spatial axes",
        reduction=8,
        condition=8.0,
    )
    for mode, padding_mode, corners in (
        ("bilinear", "zeros", False),
        ("bilinear", "border", True),
        ("bilinear", "reflection", False),
        ("nearest", "zeros", True),
        ("nearest", "reflection", True),
    )
]
_GRID += [
    Case(
        "grid_sample",
        "one_channel",
        (normal(1, 1, 4, 4), _places(1, 5, 6, 2)),
        reason="no copy of the image",
        condition=8.0,
    ),
    Case(
        "grid_sample",
        "one_pixel",
        (normal(1, 2, 1, 1), _places(1, 3, 3, 2)),
        {"padding_mode": "reflection", "align_corners": True},
        reason="a mirror without width",
        condition=8.0,
    ),
    Case("grid_sample", "empty", (normal(0, 3, 4, 4), normal(0, 2, 2, 2)), reason="a batch of nothing", gradient=False),
    Case(
        "grid_sample",
        "no_channels",
        (normal(2, 0, 4, 4), normal(2, 2, 2, 2)),
        reason="channels of nothing",
        gradient=False,
    ),
    Case(
        "grid_sample", "no_places", (normal(2, 3, 4, 4), normal(2, 0, 5, 2)), reason="nowhere to sample", gradient=False
    ),
    Case(
        "grid_sample",
        "ties",
        (normal(1, 1, 4, 4), values([[[[-0.5, 0.0], [0.0, 0.5], [0.5, 0.5]]]])),
        {"mode": "nearest"},
        reason="halves go to the even pixel",
        gradient=False,
    ),
]

_AFFINE = [
    Case("affine_grid", "rank2", (normal(2, 2, 3),), {"shape": (2, 3, 4, 5)}, reason="an image"),
    Case(
        "affine_grid",
        "rank2_corners",
        (normal(2, 2, 3),),
        {"shape": (2, 3, 4, 5), "align_corners": True},
        reason="corners",
    ),
    Case("affine_grid", "rank3", (normal(2, 3, 4),), {"shape": (2, 1, 3, 2, 5)}, reason="a volume", reduction=5),
    Case(
        "affine_grid",
        "rank3_corners",
        (normal(1, 3, 4),),
        {"shape": (1, 1, 1, 2, 5), "align_corners": True},
        reason="an extent of 1",
    ),
    Case(
        "affine_grid", "empty", (normal(0, 2, 3),), {"shape": (0, 3, 4, 5)}, reason="a batch of nothing", gradient=False
    ),
]

_MODES = {
    "nearest": [{}],
    "nearest_exact": [{}],
    "linear": [{}, {"align_corners": True}, {"antialias": True}],
    "cubic": [{}, {"align_corners": True}, {"antialias": True}],
    "area": [{}],
}
_TARGETS = {
    "up": ((7,), {"size": 11}),
    "down": ((7,), {"size": 3}),
    "scaled": ((7,), {"scale": 1.7}),
    "mixed2d": ((5, 6), {"size": (8, 4)}),
    "scaled2d": ((5, 6), {"scale": (0.6, 2.5)}),
    "mixed3d": ((3, 4, 5), {"size": (5, 2, 5)}),
    "fourfold": ((5,), {"scale": 4}),
    "doubled2d": ((3, 4), {"size": (6, 8)}),
    "halved2d": ((6, 8), {"size": (3, 4)}),
    "quarter2d": ((2, 8), {"size": (2, 2)}),
}


def _resize_cases():
    for mode, variants in _MODES.items():
        for variant in variants:
            for name, (space, target) in _TARGETS.items():
                for layout in (
                    ("channels_first", "channels_last") if name in ("mixed2d", "doubled2d") else ("channels_first",)
                ):
                    shape = (2, 3, *space) if layout == "channels_first" else (2, *space, 3)
                    options = {"mode": mode, "layout": layout} | variant | target
                    label = "_".join([mode, *variant, name, *(("last",) if layout == "channels_last" else ())])
                    yield Case(
                        "interpolate",
                        label,
                        (normal(*shape),),
                        options,
                        "each mode up, down, by scale, rank and layout",
                        64,
                    )


_RESIZE = [
    *_resize_cases(),
    Case("interpolate", "from_one", (normal(1, 2, 1),), {"size": 5, "mode": "cubic"}, "all taps on one pixel", 5),
    Case(
        "interpolate",
        "to_one",
        (normal(1, 2, 5, 4),),
        {"size": 1, "mode": "linear", "align_corners": True},
        "a step of 0",
        4,
    ),
    Case(
        "interpolate",
        "to_one_antialias",
        (normal(1, 2, 9, 4),),
        {"size": 1, "mode": "cubic", "antialias": True},
        "all of it",
        36,
    ),
    Case("interpolate", "same", (normal(1, 2, 4),), {"scale": 1.2, "mode": "linear"}, "an extent kept is a copy"),
    Case(
        "interpolate",
        "same_cubic",
        (normal(1, 2, 4),),
        {"scale": 1.2, "mode": "cubic"},
        "cubic positions follow the scale",
        4,
    ),
    Case("interpolate", "same_nearest", (normal(1, 2, 5),), {"scale": 1.1}, "nearest positions follow the scale"),
    Case("interpolate", "unread", (normal(1, 2, 9),), {"size": 2, "mode": "linear"}, "pixels that nothing reads", 2),
    Case(
        "interpolate",
        "empty",
        (normal(0, 2, 4, 4),),
        {"size": 3, "mode": "linear"},
        "a batch of nothing",
        gradient=False,
    ),
    Case(
        "interpolate",
        "no_channels",
        (normal(2, 0, 4),),
        {"size": 3, "mode": "area"},
        "channels of nothing",
        gradient=False,
    ),
]

# Eighths and quarters are exact in every dtype. The boxes: ordinary, a fraction of a pixel, across each border, far
# outside.
_BOXES = values(
    [
        [0, 1.25, 0.75, 5.5, 4.25],
        [1, 2.5, 2.5, 2.75, 2.625],
        [1, -2.25, -1.5, 3.75, 2.5],
        [0, 4.5, 2.25, 9.75, 7.5],
        [1, 20.25, 20.5, 24.75, 23.5],
    ]
)


_ROI = [
    Case(
        "roi_align",
        f"{mode}_{'aligned' if aligned else 'plain'}_{ratio or 'adaptive'}",
        (normal(2, 3, 6, 7), _BOXES),
        {"output_size": (2, 3), "aligned": aligned, "sampling_ratio": ratio, "mode": mode},
        reason="inside, over the borders and outside",
        reduction=36,
        condition=8.0,  # as for grid_sample: the places are larger than the weights taken from them
    )
    for mode in ("avg", "max")
    for aligned in (False, True)
    for ratio in (0, 1, 2)
]
_ROI += [
    Case(
        "roi_align",
        "scaled",
        (normal(2, 2, 5, 5), values([[1, 3.0, 1.5, 14.0, 17.5], [0, 0.5, 0.0, 7.0, 9.0]])),
        {"output_size": 3, "spatial_scale": 0.25, "aligned": True},
        reason="boxes in pixels of a larger image",
        reduction=16,
        condition=8.0,
    ),
    Case(
        "roi_align",
        "empty_box",
        (normal(1, 2, 4, 4), values([[0, 3, 3, 1, 1]])),
        {"output_size": 2, "aligned": True},
        "no samples",
    ),
    Case(
        "roi_align",
        "one_channel",
        (normal(1, 1, 4, 4), values([[0, 0.25, 0.5, 3, 3]])),
        {"output_size": 2},
        "no copy of the image",
        4,
    ),
    Case(
        "roi_align",
        "one_pixel",
        (normal(1, 2, 1, 1), values([[0, 0.25, -0.5, 1, 1]])),
        {"output_size": 2, "sampling_ratio": 2},
        "channels that lie apart in memory and next to each other",
        4,
        8.0,
    ),
    Case(
        "roi_align",
        "one_box",
        (normal(2, 4, 3, 2), values([[1, 0.25, 0.5, 1.5, 2]])),
        {"output_size": 2, "sampling_ratio": 1},
        "one box on the last of several images",
        4,
    ),
    Case(
        "roi_align",
        "no_boxes",
        (normal(1, 2, 4, 4), normal(0, 5)),
        {"output_size": 2},
        "nothing to pool",
        gradient=False,
    ),
    Case(
        "roi_align",
        "no_images",
        (normal(0, 2, 4, 4), normal(0, 5)),
        {"output_size": 2},
        "a batch of nothing",
        gradient=False,
    ),
    Case(
        "roi_align",
        "no_channels",
        (normal(1, 0, 4, 4), values([[0, 0, 0, 2, 2]])),
        {"output_size": 2},
        "nothing",
        gradient=False,
    ),
]


def _shuffle_cases(op, option, number, shapes):
    for name, shape in shapes.items():
        yield Case(op, name, (normal(*shape),), {option: number}, "each rank")
        last = (shape[0], *shape[2:], shape[1])
        yield Case(
            op,
            f"{name}_last",
            (normal(*last),),
            {option: number, "layout": "channels_last"},
            "each rank, channels last",
        )


_SHUFFLE = [
    *_shuffle_cases(
        "pixel_shuffle", "factor", 2, {"rank2": (2, 12, 3, 2), "rank1": (2, 6, 3), "rank3": (1, 16, 2, 1, 3)}
    ),
    *_shuffle_cases(
        "pixel_unshuffle", "factor", 3, {"rank2": (2, 2, 6, 3), "rank1": (2, 2, 9), "rank3": (1, 1, 3, 6, 3)}
    ),
    *_shuffle_cases(
        "channel_shuffle", "groups", 3, {"rank2": (2, 6, 3, 2), "rank1": (1, 9, 2), "rank3": (1, 6, 2, 1, 3)}
    ),
    Case("pixel_shuffle", "factor3", (normal(1, 18, 2, 3),), {"factor": 3}, "a larger factor"),
    Case("pixel_shuffle", "factor1", (normal(1, 3, 2, 3),), {"factor": 1}, "a copy"),
    Case(
        "pixel_shuffle",
        "int64",
        (integers(-9, 9, 2, 8, 3, 2),),
        {"factor": 2},
        "any dtype",
        gradient=False,
        dtypes=(_INT64,),
    ),
    Case(
        "pixel_unshuffle",
        "bool",
        (fixed([[[[0, 1], [1, 0]]]], bool),),
        {"factor": 2},
        "any dtype",
        gradient=False,
        dtypes=(_BOOL,),
    ),
    Case(
        "channel_shuffle",
        "int8",
        (fixed([[[1], [2], [3], [4]]], np.int8),),
        {"groups": 2},
        "any",
        gradient=False,
        dtypes=(_INT8,),
    ),
    Case("pixel_shuffle", "empty", (normal(0, 4, 2, 3),), {"factor": 2}, "a batch of nothing", gradient=False),
    Case("pixel_unshuffle", "empty", (normal(2, 3, 0, 4),), {"factor": 2}, "an extent of 0", gradient=False),
    Case("channel_shuffle", "empty", (normal(2, 0, 3),), {"groups": 2}, "channels of nothing", gradient=False),
]

_LOOKUP = [
    Case("embedding", "rank2", (integers(0, 7, 3, 4), normal(7, 5)), reason="repeated rows", reduction=12),
    Case("embedding", "scalar", (fixed(2), normal(4, 3)), reason="one index without axes"),
    Case("embedding", "int32", (fixed([3, 3, 0], np.int32), normal(4, 3)), reason="small indices", reduction=3),
    Case(
        "embedding", "uint64", (fixed([3, 1], np.uint64), normal(4, 1)), reason="unsigned indices, rows of one number"
    ),
    Case(
        "embedding",
        "padding",
        (fixed([1, 2, 1, 0]), normal(3, 2)),
        {"padding_index": 1},
        "no effect on the result",
        gradient=False,
    ),
    Case("embedding", "empty", (integers(0, 1, 0, 3), normal(4, 2)), reason="no indices", gradient=False),
    Case("embedding", "no_rows", (integers(0, 1, 0), normal(0, 2)), reason="an empty table", gradient=False),
    Case("embedding", "no_columns", (integers(0, 3, 2), normal(3, 0)), reason="empty rows", gradient=False),
    Case("one_hot", "rank2", (integers(0, 5, 3, 4),), {"num_classes": 5}, "labels", gradient=False, dtypes=(_INT64,)),
    Case(
        "one_hot",
        "int8",
        (fixed([3, 0, 2], np.int8),),
        {"num_classes": 300},
        "more classes than the dtype",
        1,
        1.0,
        False,
        (_INT8,),
    ),
    Case("one_hot", "scalar", (fixed(1),), {"num_classes": 2}, "no axes", gradient=False, dtypes=(_INT64,)),
    Case("one_hot", "empty", (integers(0, 5, 0, 2),), {"num_classes": 3}, "nothing", gradient=False, dtypes=(_INT64,)),
]

CASES = [*_GRID, *_AFFINE, *_RESIZE, *_ROI, *_SHUFFLE, *_LOOKUP]
