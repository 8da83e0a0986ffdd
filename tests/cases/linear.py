"""Cases of the linear family."""

from tests.support import Case

CASES: list[Case] = []
