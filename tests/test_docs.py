"""The Python blocks of the guides run: of each page in order, in one namespace."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

_DOCS = Path(__file__).parents[1] / "docs"
_CALL = _DOCS / "development" / "contributing" / "life-of-a-call.md"
_PAGES = [_DOCS / "index.md", _DOCS / "getting_started.md", *sorted((_DOCS / "howto").glob("*.md")), _CALL]
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


_ROOT = _DOCS.parent
_TEXTS = [_ROOT / "README.md", _ROOT / "CONTRIBUTING.md", *sorted(_DOCS.rglob("*.md"))]
_LINK = re.compile(r"\]\((?!https?://|#|generated_plots/)([^)#\s]+)(?:#[^)]*)?\)")
_MENTION = re.compile(r"\bdocs/[\w/-]+\.md\b")


@pytest.mark.parametrize("page", _TEXTS, ids=lambda page: str(page.relative_to(_ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
    missing = [link for link in _LINK.findall(text) if not (page.parent / link).exists()]
    assert not missing


def test_sources_mention_pages_that_exist():
    folders = ("dnnarray", "kernels", "tests", "asv_bench", "docs")
    paths = [
        path
        for folder in folders
        for path in (_ROOT / folder).rglob("*")
        if path.suffix in (".py", ".cu", ".cuh", ".md")
    ]
    mentions = {mention for path in paths for mention in _MENTION.findall(path.read_text(encoding="utf-8"))}
    assert mentions
    assert not {mention for mention in mentions if not (_ROOT / mention).exists()}


_FINDINGS = _DOCS / "development" / "findings"
_SECTIONS = ["Problem", "Cause", "Fix", "Figure", "How to verify"]
_PLACE = re.compile(r"`((?:dnnarray|kernels|tests|asv_bench|demo)/[\w/.-]+)`")


@pytest.mark.parametrize("page", sorted(_FINDINGS.glob("*/*.md")), ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_findings_have_their_sections_and_name_files_that_exist(page):
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, re.M) == _SECTIONS
    assert not _missing_places(text)


def _missing_places(text):
    return [place for place in _PLACE.findall(text) if not (_ROOT / place).exists()]


@pytest.mark.parametrize("page", sorted(_CALL.parent.glob("*.md")), ids=lambda page: page.stem)
def test_guides_for_contributors_name_files_that_exist(page):
    assert not _missing_places(page.read_text(encoding="utf-8"))


def test_each_family_of_findings_is_listed():
    index = (_FINDINGS / "index.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^([\w-]+)/\*$", index, re.M)) == sorted(
        folder.name for folder in _FINDINGS.iterdir() if folder.is_dir()
    )


@pytest.mark.parametrize(
    "page", sorted((_DOCS / "development" / "decisions").glob("2*.md")), ids=lambda page: page.stem.split("-", 3)[3]
)
def test_decisions_have_a_date_and_their_sections(page):
    text = page.read_text(encoding="utf-8")
    assert f"*Decided {page.stem[:10]}.*" in text
    assert re.findall(r"^## (.*)$", text, re.M) == ["Context", "Decision", "Reason", "Consequences"]


def test_the_map_of_kernels_describes_each_of_them(monkeypatch):
    """Its purpose, the resource that bounds it, and the module that plans it."""
    monkeypatch.syspath_prepend(_DOCS / "_extensions")
    import kernel_map

    rows = [row.split(" | ") for row in kernel_map.page().splitlines() if row.startswith("| `")]
    assert len(rows) == len(list((_ROOT / "kernels").glob("*/*.cu")))
    assert [row[0] for row in rows if not row[1].strip() or not row[2].strip() or row[4] == "`` |"] == []
    sys.modules.pop("kernel_map")
