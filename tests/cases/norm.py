"""Cases of the norm family."""

from tests.support import Case

CASES: list[Case] = []
