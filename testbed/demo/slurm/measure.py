"""Runs the mixture in one arm on the rack under Slurm."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sitefile import CabledSite
from testbed.demo import homes
from testbed.demo.api import Controller, Document
from testbed.demo.errors import DemoError
from testbed.demo.slurm.mixture import (
    MixtureArm,
    MixtureJob,
    MixturePlan,
    command,
    least_span,
    mixture,
)
from testbed.demo.slurm.outputs import EndedJob, Homes, began, ended, figures, trained
from testbed.mortal import Mortal
from testbed.rack.slurm import config, engines, programs

LOOK_S = 0.5
SETTLED_S = 60.0
ARM_S = 3600.0
REPORT_EVERY_S = 15.0
TOPOLOGY = "topology.conf"

Progress = Callable[[str], None]


@dataclass(slots=True, frozen=True)
class MixtureResult:
    """One arm's figures, and the data of the plots."""

    arm: MixtureArm
    figures: Document
    done: tuple[EndedJob, ...]
    timeline: tuple[tuple[float, Homes], ...]


@dataclass(slots=True)
class MixtureRunner:
    """Runs arms one after the other; each begins with an empty Slurm and all light at home."""

    site: CabledSite
    run_dir: Path
    controller: Controller
    mortal: Mortal
    plan: MixturePlan
    progress: Progress
    _timeline: list[tuple[float, Homes]] = field(default_factory=list)

    def run(self, arm: MixtureArm) -> MixtureResult:
        """Measure one arm. Raises DemoError, RackError."""
        homes.restore(self.controller, dict(self.site.homes))
        published = self._topology()
        if arm.alone:
            self.mortal.kill()
            self._place_topology(arm)
        self._timeline = [(time.time(), dict(self.site.homes))]
        try:
            done = self._mixture(arm)
            pauses, moves = (0, 0) if arm.alone else self._light_moved(done)
        finally:
            self._slurm("scancel", "--user=root", "--full")
            self._until("Slurm is empty", lambda: not self._slurm("squeue", "-h"))
            if arm.alone:
                self._write_topology(published)
                self.mortal.start()
        jobs = tuple(one for _, one in done)
        return MixtureResult(
            arm, figures(jobs, self._timeline, pauses, moves), jobs, tuple(self._timeline)
        )

    def _mixture(self, arm: MixtureArm) -> list[tuple[str, EndedJob]]:
        """Submit all jobs at their times; return them with their numbers in Slurm."""
        waiting = list(mixture(self.plan))
        count = len(waiting)
        submitted: dict[str, tuple[MixtureJob, float]] = {}
        done: list[tuple[str, EndedJob]] = []
        begin = told = time.monotonic()
        while len(done) < count:
            now = time.monotonic()
            while waiting and now - begin >= waiting[0].at_s:
                work = waiting.pop(0)
                at = time.time()
                number = self._slurm(*command(work, self.plan, arm, self._least(work)))
                submitted[number.partition(";")[0]] = (work, at)
            self._note_light(arm)
            over = [n for n in submitted if ended(self._output(n)) is not None]
            done += [(n, self._done(n, *submitted.pop(n))) for n in over]
            if now - told >= REPORT_EVERY_S:
                told = now
                running = sum(began(self._output(n)) is not None for n in submitted)
                self.progress(
                    f"{arm}: {len(done)} of {count} ended, {running} run,"
                    f" {len(submitted) - running} wait"
                )
            if now - begin > ARM_S:
                raise DemoError("timeout", f"the mixture lasts more than {ARM_S:g} s", object=arm)
            time.sleep(LOOK_S)
        return done

    def _done(self, number: str, work: MixtureJob, submitted_at: float) -> EndedJob:
        text = self._output(number)
        log = trained(work, text)
        start, finish = began(text), ended(text)
        if start is None or finish is None:
            raise DemoError("failed", "it printed no begin or no end", object=f"job/{work.name}")
        return EndedJob(
            work,
            submitted_at,
            start,
            finish[1],
            self._endpoints(number),
            self._least(work),
            log.ends[0].final_loss,
            log.ends[0].step_s_median,
        )

    def _endpoints(self, number: str) -> tuple[str, ...]:
        """Return the nodes of a job; they are called as their endpoints."""
        nodes = self._slurm("squeue", "-h", "-t", "all", "-j", number, "-o", "%N")
        return tuple(self._slurm("scontrol", "show", "hostnames", nodes).split())

    def _least(self, work: MixtureJob) -> int:
        return least_span(work.ranks, _ports(self.site))

    def _note_light(self, arm: MixtureArm) -> None:
        """Note where the light is; without a controller it does not move."""
        if arm.alone:
            return
        found = {e["name"]: e["home"] for e in self.controller.items("/endpoints")}
        if found != self._timeline[-1][1]:
            self._timeline.append((time.time(), found))

    def _light_moved(self, done: Sequence[tuple[str, EndedJob]]) -> tuple[int, int]:
        """Return the pauses of all jobs, and how often an endpoint's light moved."""
        pauses = sum(self.controller.get(f"/jobs/slurm-{n}")["pauses"] for n, _ in done)
        moves = sum(
            before.get(endpoint) != home
            for (_, before), (_, after) in zip(self._timeline, self._timeline[1:], strict=False)
            for endpoint, home in after.items()
        )
        return pauses, moves

    def _place_topology(self, arm: MixtureArm) -> None:
        """Publish to Slurm where the light is; or nothing: all endpoints are under one switch."""
        at: Mapping[str, str | None] = self.site.homes
        if arm is MixtureArm.BLIND:
            at = dict.fromkeys(self.site.homes, "all")
        self._write_topology(config.topology_conf(config.cluster_of(self.site), at))

    def _write_topology(self, text: str) -> None:
        (programs.folder_of(self.run_dir) / "etc" / TOPOLOGY).write_text(text, encoding="utf-8")
        self._slurm("scontrol", "reconfigure")

    def _topology(self) -> str:
        return (programs.folder_of(self.run_dir) / "etc" / TOPOLOGY).read_text(encoding="utf-8")

    def _output(self, number: str) -> str:
        path = programs.folder_of(self.run_dir) / "tmp" / f"{number}.out"
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def _slurm(self, *argv: str) -> str:
        done = engines.run(self.run_dir, argv)
        if done.returncode:
            raise DemoError("failed", f"{argv[0]}: {done.stderr.strip()}", object="slurm")
        return done.stdout.strip()

    @staticmethod
    def _until(what: str, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + SETTLED_S
        while not condition():
            if time.monotonic() > deadline:
                raise DemoError("timeout", f"not within {SETTLED_S:g} s: {what}", object="slurm")
            time.sleep(LOOK_S)


def _ports(site: CabledSite) -> dict[str, int]:
    """Return how many endpoints each aggregator has room for."""
    return {one.name: len(one.fibers) + len(one.fixed) for one in site.aggregators}
