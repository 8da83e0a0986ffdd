"""Cases of the activation family."""

from tests.support import Case, normal

CASES = [
    Case("relu", "rank4", (normal(2, 3, 5, 7),), reason="an image"),
    Case("relu", "empty", (normal(0, 3),), reason="a batch of nothing", gradient=False),
    Case("relu", "scalar", (normal(),), reason="no axes at all"),
]
