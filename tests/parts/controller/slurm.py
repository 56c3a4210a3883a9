"""A slurmctld in memory, which answers with recorded documents of real ones.

Its jobs are recorded jobs with other numbers, states, nodes and devices.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Mapping
from typing import Any

from controller.devices.observed import ObservedError
from controller.devices.slurm.documents import Body
from controller.devices.slurm.hostlists import compress, expand
from controller.devices.slurm.topology import CORE
from controller.devices.slurm.transport import NO_JOBS, fault
from tests import recorded

RELEASES = {"v0.0.42": "24.11.5", "v0.0.45": "26.05.5"}


class FakeSlurm:
    """Both ways to Slurm at once: its jobs and its set-up."""

    def __init__(self, version: str, file: str | None = None) -> None:
        """``file`` is what a reconfigure reads: a topology."""
        self.version = version
        self.jobs_by_number: dict[int, dict[str, Any]] = {}
        self.tree: dict[str, list[str]] = {"old": list(recorded.NODES)}
        self.core = "oldcore"
        self.file = file
        self.away = False
        self.forbidden = False
        self.refused = asyncio.Event()
        """Set when it was asked while it was away."""
        self.calls: list[str] = []
        self.configuration: dict[str, str] = {
            line.partition("=")[0].strip(): line.partition("=")[2].strip()
            for line in recorded.output(RELEASES[version][:5], "config.txt").decode().splitlines()
        }

    def job_like(self, name: str, number: int, **changes: Any) -> None:
        """Have a job like a recorded one."""
        document = copy.deepcopy(recorded.jobs(self.version, name)[0])
        self.jobs_by_number[number] = {**document, "job_id": number, **changes}

    def change(self, number: int, **changes: Any) -> None:
        """Change fields of a job's document."""
        self.jobs_by_number[number] |= changes

    @property
    def name(self) -> str:
        return f"recorded {self.version}"

    async def release(self) -> str:
        self._call("release")
        return RELEASES[self.version]

    async def states(self) -> Mapping[int, str]:
        self._call("states")
        return {n: ",".join(job["job_state"]) for n, job in self.jobs_by_number.items()}

    async def job(self, number: int) -> Body:
        self._call(f"job {number}")
        job = self.jobs_by_number.get(number)
        return NO_JOBS if job is None else (json.dumps({"jobs": [job]}).encode(),)

    async def jobs(self) -> Body:
        self._call("jobs")
        return (json.dumps({"jobs": list(self.jobs_by_number.values())}).encode(),)

    async def nodes(self) -> Body:
        self._call("nodes")
        document = json.loads(recorded.answer(self.version, "nodes")[1])
        ending = {
            name
            for job in self.jobs_by_number.values()
            if "COMPLETING" in job["job_state"]
            for name in expand(job["nodes"])
        }
        for node in document["nodes"]:
            node["state"] += ["COMPLETING"] * (node["name"] in ending)
        return (json.dumps(document).encode(),)

    async def comment(self, number: int, text: str) -> bool:
        self._call(f"comment {number}")
        self._change("comment")
        if number not in self.jobs_by_number:
            return False
        self.change(number, admin_comment=text)
        return True

    async def place(self, nodes: str, unit: str) -> None:
        self._call(f"place {nodes} {unit}")
        self._change("topology")
        if self.version == "v0.0.42":
            raise fault("Update of this parameter is not supported", "topology")
        leaf = unit.rpartition(":")[2]
        for node in expand(nodes):
            for others in self.tree.values():
                if node in others:
                    others.remove(node)
            self.tree.setdefault(leaf, []).append(node)

    async def reconfigure(self) -> None:
        self._call("reconfigure")
        self._change("reconfigure")
        self.tree = {}
        if self.file is None:
            return
        with open(self.file, encoding="utf-8") as file:  # noqa: ASYNC230, PTH123 - a fake
            for line in file:
                if line.startswith("#"):
                    continue
                words = dict(word.split("=") for word in line.split())
                if "Nodes" in words:
                    self.tree[words["SwitchName"]] = list(expand(words["Nodes"]))
                else:
                    self.core = words["SwitchName"]

    async def administrates(self) -> bool:
        self._call("rights")
        return not self.forbidden

    async def config(self) -> Mapping[str, str]:
        self._call("config")
        return self.configuration

    async def topology(self) -> str:
        self._call("topology")
        lines = [
            f"SwitchName={leaf} Level=0 LinkSpeed=1 Nodes={compress(nodes)}"
            for leaf, nodes in self.tree.items()
        ]
        return "\n".join([*lines, f"SwitchName={self.core} Level=1 LinkSpeed=1 Nodes=n[0-3]", ""])

    async def close(self) -> None:
        self.calls.append("close")

    @property
    def lights(self) -> bool:
        """Whether its tree is lightloom's."""
        return self.core == CORE

    def _call(self, what: str) -> None:
        self.calls.append(what)
        if self.away:
            self.refused.set()
            raise ObservedError("unavailable", "slurm", "Unable to contact slurm controller")

    def _change(self, what: str) -> None:
        if self.forbidden:
            raise fault("Invalid user id", what)
