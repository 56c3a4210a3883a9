"""What the tests of the rack under Slurm share: a rack, its programs, and an end without traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sitefile import load_site
from testbed.demo import PAPER_SITE, homes
from testbed.demo.api import Controller
from testbed.demo.errors import DemoError
from testbed.rack import RackStatus, remains
from testbed.rack.slurm import engines, programs
from testbed.rack.slurm.config import UnderSlurm
from tests.integration import waiting
from tests.integration.racks import rack_of

TICKS = "while :; do date +%s.%N; sleep 0.02; done"
until = partial(waiting.until, limit_s=60.0)
Document = dict[str, Any]
ALL = UnderSlurm()
FIRST_HOMES: Mapping[str, str | None] = load_site(PAPER_SITE).homes


@dataclass(slots=True, frozen=True)
class Slurm:
    """A rack under Slurm, and its controller's API."""

    run_dir: Path
    status: RackStatus
    controller: Controller

    def __call__(self, *argv: str) -> str:
        """Run one of Slurm's programs; return what it prints."""
        done = engines.run(self.run_dir, argv)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, *options: str, script: str = "srun sleep 600") -> str:
        """Submit a batch job; return its number."""
        output = ("--parsable", "--output=/tmp/%j.out")
        return self("sbatch", *output, *options, "--wrap", script).partition(";")[0]

    def job(self, number: str) -> Callable[[], Document]:
        """Return what asks the controller for a job."""

        def ask() -> Document:
            found = [j for j in self.controller.items("/jobs") if j["name"] == f"slurm-{number}"]
            missing = {"state": "unknown", "endpoints": [], "engine": {}, "finished_at": None}
            return found[0] if found else missing

        return ask

    def running(self, number: str) -> Document:
        """Wait until the controller sees that a job runs."""
        return until(self.job(number), lambda found: found["state"] == "running")

    def output(self, number: str) -> str:
        """Return what a job has printed: nothing before its slurmd has made the file."""
        path = self.folder / "tmp" / f"{number}.out"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    @property
    def folder(self) -> Path:
        """Slurm's folder of the rack."""
        return programs.folder_of(self.run_dir)

    @property
    def homes(self) -> dict[str, str | None]:
        """Where every endpoint's light is."""
        return {e["name"]: e["home"] for e in self.controller.items("/endpoints")}

    def empty(self) -> None:
        """End all jobs, bring all light back to the site file's homes, and let Slurm know of it.

        A step that begins, or a job that ends, while Slurm is being told could wait for two
        minutes.
        """
        until(self.told, bool)
        self("scancel", "--user=root", "--full")
        until(lambda: self("squeue", "-h"), lambda text: not text)
        until(self._restored, bool)
        until(self.told, bool)

    def told(self) -> bool:
        """Whether Slurm has the topology of the light as it is."""
        told = self.controller.get("/engine")["published"]
        now = self.controller.get("/endpoints")["epoch"]
        return bool(told["epoch"] == now and not told["error"])

    def _restored(self) -> bool:
        """Whether all light is at the site file's homes; moves what is not and may be moved."""
        with suppress(DemoError):  # the last job's end is not seen yet, or other light moves
            homes.restore(self.controller, FIRST_HOMES)
        return self.homes == FIRST_HOMES


@contextmanager
def rack_under_slurm(run_dir: Path, wanted: UnderSlurm = ALL) -> Iterator[Slurm]:
    """Bring a rack up under Slurm, which knows of its light; nothing of it is left at the end."""
    with rack_of(PAPER_SITE, run_dir, wanted) as status, Controller(status.url) as controller:
        made = Slurm(run_dir, status, controller)
        made.empty()
        yield made
    assert remains.find(run_dir).empty
