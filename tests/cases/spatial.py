"""Cases of the spatial family."""

from tests.support import Case

CASES: list[Case] = []
