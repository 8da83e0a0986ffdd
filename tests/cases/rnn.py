"""Cases of the rnn family."""

from tests.support import Case

CASES: list[Case] = []
