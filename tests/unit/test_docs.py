"""Paths and links that the documentation names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TOPS = (
    *(
        "agentlink",
        "benchmarks",
        "console",
        "container_mgr",
        "controller",
        "examples",
        "ocs_driver",
    ),
    *("measure", "pki", "probe", "protos", "recorder", "scheduler", "sitefile", "testbed", "tests"),
)
_PATH = re.compile(rf"`((?:{'|'.join(TOPS)}|unit|contract|integration)/[\w./-]+\.\w+)(?:::\w+)?`")
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_and_link_of_a_page_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    paths = {
        match: (ROOT / match if match.split("/")[0] in TOPS else ROOT / "tests" / match)
        for match in _PATH.findall(text)
    }
    links = {match: page.parent / match for match in _LINK.findall(text)}
    missing = [name for name, path in (paths | links).items() if not path.exists()]
    assert not missing


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "adr"
    listed = set(_LINK.findall((folder / "README.md").read_text(encoding="utf-8")))
    assert {path.name for path in folder.glob("0*.md")} == listed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_section_is_empty(page: Path) -> None:
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.strip()]
    code = False
    heads: list[int] = []
    for line in lines:
        code ^= line.startswith("```")
        heads.append(0 if code or not line.startswith("#") else len(line) - len(line.lstrip("#")))
    ends = zip(heads, (*heads[1:], 1), lines, strict=True)
    assert [line for head, after, line in ends if head > 1 and 0 < after <= head] == []


def test_no_key_of_the_console_is_explained_twice() -> None:
    text = (ROOT / "docs" / "console.md").read_text(encoding="utf-8")
    keys = re.findall(r"^\| [^|]+ \| `(g .)` \|", text, re.M)
    assert keys
    assert len(keys) == len(set(keys))
