"""Cases of the dropout family."""

from tests.support import Case, normal


def _fused(*shape):
    return normal(*shape), normal(shape[-1]), normal(*shape)


CASES = [
    Case("dropout", "image", (normal(2, 3, 5, 7),), {"seed": 1}),
    Case(
        "dropout",
        "offset",
        (normal(3, 7),),
        {"seed": 2, "p": 0.3, "offset": 5},
        "in the middle of a block of four numbers",
    ),
    Case("dropout", "large", (normal(3, 7),), {"seed": 2**64 - 1, "p": 0.3, "offset": 2**64 - 7}, "both at their end"),
    Case("dropout", "keep", (normal(11),), {"seed": 3, "p": 0.0}, "nothing is dropped"),
    Case("dropout", "drop", (normal(11),), {"seed": 3, "p": 1.0}, "everything is dropped"),
    Case("dropout", "scalar", (normal(),), {"seed": 4, "p": 0.1}, "no axes at all"),
    Case("dropout", "empty", (normal(0, 3),), {"seed": 4}, "a batch of nothing", gradient=False),
    Case("bias_dropout_add", "tokens", _fused(2, 5, 6), {"seed": 5, "p": 0.2}, reduction=10),
    Case(
        "bias_dropout_add",
        "offset",
        _fused(3, 7),
        {"seed": 6, "p": 0.5, "offset": 2**34 + 3},
        "a counter above 32 bits",
        reduction=3,
    ),
    Case("bias_dropout_add", "vector", _fused(6), {"seed": 7, "p": 0.0}, "nothing is dropped"),
    Case("bias_dropout_add", "empty", _fused(0, 6), {"seed": 7, "p": 0.1}, "a batch of nothing"),
]
