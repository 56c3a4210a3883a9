"""What the tests of lost hardware share: a rack, and jobs whose end shows every wrong restore.

The jobs are rings whose last state depends on every state of every rank before
(``testbed.ring_checkpoint``): a torn, mixed or older restore ends in a fault or another digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from testbed import rack
from testbed.kept_ring import RingSize, complete_steps, printed
from testbed.mortal import Mortal, taken_over
from tests.integration.racks import rack_of
from tests.integration.waiting import until

Document = dict[str, Any]
RING = RingSize(steps=160, size=2_000_000)
"""It trains for 16 s at least: a loss after its first checkpoints comes well before its end."""
ENDED = frozenset({"completed", "failed", "cancelled"})
START_S, END_S, WHOLE_S = 120.0, 240.0, 120.0
PAUSE_S = 0.2
"""Between two looks: a test that asks all the time slows the rack on two cores."""


@contextmanager
def mortal_rack(site: Path, run_dir: Path) -> Iterator[Mortal]:
    """Bring a rack up, with a controller that can be killed; nothing of it is left at the end."""
    with rack_of(site, run_dir) as status, taken_over(status, run_dir) as made:
        yield made


def made_whole(mortal: Mortal, run_dir: Path) -> None:
    """End all jobs, repair all that is lost, and wait until everything can be used."""
    for job in mortal.get("/jobs")["items"]:
        if job["state"] not in ENDED:
            with suppress(rack.RackError):
                mortal.post(f"/jobs/{job['name']}/cancel")
    for lost in rack.status(run_dir).lost:
        rack.repair(lost, run_dir)
    mortal.until(mortal.whole, WHOLE_S)
    for drain in mortal.get("/drains")["items"]:
        kind, _, name = drain["object"].partition("/")
        mortal.http.delete(f"/{kind}s/{name}/drain").raise_for_status()
    mortal.until(lambda: released(mortal), WHOLE_S)
    mortal.until(lambda: not mortal.get("/containers")["items"], WHOLE_S)


def released(mortal: Mortal) -> bool:
    """Put back into use what is out of it; return whether every endpoint can be used."""
    for entry in mortal.get("/quarantine")["items"]:
        mortal.post(f"/quarantine/{entry['object']}/release")
    states = {end["state"] for end in mortal.get("/endpoints")["items"]}
    return states == {"idle"}


def submit(mortal: Mortal, name: str, ring: RingSize = RING, **changes: Any) -> str:
    mortal.post("/jobs", ring.request(name, **changes))
    return name


def reached(mortal: Mortal, name: str, steps: int) -> None:
    """Wait until rank 0's present run has trained so many steps."""
    until(
        lambda: printed(mortal, name).reached(),
        lambda trained: trained >= steps,
        limit_s=START_S,
        pause_s=PAUSE_S,
    )


def protected(mortal: Mortal, name: str, *, least: int = 1) -> int:
    """Wait for a complete step; return the newest."""
    found = until(
        lambda: complete_steps(mortal, name),
        lambda steps: max(steps, default=0) >= least,
        limit_s=START_S,
        pause_s=PAUSE_S,
    )
    return found[0]


def ended_well(mortal: Mortal, name: str, ring: RingSize = RING) -> Document:
    """Wait for the end, which must be that of an undisturbed run. Return the recovery."""
    until(
        lambda: mortal.get(f"/jobs/{name}"),
        lambda job: job["state"] in ENDED,
        limit_s=END_S,
        pause_s=PAUSE_S,
    )
    job, told = mortal.get(f"/jobs/{name}"), printed(mortal, name)
    assert not told.faults
    assert job["state"] == "completed", job["reason"]
    assert told.as_undisturbed(ring)
    recoveries: list[Document] = mortal.get(f"/jobs/{name}/recoveries")["recoveries"]
    assert recoveries, "the job ended before its loss"
    return recoveries[-1]


def homes(mortal: Mortal) -> dict[str, str | None]:
    return {end["name"]: end["home"] for end in mortal.get("/endpoints")["items"]}
