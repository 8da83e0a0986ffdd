"""The Python blocks of the guides run: of each page in order, in one namespace."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

_DOCS = Path(__file__).parents[1] / "docs"
_PAGES = [_DOCS / "index.md", _DOCS / "getting_started.md", *sorted((_DOCS / "howto").glob("*.md"))]
_BLOCK = re.compile(r"^```(?:python|\{code-block\} python\n:class: needs-(\w+)\n)\n(.*?)^```$", re.M | re.S)


def blocks(text):
    """Code and the number of its first line, of blocks that need neither a GPU nor a library that is missing."""
    for match in _BLOCK.finditer(text):
        if match[1] is None or (match[1] != "gpu" and find_spec(match[1])):
            yield match[2], text.count("\n", 0, match.start(2))


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_blocks_of_the_guides_run(page, own_caches):
    text = page.read_text(encoding="utf-8")
    found = list(blocks(text))
    begun = re.findall(r"^```(?:python|\{code-block\} python)$", text, re.M)
    assert len(_BLOCK.findall(text)) == len(begun), "a block has another form"
    namespace = {"__name__": "guide"}
    for code, line in found:
        exec(compile("\n" * line + code, str(page), "exec"), namespace)  # noqa: S102 - the text of the guides


def test_guides_have_blocks_that_run():
    assert sum(len(list(blocks(page.read_text(encoding="utf-8")))) for page in _PAGES) > 12
