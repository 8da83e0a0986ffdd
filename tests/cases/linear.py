"""Cases of the linear family."""

from tests.support import Case, normal

_BIAS, _NONE = normal(4), None

CASES: list[Case] = [
    Case("linear", "plain", (normal(5, 7), normal(4, 7)), reason="rows, no bias", reduction=7),
    Case("linear", "bias", (normal(5, 7), normal(4, 7), _BIAS), reason="rows with bias", reduction=8),
    Case("linear", "one-row", (normal(7), normal(4, 7), _BIAS), reason="no leading axis", reduction=8),
    Case(
        "linear", "leading-axes", (normal(2, 3, 5, 7), normal(4, 7), _BIAS), reason="several leading axes", reduction=8
    ),
    Case("linear", "single", (normal(1, 1), normal(1, 1), normal(1)), reason="every extent 1", reduction=2),
    Case("linear", "relu", (normal(6, 7), normal(4, 7), _BIAS), {"activation": "relu"}, "an activation", reduction=8),
    Case(
        "linear",
        "gelu",
        (normal(6, 7), normal(4, 7)),
        {"activation": "gelu"},
        "an activation without bias",
        reduction=8,
    ),
    Case(
        "linear",
        "residual",
        (normal(2, 3, 7), normal(4, 7), _BIAS, normal(2, 3, 4)),
        reason="a residual, which gets a gradient of its own",
        reduction=9,
    ),
    Case(
        "linear",
        "residual-without-bias",
        (normal(3, 7), normal(4, 7), _NONE, normal(3, 4)),
        {"activation": "leaky_relu"},
        "residual and activation, bias omitted",
        reduction=9,
    ),
    Case("linear", "zero-batch", (normal(0, 7), normal(4, 7), _BIAS), reason="a batch of nothing"),
    Case("linear", "zero-rows-inside", (normal(3, 0, 7), normal(4, 7), _BIAS), reason="a leading axis of nothing"),
    Case("linear", "zero-in", (normal(5, 0), normal(4, 0), _BIAS), reason="no features: the bias alone"),
    Case("linear", "zero-out", (normal(5, 7), normal(0, 7), normal(0)), reason="no outputs"),
]
