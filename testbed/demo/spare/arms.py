"""The arms: one training, one lost GPU, four ways to go on. Pure.

* ``undisturbed``: nothing is lost and nothing is written; its loss is what the others must reach.
* ``spare``: checkpoints near the job and a spare whose light replaces the dead GPU's.
* ``shared``: as most sites do it. Rank 0 writes to a shared store of a limited rate and all ranks
  wait; after the loss the job goes through the queue to any endpoints, and no light moves.
* ``zero``: no checkpoints; after the loss the job starts at 0 through the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from testbed.demo.api import Document
from testbed.demo.cases import chosen
from testbed.demo.errors import DemoError

STORE_BYTES_PER_S = 20e6
"""The shared store's rate, for all ranks together."""
VOLUME, MOUNT = "results", "/results"
LOCAL_BYTES = 128 * 2**20
"""Folder of one rank: three of its own steps, copies of another rank's, 8.2 MB each, and room."""


class SpareArm(StrEnum):
    """One way to go on after the loss."""

    UNDISTURBED = "undisturbed"
    SPARE = "spare"
    SHARED = "shared"
    ZERO = "zero"

    @property
    def loses(self) -> bool:
        """Whether a GPU is lost in it."""
        return self is not SpareArm.UNDISTURBED

    @property
    def writes(self) -> bool:
        """Whether it writes checkpoints."""
        return self in {SpareArm.SPARE, SpareArm.SHARED}


@dataclass(slots=True, frozen=True)
class SparePlan:
    """What all arms train, and when the GPU is lost."""

    ranks: int = 4
    rank_batch: int = 16
    steps: int = 60
    every: int = 10
    """Steps between two checkpoints."""
    lost_after: int = 37
    """Steps that are trained when the GPU is lost."""

    def check(self) -> None:
        """Raise DemoError(invalid) when the loss would show nothing."""
        if self.ranks < 2 or self.every < 1 or not self.every < self.lost_after < self.steps:
            raise DemoError(
                "invalid",
                f"a loss after {self.lost_after} of {self.steps} steps, checkpoints every"
                f" {self.every}",
                hint="lose the GPU after the first checkpoint and before the end",
            )


def parse_arms(names: Sequence[str] | None) -> tuple[SpareArm, ...]:
    """Return the arms to run in their order; the undisturbed one always runs.

    Raises DemoError(invalid) for an unknown name.
    """
    return chosen(None if names is None else [*names, SpareArm.UNDISTURBED.value], SpareArm)


def request(arm: SpareArm, plan: SparePlan, *, name: str, image: str) -> Document:
    """Return the submission of an arm's job."""
    batch = plan.ranks * plan.rank_batch
    command = [
        *("python3", "-m", "testbed.trainer"),
        *("--global-batch", str(batch), "--samples", str(plan.steps * batch)),
    ]
    body: Document = {
        "name": name,
        "count": plan.ranks,
        "project": "demo",
        "policy": "pause",
        "image": image,
        "command": command,
        "restart": "on-failure:3",
        # A rack whose light does not move gives what is idle, in any order of its aggregators.
        "locality": "preferred" if arm in {SpareArm.SPARE, SpareArm.UNDISTURBED} else "any",
    }
    if arm.writes:
        command += ["--checkpoint-every", str(plan.every)]
    if arm is SpareArm.SPARE:
        body["spares"] = 1
        body["checkpoint"] = {
            "complete": "rename",
            "local": {"where": "memory", "size_bytes": LOCAL_BYTES, "keep": 2},
            "copies": {"scheme": "partner", "apart": "server"},
        }
    if arm is SpareArm.SHARED:
        body["volumes"] = [{"volume": VOLUME, "path": MOUNT}]
        command += ["--checkpoint-shared", f"{MOUNT}/{name}"]
        command += ["--checkpoint-rate", f"{STORE_BYTES_PER_S:g}"]
    return body
