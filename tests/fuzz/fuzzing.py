"""Runs a fuzzer of atheris as a process of its own, for a fixed number of inputs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

SEED = 20260101
PATIENCE_S = 600
ROOT = Path(__file__).parents[2]


def fuzz(module: str, corpus: Path, runs: int) -> None:
    """Let ``tests.fuzz.MODULE`` try ``runs`` inputs that grow from a corpus; fail if one breaks."""
    limits = (f"-runs={runs}", "-max_len=4096", "-rss_limit_mb=1024", f"-timeout={PATIENCE_S}")
    seed = () if os.environ.get("LIGHTLOOM_EXPLORE") else (f"-seed={SEED}",)
    ran = subprocess.run(
        [sys.executable, "-m", f"tests.fuzz.{module}", *limits, *seed, str(corpus)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "0"},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    done = re.search(r"Done (\d+) runs", ran.stderr)
    assert done is not None
    assert int(done[1]) >= runs
