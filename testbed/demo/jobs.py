"""Handles the experiment's jobs: submits and follows them, detects restarts and cleans up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from base import clock
from testbed.demo.api import Controller, Document
from testbed.demo.cases import CaseArm, JobSize
from testbed.demo.errors import DemoError
from testbed.demo.trainer_log import EndLine, StepLine, TrainerLog

ENDED = frozenset({"completed", "failed", "cancelled"})
STARTED_S = 180.0
"""Time limit for placement and start of a job on an idle rack."""
TRAINING_S = 600.0
"""TensorFlow starts in 10 s on a quiet machine and in a minute on a loaded one."""
ENDED_S = 180.0
LOOK_S = 0.25

OnStep = Callable[[int, StepLine], None]


@dataclass(slots=True, frozen=True)
class Training:
    """One training job to submit."""

    name: str
    work: JobSize
    samples: int
    endpoints: Sequence[str]
    arm: CaseArm
    project: str
    image: str

    def request(self) -> Document:
        """Return the body of the submission."""
        return {
            "name": self.name,
            "count": self.work.count,
            "project": self.project,
            "locality": self.arm.locality.value,
            "policy": "pause",
            "rank_order": self.arm.rank_order.value,
            "image": self.image,
            "endpoints": list(self.endpoints),
            "command": [
                *("python3", "-m", "testbed.trainer"),
                *("--samples", str(self.samples)),
                *("--global-batch", str(self.work.global_batch)),
            ],
        }


@dataclass(slots=True)
class DemoJobs:
    """All jobs that the demo has submitted and that have not ended."""

    controller: Controller
    _open: list[str] = field(default_factory=list)

    def submit(self, training: Training) -> None:
        """Queue a job and wait until its containers run."""
        self.controller.post("/jobs", training.request())
        self._open.append(training.name)
        deadline = clock.monotonic() + STARTED_S
        while True:
            view = self.view(training.name)
            if view["state"] in ENDED:
                raise _ended_early(view)
            if view["state"] == "running":
                return
            if clock.monotonic() > deadline:
                raise DemoError(
                    "timeout",
                    f"{training.name} is still {view['state']}: {view['reason']}",
                    object=f"job/{training.name}",
                    hint=f"see: lightloom describe job {training.name}",
                )
            clock.sleep(LOOK_S)

    def view(self, name: str) -> Document:
        """Return a job as the controller shows it."""
        return self.controller.get(f"/jobs/{name}")

    def wait_training(self, name: str, *, step: int) -> None:
        """Wait until rank 0 of a job has trained ``step`` steps."""
        log = TrainerLog(name, ranks=1)
        deadline = clock.monotonic() + TRAINING_S
        while not log.steps or log.steps[0][-1].step < step:
            view = self.view(name)
            if view["state"] in ENDED:
                self._explain(name)
                raise _ended_early(view)
            if clock.monotonic() > deadline:
                raise DemoError(
                    "timeout",
                    f"{name} does not train after {TRAINING_S:.0f} s",
                    object=f"job/{name}",
                    hint=f"see: lightloom logs {name}",
                )
            clock.sleep(LOOK_S)
            if view["state"] == "running":
                for rank, text in self.controller.logs(name, follow=False, rank=0, tail=5):
                    log.add(rank, text)

    def follow(self, name: str, ranks: int, on_step: OnStep) -> TrainerLog:
        """Read a job's output until every rank has ended; ``on_step`` sees each new step."""
        log = TrainerLog(name, ranks)
        # The last lines of a rank may be missing when the output is followed until the job
        # ends: then the whole output is read once more.
        for follow in (True, False):
            for rank, text in self.controller.logs(name, follow=follow):
                line = log.add(rank, text)
                if isinstance(line, StepLine):
                    on_step(rank, line)
                if isinstance(line, EndLine) and log.complete:
                    return log
        raise _ended_early(self.view(name))

    def require_running(self, name: str) -> None:
        """Raise DemoError(failed) when a job that must run beside the measured one does not."""
        view = self.view(name)
        if view["state"] != "running":
            self._explain(name)
            raise _ended_early(view)

    def containers(self, name: str) -> Mapping[int, str]:
        """Return the container of every rank of a job."""
        found = self.controller.items("/containers")
        return {c["rank"]: c["container_id"] for c in found if c["job"] == name}

    def end(self, name: str) -> Document:
        """Cancel a job that has not ended, wait until it has, and return it."""
        view = self.view(name)
        if view["state"] not in ENDED:
            self._cancel(name)
        deadline = clock.monotonic() + ENDED_S
        while (view := self.view(name))["state"] not in ENDED:
            if clock.monotonic() > deadline:
                raise DemoError(
                    "timeout",
                    f"{name} is still {view['state']} {ENDED_S:.0f} s after it was cancelled",
                    object=f"job/{name}",
                    hint=f"see: lightloom describe job {name}",
                )
            clock.sleep(LOOK_S)
        self._open.remove(name)
        return view

    def wait_completed(self, name: str) -> Document:
        """Wait until a job whose trainer has ended completes. Raises DemoError if it failed."""
        deadline = clock.monotonic() + ENDED_S
        while self.view(name)["state"] not in ENDED and clock.monotonic() < deadline:
            clock.sleep(LOOK_S)
        view = self.end(name)
        if view["state"] != "completed":
            raise _ended_early(view)
        return view

    def end_all(self) -> None:
        """Cancel all remaining jobs."""
        for name in list(self._open):
            self.end(name)

    def _cancel(self, name: str) -> None:
        try:
            self.controller.post(f"/jobs/{name}/cancel")
        except DemoError as error:
            if error.code != "conflict":  # it ended by itself meanwhile
                raise

    def _explain(self, name: str) -> None:
        """Raise the trainer's own error if its last lines contain one."""
        log = TrainerLog(name, ranks=1)
        for rank, text in self.controller.logs(name, follow=False, tail=20):
            log.add(rank, text)


def _ended_early(view: Document) -> DemoError:
    name = view["name"]
    return DemoError(
        "failed",
        f"{name} is {view['state']}: {view['reason'] or 'before its training ended'}",
        object=f"job/{name}",
        hint=f"see: lightloom logs {name}",
    )
