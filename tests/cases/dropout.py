"""Cases of the dropout family."""

from tests.support import Case

CASES: list[Case] = []
