"""Cases of the loss family."""

from tests.support import Case

CASES: list[Case] = []
