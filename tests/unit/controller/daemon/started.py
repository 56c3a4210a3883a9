"""Starts the controller's program on a site without devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.parts.sites import PAPER

ARGUMENTS = ("--api-listen", "127.0.0.1:0", "--openflow-listen", "127.0.0.1:0")


def site_file(directory: Path) -> Path:
    """The paper's rack, without devices and without a namespace."""
    text = PAPER.read_text()
    for old, new in [
        (", netns: ll-fab", ", tls: false"),
        ("127.0.0.1:3082", "127.0.0.1:1"),
        ("127.0.0.1:770", "127.0.0.1:"),
    ]:
        assert old in text
        text = text.replace(old, new)
    path = directory / "site.yaml"
    path.write_text(text)
    return path


def start(site: Path, state: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "controller", "--site", str(site)),
            *("--state-dir", str(state), *ARGUMENTS, *more),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[4],
        env={**os.environ, "LIGHTLOOM_OCS_PASSWORD": "secret"},
    )
