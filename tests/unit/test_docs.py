"""Paths and links that the documentation names exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOPS = (
    *(
        "agentlink",
        "base",
        "benchmarks",
        "checkpoints",
        "console",
        "container_mgr",
        "controller",
        "docs",
    ),
    *("examples", "measure", "ocs_driver", "pki", "probe", "protos", "readings", "recorder"),
    *("scheduler", "sitefile", "testbed", "tests"),
)
NOT_OURS = {"out/", "dist/", "train.yaml", "topology/tree"}
"""What commands make, what users write, and a plug-in of Slurm."""
CHANGES = (
    "a REST resource",
    "a kind of records",
    "a reading",
    "an endpoint of another kind",
    "a phase of the transaction",
    "a southbound for aggregators",
)
"""Rows that the table of what to change has at least."""
_CODE = re.compile(r"`([\w.{},/-]+)(?:::\w+)?`")
_FILE = re.compile(r".+\.(?:py|md|yaml|js|proto|toml)")
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def expanded(path: str) -> list[str]:
    """Return the paths that one with lists of alternatives (``a/{b,c}.py``) stands for."""
    found = re.search(r"\{([^{}]*)\}", path)
    if found is None:
        return [path]
    before, after = path[: found.start()], path[found.end() :]
    return [p for one in found[1].split(",") for p in expanded(f"{before}{one}{after}")]


@cache
def endings() -> frozenset[str]:
    """Return by what names files and folders of the repository go: the ends of their paths."""
    paths = [path for path in ROOT.iterdir() if path.is_file()]
    for top in TOPS:
        paths += [ROOT / top, *(ROOT / top).rglob("*")]
    parts = [p.relative_to(ROOT).parts for p in paths if "__pycache__" not in p.parts]
    return frozenset("/".join(names[i:]) for names in parts for i in range(len(names)))


def paths_in(text: str) -> list[str]:
    """Return the paths in backticks: files by their suffix, folders by a slash at their end, and
    what else has slashes and begins with a folder of the repository. Capitals are placeholders.
    """
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    paths = (path for match in _CODE.findall(text) for path in expanded(match))
    return [
        path
        for path in paths
        if not path.startswith("/")
        and (
            _FILE.fullmatch(path)
            or path.endswith("/")
            or ("/" in path and path.islower() and path.split("/")[0] in endings())
        )
    ]


def missing_in(text: str) -> list[str]:
    """Return the paths of a text that are no end of a path of the repository."""
    return [p for p in paths_in(text) if p.rstrip("/") not in endings() and p not in NOT_OURS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_and_link_of_a_page_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert missing_in(text) == []
    assert [link for link in _LINK.findall(text) if not (page.parent / link).exists()] == []


def test_a_path_is_found_by_its_end() -> None:
    assert missing_in("`controller/daemon/compose.py`, `daemon/{compose,start}.py`, `state/`") == []
    gone = "`daemon/{compose,gone}.py`, `gone/`, `docs/gone`, `unit/gone.py::test_it`"
    assert missing_in(gone) == ["daemon/gone.py", "gone/", "docs/gone", "unit/gone.py"]
    assert missing_in("`/etc/lightloom/site.yaml`, `measurement/m7`, `jobs/NAME`, `a.b`") == []


def test_what_to_change_is_said_for_each_kind_of_change_with_the_files() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    part = page.split("\n## To change something\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split("|") for line in part.splitlines() if line.startswith("| a")]
    assert [w for w in CHANGES if not any(what.startswith(w) for what, *_ in rows)] == []
    assert [what for what, *files in rows if not paths_in(" ".join(files))] == []
    assert missing_in(part) == []


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "adr"
    listed = set(_LINK.findall((folder / "README.md").read_text(encoding="utf-8")))
    assert {path.name for path in folder.glob("0*.md")} == listed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
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
