"""Cases of the conv family."""

from tests.support import Case

CASES: list[Case] = []
