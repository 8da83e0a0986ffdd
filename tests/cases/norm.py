"""Cases of the norm family."""

from tests.support import Case, float32_beside_half, normal, uniform

_LAST = {"layout": "channels_last"}
_STATS = {"return_stats": True}


def _given(c):
    """mean and variance, weight and bias of c channels."""
    return normal(c), uniform(0.5, 2, c), uniform(0.5, 2, c), normal(c)


def _beside(*draws):
    return tuple(None if d is None else float32_beside_half(d) for d in draws)


def _state(c):
    """weight, bias and running statistics of c channels."""
    return uniform(0.5, 2, c), normal(c), normal(c), uniform(0.5, 2, c)


_BATCH = [
    Case("batch_norm", "image", (normal(2, 3, 4, 5), *_given(3)), reason="an image"),
    Case("batch_norm", "last", (normal(2, 4, 5, 3), *_given(3)), _LAST, "channels-last"),
    Case("batch_norm", "vector", (normal(5, 7), *_given(7)), reason="no spatial axes"),
    Case("batch_norm", "vector-last", (normal(5, 7), *_given(7)), _LAST, "no spatial axes: the layouts agree"),
    Case("batch_norm", "line", (normal(2, 3, 7), *_given(3)), reason="one spatial axis"),
    Case("batch_norm", "volume", (normal(2, 3, 2, 3, 2), *_given(3)), {"eps": 0.3}, "three spatial axes, a large eps"),
    Case(
        "batch_norm",
        "plain",
        (normal(2, 3, 4), normal(3), uniform(0.5, 2, 3)),
        {"eps": 0.0},
        "no weight, no bias, no eps",
    ),
    Case(
        "batch_norm", "bias", (normal(2, 3, 4), normal(3), uniform(0.5, 2, 3), None, normal(3)), reason="a bias alone"
    ),
    Case(
        "batch_norm",
        "residual",
        (normal(2, 3, 4), *_given(3), normal(2, 3, 4)),
        {"activation": "relu"},
        "the end of a block",
    ),
    Case(
        "batch_norm",
        "gelu",
        (normal(2, 4, 3), *_given(3), normal(2, 4, 3)),
        _LAST | {"activation": "gelu"},
        "a curved activation",
    ),
    Case(
        "batch_norm",
        "activation",
        (normal(2, 3, 4), normal(3), uniform(0.5, 2, 3)),
        {"activation": "gelu"},
        "no parameters",
    ),
    Case("batch_norm", "float32", (normal(2, 3, 4), *_beside(*_given(3))), reason="float32 parameters beside a half x"),
    Case("batch_norm", "empty", (normal(0, 3, 4), *_given(3)), reason="a batch of nothing", gradient=False),
    Case("batch_norm", "no-channels", (normal(2, 0, 4), *_given(0)), reason="no channels", gradient=False),
    Case("batch_norm_train", "image", (normal(2, 3, 4, 5), *_state(3)), reason="an image", reduction=40),
    Case("batch_norm_train", "last", (normal(2, 4, 5, 3), *_state(3)), _LAST | {"momentum": 0.3}, "channels-last", 40),
    Case("batch_norm_train", "vector", (normal(11, 7), *_state(7)), {"momentum": 1.0}, "no spatial axes", 11),
    Case(
        "batch_norm_train",
        "line",
        (normal(3, 3, 7), *_state(3)),
        {"momentum": 0.0},
        "one spatial axis; running ones stay",
        21,
    ),
    Case("batch_norm_train", "volume", (normal(2, 3, 2, 3, 2), *_state(3)), {"eps": 0.3}, "three spatial axes", 24),
    Case("batch_norm_train", "plain", (normal(2, 3, 7),), {"eps": 0.0}, "x alone", 14),
    Case("batch_norm_train", "weight", (normal(2, 3, 7), normal(3)), reason="a weight alone", reduction=14),
    Case(
        "batch_norm_train",
        "var",
        (normal(2, 3, 7), None, None, None, uniform(0.5, 2, 3)),
        reason="a running variance alone",
        reduction=14,
    ),
    Case("batch_norm_train", "one-sample", (normal(1, 3, 9), *_state(3)), reason="a batch of one", reduction=9),
    Case("batch_norm_train", "one-channel", (normal(4, 1, 5), *_state(1)), reason="one channel", reduction=20),
    Case(
        "batch_norm_train",
        "residual",
        (normal(2, 3, 7), *_state(3), normal(2, 3, 7)),
        {"activation": "relu"},
        "the end of a block",
        14,
    ),
    Case(
        "batch_norm_train",
        "gelu",
        (normal(2, 7, 3), *_state(3)),
        _LAST | {"activation": "gelu"},
        "a curved activation",
        14,
    ),
    Case("batch_norm_train", "wide", (normal(2, 3, 134), *_state(134)), _LAST, "more channels than multiprocessors", 6),
    Case(
        "batch_norm_train",
        "wider",
        (normal(2, 3, 268), *_state(268)),
        _LAST | {"activation": "relu"},
        "twice as many",
        6,
    ),
    Case("batch_norm_train", "long", (normal(2, 263, 5), *_state(5)), _LAST, "many rows of few channels", 526),
    Case(
        "batch_norm_train",
        "float32",
        (normal(3, 3, 4), *_beside(*_state(3))),
        reason="float32 parameters beside a half x",
        reduction=12,
    ),
    Case("batch_norm_train", "empty", (normal(0, 3, 4), *_state(3)), reason="a batch of nothing", gradient=False),
    Case("batch_norm_train", "no-channels", (normal(2, 0, 4), *_state(0)), reason="no channels", gradient=False),
]

_LAYER = [
    Case(
        "layer_norm", "rows", (normal(3, 4, 11), uniform(0.5, 2, 11), normal(11)), reason="the last axis", reduction=11
    ),
    Case(
        "layer_norm",
        "even",
        (normal(3, 16), uniform(0.5, 2, 16), normal(16)),
        reason="rows of whole vectors",
        reduction=16,
    ),
    Case(
        "layer_norm",
        "long",
        (normal(1, 16392), normal(16392)),
        reason="a row for more than a block",
        reduction=16392,
        gradient=False,
    ),
    Case(
        "layer_norm",
        "stats",
        (normal(3, 11), normal(11), normal(11)),
        {"return_stats": True},
        "with its statistics",
        11,
    ),
    Case(
        "layer_norm",
        "first",
        (normal(9, 5), normal(9), normal(9)),
        {"axis": 0, "return_stats": True},
        "an axis that is not last",
        9,
    ),
    Case(
        "layer_norm",
        "two",
        (normal(3, 4, 5), normal(4, 5), normal(4, 5)),
        {"axis": (-1, 1)},
        "two axes in any order",
        20,
    ),
    Case(
        "layer_norm",
        "apart",
        (normal(4, 3, 5), normal(4, 5), normal(4, 5)),
        {"axis": (0, 2)},
        "axes with another between",
        20,
    ),
    Case("layer_norm", "all", (normal(4, 5), normal(4, 5), normal(4, 5)), {"axis": (0, 1)}, "every axis", 20),
    Case("layer_norm", "vector", (normal(13),), {"eps": 0.1}, "one axis, no parameters", 13),
    Case("layer_norm", "weight", (normal(3, 7), normal(7)), reason="a weight alone", reduction=7),
    Case("layer_norm", "bias", (normal(3, 7), None, normal(7)), reason="a bias alone", reduction=7),
    Case("layer_norm", "single", (normal(3, 1), normal(1), normal(1)), reason="one value has variance 0"),
    Case(
        "layer_norm",
        "ones",
        (normal(3, 1, 7), normal(1, 7), normal(1, 7)),
        {"axis": (1, 2)},
        "an axis of extent 1 among them",
        7,
    ),
    Case(
        "layer_norm",
        "float32",
        (normal(3, 7), *_beside(normal(7), normal(7))),
        {"return_stats": True},
        "float32 parameters",
        7,
    ),
    Case(
        "layer_norm", "empty", (normal(0, 5), normal(5), normal(5)), {"return_stats": True}, "no rows", gradient=False
    ),
    Case(
        "layer_norm",
        "nothing",
        (normal(3, 0), normal(0), normal(0)),
        {"return_stats": True},
        "rows of nothing",
        gradient=False,
    ),
    Case("rms_norm", "rows", (normal(3, 4, 11), uniform(0.5, 2, 11)), reason="the last axis", reduction=11),
    Case("rms_norm", "stats", (normal(3, 11), normal(11)), {"return_stats": True}, "with its statistic", 11),
    Case(
        "rms_norm",
        "apart",
        (normal(4, 3, 5), normal(4, 5)),
        {"axis": (0, 2), "eps": 0.1},
        "axes with another between",
        20,
    ),
    Case("rms_norm", "plain", (normal(3, 7),), {"eps": 0.0}, "no weight", 7),
    Case("rms_norm", "float32", (normal(3, 7), *_beside(normal(7))), {"return_stats": True}, "a float32 weight", 7),
    Case("rms_norm", "empty", (normal(0, 5), normal(5)), {"return_stats": True}, "no rows", gradient=False),
    Case("rms_norm", "nothing", (normal(3, 0), normal(0)), {"return_stats": True}, "rows of nothing", gradient=False),
    Case(
        "add_layer_norm",
        "rows",
        (normal(3, 11), normal(3, 11), normal(11), normal(11)),
        reason="the last axis",
        reduction=11,
    ),
    Case(
        "add_layer_norm",
        "first",
        (normal(9, 4), normal(9, 4), normal(9), None),
        {"axis": 0},
        "an axis that is not last",
        9,
    ),
    Case("add_layer_norm", "plain", (normal(2, 3, 7), normal(2, 3, 7)), {"axis": (1, 2)}, "no parameters", 21),
    Case(
        "add_layer_norm",
        "float32",
        (normal(3, 7), normal(3, 7), *_beside(normal(7), normal(7))),
        reason="float32 parameters",
        reduction=7,
    ),
    Case(
        "add_layer_norm", "empty", (normal(0, 5), normal(0, 5), normal(5), normal(5)), reason="no rows", gradient=False
    ),
    Case("add_rms_norm", "rows", (normal(3, 11), normal(3, 11), normal(11)), reason="the last axis", reduction=11),
    Case("add_rms_norm", "first", (normal(9, 4), normal(9, 4), normal(9)), {"axis": 0}, "an axis that is not last", 9),
    Case("add_rms_norm", "plain", (normal(2, 3, 7), normal(2, 3, 7)), {"eps": 0.1}, "no weight", 7),
    Case("add_rms_norm", "empty", (normal(0, 5), normal(0, 5), normal(5)), reason="no rows", gradient=False),
]

_GROUP = [
    Case("group_norm", "image", (normal(2, 6, 3, 2), normal(6), normal(6)), {"num_groups": 2}, "an image", 18),
    Case(
        "group_norm", "last", (normal(2, 3, 2, 6), normal(6), normal(6)), _LAST | {"num_groups": 3}, "channels-last", 12
    ),
    Case("group_norm", "vector", (normal(3, 14), normal(14), normal(14)), {"num_groups": 2}, "no spatial axes", 7),
    Case(
        "group_norm", "volume", (normal(2, 4, 2, 3, 2), normal(4), normal(4)), {"num_groups": 1}, "one group of all", 48
    ),
    Case(
        "group_norm", "line", (normal(2, 3, 7), normal(3), normal(3)), {"num_groups": 3}, "a group for each channel", 7
    ),
    Case("group_norm", "plain", (normal(2, 4, 5),), {"num_groups": 2, "eps": 0.1}, "no parameters", 10),
    Case("group_norm", "bias", (normal(2, 4, 5), None, normal(4)), {"num_groups": 2}, "a bias alone", 10),
    Case(
        "group_norm",
        "relu",
        (normal(2, 4, 5), normal(4), normal(4)),
        {"num_groups": 2, "activation": "relu"},
        "an activation",
        10,
    ),
    Case(
        "group_norm",
        "gelu",
        (normal(2, 5, 4), None, None),
        _LAST | {"num_groups": 2, "activation": "gelu"},
        "a curved one",
        10,
    ),
    Case(
        "group_norm",
        "single",
        (normal(2, 3), normal(3), normal(3)),
        {"num_groups": 3},
        "one value has variance 0: the bias",
    ),
    Case(
        "group_norm",
        "float32",
        (normal(2, 4, 5), *_beside(normal(4), normal(4))),
        {"num_groups": 2},
        "float32 parameters",
        10,
    ),
    Case(
        "group_norm",
        "empty",
        (normal(0, 4, 5), normal(4), normal(4)),
        {"num_groups": 2},
        "a batch of nothing",
        gradient=False,
    ),
    Case(
        "group_norm", "no-space", (normal(2, 4, 0), normal(4), normal(4)), {"num_groups": 2}, "no space", gradient=False
    ),
    Case(
        "group_norm",
        "stats",
        (normal(2, 6, 5), normal(6), normal(6)),
        {"num_groups": 2} | _STATS,
        "with its statistics",
        15,
    ),
    Case(
        "group_norm",
        "stats-last",
        (normal(3, 5, 6), normal(6)),
        {"num_groups": 3} | _STATS | _LAST,
        "with its statistics",
        10,
    ),
    Case(
        "group_norm",
        "stats-wide",
        (normal(2, 3, 24),),
        {"num_groups": 3} | _STATS | _LAST,
        "groups of whole vectors",
        24,
    ),
    Case(
        "group_norm",
        "stats-vector",
        (normal(3, 14), None, normal(14)),
        {"num_groups": 2} | _STATS,
        "no spatial axes",
        7,
    ),
    Case(
        "group_norm",
        "stats-float32",
        (normal(2, 4, 5), *_beside(normal(4), normal(4))),
        {"num_groups": 2} | _STATS,
        "float32 parameters",
        10,
    ),
    Case(
        "group_norm",
        "stats-empty",
        (normal(0, 4, 5), normal(4)),
        {"num_groups": 2} | _STATS,
        "a batch of nothing",
        gradient=False,
    ),
    Case(
        "group_norm",
        "stats-no-channels",
        (normal(2, 0, 5), normal(0)),
        {"num_groups": 1} | _STATS,
        "no channels",
        gradient=False,
    ),
    Case(
        "group_norm",
        "stats-no-space",
        (normal(2, 4, 0), normal(4)),
        {"num_groups": 2} | _STATS,
        "mean and variance 0",
        gradient=False,
    ),
    Case("instance_norm", "image", (normal(2, 3, 4, 5), normal(3), normal(3)), reason="an image", reduction=20),
    Case("instance_norm", "last", (normal(2, 4, 5, 3), normal(3), normal(3)), _LAST, "channels-last", 20),
    Case("instance_norm", "line", (normal(2, 3, 7), normal(3)), {"eps": 0.1}, "one spatial axis, a weight alone", 7),
    Case("instance_norm", "volume", (normal(2, 3, 2, 3, 2),), reason="three spatial axes, no parameters", reduction=12),
    Case(
        "instance_norm",
        "wide",
        (normal(2, 7, 136), normal(136), normal(136)),
        _LAST,
        "more statistics than multiprocessors",
        7,
    ),
    Case("instance_norm", "long", (normal(3, 137, 5), normal(5), normal(5)), _LAST, "many rows of few channels", 411),
    Case(
        "instance_norm",
        "float32",
        (normal(2, 3, 7), *_beside(normal(3), normal(3))),
        reason="float32 parameters",
        reduction=7,
    ),
    Case("instance_norm", "stats", (normal(2, 3, 7), normal(3), normal(3)), _STATS, "with its statistics", 7),
    Case(
        "instance_norm", "stats-last", (normal(2, 7, 9), normal(9), normal(9)), _STATS | _LAST, "with its statistics", 7
    ),
    Case("instance_norm", "stats-empty", (normal(0, 3, 4),), _STATS, "a batch of nothing", gradient=False),
    Case("instance_norm", "stats-no-channels", (normal(2, 0, 4),), _STATS, "no channels", gradient=False),
    Case(
        "instance_norm", "empty", (normal(0, 3, 4), normal(3), normal(3)), reason="a batch of nothing", gradient=False
    ),
    Case("instance_norm", "no-channels", (normal(2, 0, 4), normal(0), normal(0)), reason="no channels", gradient=False),
]

_STRONG = {"alpha": 2.0, "beta": 1.3, "k": 2.0}
_LOCAL = [
    Case("local_response_norm", "image", (normal(2, 7, 3, 2),), {"size": 5}, "an image, the usual numbers", 5),
    Case("local_response_norm", "strong", (normal(2, 7, 3),), {"size": 3, **_STRONG}, "numbers that matter", 3),
    Case("local_response_norm", "even", (normal(2, 7, 3),), {"size": 4, **_STRONG}, "an even window leans down", 4),
    Case("local_response_norm", "last", (normal(2, 3, 2, 7),), {"size": 2, **_STRONG, **_LAST}, "channels-last", 2),
    Case(
        "local_response_norm",
        "one",
        (normal(2, 7),),
        {"size": 1, **_STRONG, "beta": 0.5},
        "each by itself, a square root",
        1,
    ),
    Case(
        "local_response_norm",
        "wide",
        (normal(2, 3, 4),),
        {"size": 9, **_STRONG, "beta": 1.0},
        "wider than the channels",
        3,
    ),
    Case(
        "local_response_norm",
        "volume",
        (normal(2, 3, 2, 1, 2),),
        {"size": 3, **_STRONG, "beta": 0.75},
        "three spatial axes",
        3,
    ),
    Case("local_response_norm", "empty", (normal(0, 3, 4),), {"size": 3}, "a batch of nothing", gradient=False),
    Case("local_response_norm", "no-channels", (normal(2, 0, 4),), {"size": 3}, "no channels", gradient=False),
]

CASES = [*_BATCH, *_LAYER, *_GROUP, *_LOCAL]
