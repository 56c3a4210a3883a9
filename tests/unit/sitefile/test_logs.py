"""The site file's section about output, and the agent's options that follow from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from console.cli.verbs.standalone.daemons import from_site
from sitefile import SiteFileError, load_site
from sitefile.logs import LogPolicy
from tests.parts.sites import PAPER


def written(tmp_path: Path, section: dict[str, Any]) -> Path:
    document = yaml.safe_load(PAPER.read_text())
    file = tmp_path / "site.yaml"
    file.write_text(yaml.safe_dump({**document, "logs": section}))
    return file


@pytest.mark.parametrize(
    ("keep", "seconds"), [("90s", 90), ("15m", 900), ("36h", 129_600), ("7d", 604_800), (60, 60)]
)
def test_how_long_and_how_much(tmp_path: Path, keep: object, seconds: float) -> None:
    file = written(tmp_path, {"keep": keep, "per_rank": "32MiB", "total": "2GiB"})
    assert load_site(file).logs == LogPolicy(seconds, 32 * 2**20, 2 * 2**30)
    words = from_site(["--site", str(file), "--server", "srv0", "--logs-total", "5"])
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert given["--keep-logs"] == str(seconds)
    assert given["--logs-per-rank"] == str(32 * 2**20)
    assert given["--logs-total"] == "5"  # the command line overrides the file


def test_without_the_section_a_week_is_kept() -> None:
    assert load_site(PAPER).logs == LogPolicy(604_800, 64 * 2**20, 10 * 2**30)


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ({"keep": "a week"}, "logs.keep"),
        ({"keep": 0}, "logs.keep"),
        ({"per_rank": "1kB"}, "logs.per_rank"),
        ({"per_rank": "2GiB", "total": "1GiB"}, "logs"),
        ({"compress": True}, "logs.compress"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    tmp_path: Path, section: dict[str, Any], path: str
) -> None:
    with pytest.raises(SiteFileError) as refused:
        load_site(written(tmp_path, section))
    assert [problem.path for problem in refused.value.problems] == [path]
