"""Tests the site file's sections on secrets, notices and what a time limit does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scheduler.model import TimeLimitAction
from sitefile import SiteFileError, load_site
from sitefile.notices import Receiver
from tests.parts.sites import PAPER
from tests.unit.sitefile.written import written

ALL = frozenset({"completed", "failed", "cancelled"})


def test_a_site_without_the_sections_has_none() -> None:
    site = load_site(PAPER)
    assert (site.secrets, site.notices) == (None, ())
    assert site.scheduling.time_limit_action is TimeLimitAction.IGNORE


def test_the_sections_are_read(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        secrets={"directory": "/etc/lightloom/secrets"},
        projects=[{"name": "vision"}],
        queue={"time_limit_action": "end"},
        notices=[
            {
                "project": "vision",
                "url": "https://hooks.example/x?y=z",
                "states": ["failed"],
                "secret": {"file": "/etc/lightloom/notice.key"},
            },
            {"project": "default", "command": ["/usr/local/bin/notify", "a b"]},
        ],
    )
    site = load_site(file)
    assert site.secrets == Path("/etc/lightloom/secrets")
    assert site.scheduling.time_limit_action is TimeLimitAction.END
    assert site.notices == (
        Receiver(
            "vision",
            frozenset({"failed"}),
            "https://hooks.example/x?y=z",
            "/etc/lightloom/notice.key",
        ),
        Receiver("default", ALL, command=("/usr/local/bin/notify", "a b")),
    )


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"secrets": {"directory": "secrets"}}, "secrets.directory"),
        ({"notices": [{"project": "vision"}]}, "either url or command"),
        ({"notices": [{"project": "vision", "url": "ftp://x/"}]}, "notices[0].url"),
        ({"notices": [{"project": "vision", "url": "https://a:b@x/"}]}, "notices[0].url"),
        ({"notices": [{"project": "vision", "url": "http://x/", "states": []}]}, "states"),
        ({"notices": [{"project": "vision", "command": ["notify"]}]}, "absolute path"),
        (
            {"notices": [{"project": "v", "command": ["/n"], "secret": {"file": "/k"}}]},
            "leave it out",
        ),
        (
            {"projects": [{"name": "vision"}], "notices": [{"project": "x", "url": "http://x/"}]},
            "unknown project 'x'",
        ),
        ({"queue": {"time_limit_action": "stop"}}, "queue.time_limit_action"),
    ],
)
def test_wrong_sections_are_refused(tmp_path: Path, sections: dict[str, Any], message: str) -> None:
    with pytest.raises(SiteFileError) as refused:
        load_site(written(tmp_path, **sections))
    assert message in "\n".join(f"{p.path}: {p.message}" for p in refused.value.problems)
