"""Cases of the pool family."""

from tests.support import Case

CASES: list[Case] = []
