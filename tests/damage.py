"""Ways to damage a file: from what it holds, and what another file holds, to what it holds then."""

import os

DAMAGES = {
    "empty": lambda whole, other: b"",
    "truncated": lambda whole, other: whole[: len(whole) // 2],
    "less than a digest": lambda whole, other: whole[:7],
    "one byte missing": lambda whole, other: whole[:-1],
    "overwritten": lambda whole, other: os.urandom(len(whole)),
    "one bit": lambda whole, other: whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:],
    "another file": lambda whole, other: other,
}
