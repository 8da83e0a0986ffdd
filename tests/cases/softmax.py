"""Cases of the softmax family."""

from tests.support import Case

CASES: list[Case] = []
