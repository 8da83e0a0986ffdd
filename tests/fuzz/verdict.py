"""What came of a call."""

from __future__ import annotations

import re
from typing import NamedTuple

GOOD = ("ok", "refused", "unverified")  # every other verdict is a failure
_WORDS = 5  # of a message that tell what is refused: the error, the function, the argument, and what it is


class Verdict(NamedTuple):
    """What came of a call: the kind, what there is to say of it, the algorithm that was named."""

    kind: str
    text: str = ""
    algorithm: str | None = None

    @property
    def good(self) -> bool:
        return self.kind in GOOD

    @property
    def gist(self) -> tuple[str, ...]:
        """What a simpler call must fail alike in: the kind, and how the message (of a traceback, the error at its end)
        begins, whatever its numbers."""
        last = self.text.strip().splitlines()[-1:] if self.text.startswith("Traceback") else [self.text]
        return self.kind, *re.sub(r"\d[\d,.]*", "#", " ".join(last)).split()[:_WORDS]


class Failed(Exception):  # noqa: N818 - a verdict on its way out
    """A verdict that ends the trial."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.verdict = Verdict(kind, text)
