"""The wheel holds everything that an installed lightloom needs, and works without the checkout."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.build_wheel import PACKAGES, ROOT, wheel

LIMIT_S = 120
SERVED = """
import importlib, json, sys
from importlib.resources import files
from console.cli.install.parts import Given, parts
from console.cli.install.values import MachineRole
names = sys.argv[1:]
print(json.dumps({
    "places": [importlib.import_module(name).__file__ for name in names],
    "page": "</html>" in files("console.web").joinpath("static/index.html").read_text("utf-8"),
    "parts": [len(parts(role, Given())) for role in MachineRole],
}))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel(tmp_path_factory.mktemp("wheel"))


def test_it_holds_the_files_of_all_packages_and_no_others(built: Path) -> None:
    with zipfile.ZipFile(built) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    beside = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == beside


def test_it_works_in_a_new_environment_without_the_checkout(built: Path, tmp_path: Path) -> None:
    """The libraries are lent by this environment; its own link to the checkout is not."""
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", str(venv), cwd=tmp_path)
    python = str(venv / "bin/python")
    home = Path(run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=tmp_path))
    (home / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", str(built), cwd=tmp_path)

    lightloom = str(venv / "bin/lightloom")
    version = built.name.split("-")[1]
    assert run(lightloom, "--version", cwd=tmp_path) == f"lightloom {version}"
    assert "--state-dir" in run(lightloom, "controller", "--help", cwd=tmp_path)
    assert "--server" in run(lightloom, "agent", "--help", cwd=tmp_path)
    assert "properties" in json.loads(run(lightloom, "schema", cwd=tmp_path))
    served = json.loads(run(python, "-c", SERVED, *PACKAGES, cwd=tmp_path))
    assert all(Path(place).is_relative_to(home) for place in served["places"])
    assert served["page"]
    assert min(served["parts"]) > 5


def pins(name: str) -> dict[str, set[str]]:
    """Return version and hashes by package of a lock file."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        words = line.removesuffix("\\").split()
        if line[:1].isalnum():
            name, _, version = words[0].partition("==")
            found[name] = {version}
        elif words and words[0].startswith("--hash="):
            found[name].add(words[0])
    return found


def test_a_site_gets_the_packages_that_the_tests_run_with() -> None:
    site, tested = pins("requirements-site.lock"), pins("requirements.lock")
    assert site == {name: tested[name] for name in site}
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    wanted = config["options"]["install_requires"].split()
    assert {re.split("[<>=,]", word)[0] for word in wanted} <= set(site)


def run(*command: str, cwd: Path) -> str:
    """Run a program outside the checkout and without its path; return what it prints."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
