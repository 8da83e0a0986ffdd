"""Cases of the softmax family."""

from tests.support import Case, normal

CASES = [
    case
    for op in ("softmax", "log_softmax", "softmin")
    for case in (
        Case(op, "last", (normal(3, 5, 7, scale=3),), reason="rows of a prime length", reduction=7),
        Case(op, "first", (normal(5, 3),), {"axis": 0}, "columns", reduction=5),
        Case(op, "channels", (normal(2, 11, 3, 5, scale=3),), {"axis": 1}, "a segmentation map", reduction=11),
        Case(op, "negative", (normal(2, 4, 3),), {"axis": -2}, "an axis from the end", reduction=4),
        Case(op, "one", (normal(4, 1),), reason="rows of one element"),
        Case(op, "scalar", (normal(),), reason="no axes at all"),
        Case(op, "map", (normal(2, 3, 4, 4, scale=3),), {"axis": 1}, "a map of whole vectors", 3),
        Case(
            op,
            "long",
            (normal(2, 4104, scale=3),),
            reason="rows for more than a block's registers",
            reduction=4104,
            gradient=False,
        ),
        Case(op, "empty", (normal(0, 3),), reason="a batch of nothing", gradient=False),
        Case(op, "nothing", (normal(3, 0),), reason="rows of nothing", gradient=False),
    )
]
