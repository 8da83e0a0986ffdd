"""Cases of the activation family."""

from tests.support import Case, normal, uniform


def _each(op, **options):
    """What every elementwise activation is tried on."""
    wide = uniform(-9, 9, 3, 5, 7)  # from saturated to saturated, with the bends between
    return [
        Case(op, "rank3", (wide,), options, "every part of the curve"),
        Case(op, "scalar", (uniform(-2, 2),), options, "no axes at all"),
        Case(op, "empty", (normal(0, 3),), options, "a batch of nothing", gradient=False),
        Case(op, "one", (uniform(-2, 2, 1, 1),), options, "a single element"),
    ]


_PLAIN = [
    "relu",
    "relu6",
    "clipped_relu",
    "leaky_relu",
    "elu",
    "selu",
    "celu",
    "sigmoid",
    "hard_sigmoid",
    "log_sigmoid",
    "tanh",
    "hard_tanh",
    "softplus",
    "softsign",
    "gelu",
    "silu",
    "hard_swish",
    "mish",
]

CASES = [
    Case("relu", "rank4", (normal(2, 3, 5, 7),), reason="an image"),
    *(case for op in _PLAIN for case in _each(op)),
    *_each("threshold", threshold=0.5, value=-2.0),
    Case("clipped_relu", "max", (uniform(-3, 3, 31),), {"max": 1.5}, "another ceiling"),
    Case(
        "leaky_relu", "steep", (normal(31),), {"negative_slope": 2.5}, "a slope above 1, where a maximum would be wrong"
    ),
    Case("leaky_relu", "negative", (normal(31),), {"negative_slope": -0.5}, "the absolute value, nearly"),
    Case("elu", "alpha", (normal(31, scale=3),), {"alpha": 0.3}, "a kink at 0"),
    Case("elu", "negative", (normal(31),), {"alpha": -0.3}, "a falling branch"),
    Case("selu", "parameters", (normal(31, scale=3),), {"alpha": 0.7, "gamma": 1.4}),
    Case("celu", "alpha", (normal(31, scale=3),), {"alpha": 0.25}, "a sharp bend"),
    Case("celu", "negative", (uniform(-2, 2, 31),), {"alpha": -1.5}, "PyTorch allows it"),
    Case("hard_sigmoid", "onnx", (normal(31, scale=3),), {"alpha": 0.2, "beta": 0.4}, "the slope of ONNX"),
    Case("hard_tanh", "bounds", (normal(31, scale=2),), {"min": -0.5, "max": 2.0}, "not symmetric"),
    Case("hard_tanh", "open", (normal(31, scale=2),), {"min": -0.5, "max": float("inf")}, "one side open"),
    Case("softplus", "beta", (normal(31, scale=3),), {"beta": 2.0, "threshold": 3.0}, "the threshold within reach"),
    Case("softplus", "negative", (normal(31, scale=3),), {"beta": -1.5}, "PyTorch allows it"),
    Case("gelu", "tanh", (uniform(-9, 9, 3, 5, 7),), {"approximate": "tanh"}),
    Case("silu", "beta", (normal(31, scale=3),), {"beta": 1.702}, "the quick form of gelu"),
    Case("prelu", "one", (normal(2, 3, 5), uniform(0.1, 0.5, 1)), reason="one slope", reduction=30),
    Case("prelu", "scalar", (normal(7), uniform(0.1, 0.5)), reason="one slope without axes", reduction=7),
    Case("prelu", "channels", (normal(2, 3, 5, 7), uniform(-1, 2, 3)), reason="a slope per channel", reduction=70),
    Case(
        "prelu",
        "square",
        (normal(4, 3, 3), uniform(-1, 2, 3)),
        reason="the weight fits the last axis too",
        reduction=12,
    ),
    Case("prelu", "rank1", (normal(5), uniform(0.1, 0.5, 5)), reason="no axis 1: by the rules of broadcasting"),
    Case(
        "prelu",
        "broadcast",
        (normal(2, 3, 5), uniform(0.1, 0.5, 3, 1)),
        reason="PyTorch's per-channel weight with axes",
        reduction=10,
    ),
    Case("prelu", "full", (normal(2, 3), uniform(0.1, 0.5, 2, 3)), reason="a slope per element"),
    Case("prelu", "empty", (normal(0, 3, 5), uniform(0.1, 0.5, 3)), reason="a batch of nothing"),
    Case("glu", "last", (normal(3, 5, 8, scale=2),)),
    Case("glu", "middle", (normal(3, 6, 5, scale=2),), {"axis": 1}, "channels"),
    Case("glu", "rank1", (normal(2),), {"axis": 0}, "the smallest"),
    Case("glu", "empty", (normal(0, 4),), reason="a batch of nothing"),
    Case("glu", "nothing", (normal(3, 0),), reason="two halves of nothing"),
    *(
        case
        for op in ("swiglu", "geglu")
        for case in (
            Case(op, "rank3", (normal(2, 3, 7, scale=2), normal(2, 3, 7))),
            Case(op, "scalar", (normal(), normal()), reason="no axes at all"),
            Case(op, "empty", (normal(0, 3), normal(0, 3)), reason="a batch of nothing"),
        )
    ),
    Case("bias_activation", "image", (normal(2, 3, 5, 7), normal(3), None), {"activation": "relu"}, reduction=70),
    Case(
        "bias_activation",
        "residual",
        (normal(2, 3, 5), normal(3), normal(2, 3, 5)),
        {"activation": "gelu"},
        reduction=10,
    ),
    Case(
        "bias_activation",
        "last",
        (normal(4, 6), normal(6), None),
        {"activation": "silu", "axis": -1},
        "channels last",
        4,
    ),
    Case("bias_activation", "none", (normal(4, 6), normal(6), normal(4, 6)), {"activation": None}, "no activation", 4),
    Case(
        "bias_activation",
        "vector",
        (normal(6), normal(6), None),
        {"activation": "tanh", "axis": 0},
        "nothing to sum over",
    ),
    Case("bias_activation", "empty", (normal(0, 3, 5), normal(3), None), {"activation": "relu"}, "a batch of nothing"),
]
