"""Builds the wheel of this checkout, without network and without writing to the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = (
    *(
        "base",
        "scheduler",
        "measure",
        "checkpoints",
        "agentlink",
        "readings",
        "probe",
        "recorder",
        "sitefile",
        "ocs_driver",
        "container_mgr",
        "pki",
        "protos",
        "controller",
    ),
    *("console", "testbed"),
)
_LIMIT_S = 120


def wheel(folder: Path, version: str = "") -> Path:
    """Build the wheel of this checkout in ``folder``, without network; return its path.

    ``version`` replaces its own.
    """
    source = folder / f"source-{version}"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    if version:
        config = source / "setup.cfg"
        lines = config.read_text(encoding="utf-8").splitlines(keepends=True)
        lines = [f"version = {version}\n" if ln.startswith("version =") else ln for ln in lines]
        config.write_text("".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "build", "--quiet", "--wheel", "--no-isolation"]
    before = set(folder.glob("*.whl"))
    command += ["--outdir", str(folder), str(source)]
    subprocess.run(command, check=True, timeout=_LIMIT_S, stdout=sys.stderr)
    (made,) = set(folder.glob("*.whl")) - before
    return made
