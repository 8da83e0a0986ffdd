"""Cases of the attention family."""

from tests.support import Case

CASES: list[Case] = []
