"""Links measured through the controller, by containers on the rack."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from probe import common
from probe.links import listens
from testbed.demo import PAPER_SITE
from testbed.demo.api import Controller, Document
from testbed.rack.layout import OCS_NETNS
from testbed.rack.shaping import htb_class, run_tc
from tests.integration import waiting
from tests.integration.racks import rack_of

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

RUN_DIR = Path("/run/lightloom/test-links")
ACCESS_BPS, BETWEEN_BPS = 120e6, 30e6
"""Far apart and slow: what else runs on this machine does not blur the groups."""
SIZES = [8, 1024, 65536, 262144]
SETTINGS = {"sizes": SIZES, "repetitions": 3, "seconds": 0.3}
ENDS = ("gpu0", "gpu2", "gpu3", "gpu4", "gpu5")
ENDED = frozenset({"completed", "failed", "cancelled"})
LIMIT_S = 240.0


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    site = yaml.safe_load(PAPER_SITE.read_text())
    site["emulation"] |= {"access_bps": ACCESS_BPS, "inter_aggregator_bps": BETWEEN_BPS}
    path = tmp_path_factory.mktemp("links") / "site.yaml"
    path.write_text(yaml.safe_dump(site))
    with rack_of(path, RUN_DIR) as status, Controller(status.url) as made:
        yield made


until = partial(waiting.until, limit_s=LIMIT_S, pause_s=0.05)


def started(controller: Controller, *endpoints: str, **settings: object) -> str:
    """Start a measurement; return its id once its job runs."""
    body = {"type": "links", "endpoints": list(endpoints), "settings": {**SETTINGS, **settings}}
    ident = str(controller.post("/measurements", body)["id"])
    view = until(
        lambda: controller.get(f"/measurements/{ident}"), lambda m: m["state"] != "pending"
    )
    assert view["state"] == "running", view["reason"]
    return ident


def ended(controller: Controller, ident: str) -> Document:
    return until(lambda: controller.get(f"/measurements/{ident}"), lambda m: m["state"] in ENDED)


def other_reasons(result: Document) -> list[str]:
    """Return why it is not valid, but for the load of a machine that others use as well."""
    return [why for why in result["invalid_because"] if "busy" not in why]


def bandwidth(result: Document) -> list[Document]:
    """Return what is slow; latencies of microseconds are those of a shared processor here."""
    return [found for found in result["anomalies"] if found["figure"] == "time"]


def test_a_clean_rack_has_two_groups_and_a_slowed_fiber_is_named(controller: Controller) -> None:
    view = ended(controller, started(controller, *ENDS))
    assert view["state"] == "completed", view["reason"]
    result = view["result"]
    assert other_reasons(result) == [], [r for r in result["rows"] if r.get("reason")]
    assert len(result["rows"]) == 20 * 2 + 10 * 2
    assert all(row["group"] is not None for row in result["rows"])
    groups = [group["classes"] for group in result["groups"] if group["size"] >= 65536]
    assert groups == 2 * [["same aggregator", "same server"], ["as0-as1"]]
    assert bandwidth(result) == []
    assert result["tool"]["version"]
    assert result["summary"]["loopback_s"] > 0

    run_tc(OCS_NETNS, [htb_class("o-gpu5", int(ACCESS_BPS / 2), verb="change")])
    try:
        result = ended(controller, started(controller, *ENDS, sizes=SIZES[2:]))["result"]
    finally:
        run_tc(OCS_NETNS, [htb_class("o-gpu5", int(ACCESS_BPS), verb="change")])
    assert [found["object"] for found in bandwidth(result)] == ["gpu5 (receives)"], result["rows"]
    (found,) = bandwidth(result)
    light = found["light"]
    assert {level["endpoint"] for level in light} == {"gpu5"}
    assert all(level["power_in_dbm"] is not None for level in light)


def probe_of(job: str, rank: int) -> int:
    """Return the process of a rank's probe on this machine."""
    wanted = {f"LIGHTLOOM_JOB={job}".encode(), f"LIGHTLOOM_RANK={rank}".encode()}
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes().split(b"\0")
                mine = wanted <= set((process / "environ").read_bytes().split(b"\0"))
            except OSError:
                continue
            if mine and command[0].endswith(b"python3") and b"probe.links" in command:
                return int(process.name)
        time.sleep(0.1)
    raise AssertionError(f"rank {rank} of {job} does not run")


def test_a_silent_rank_leaves_nulls_with_the_reason(controller: Controller) -> None:
    ident = started(controller, "gpu0", "gpu1", "gpu2")
    job = f"measure-{ident}"
    frozen = probe_of(job, 2)
    until(lambda: {}, lambda _: listens(common.PORT, Path(f"/proc/{frozen}/net/tcp")))
    os.kill(frozen, signal.SIGSTOP)
    try:
        until(
            lambda: {"lines": [text for _, text in controller.logs(job, follow=False)]},
            lambda found: any("no answer" in line for line in found["lines"]),
        )
    finally:
        os.kill(frozen, signal.SIGCONT)
    view = ended(controller, ident)
    assert view["state"] == "completed", view["reason"]
    for row in view["result"]["rows"]:
        if "gpu2" in (row["from"], row["to"]):
            assert "rank 2: no answer" in row["reason"]
        else:
            assert "reason" not in row
    assert other_reasons(view["result"]) != []


def test_a_killed_rank_and_a_cancel_end_a_measurement(controller: Controller) -> None:
    ident = started(controller, "gpu0", "gpu1", "gpu2")
    os.kill(probe_of(f"measure-{ident}", 1), signal.SIGKILL)
    view = ended(controller, ident)
    assert view["state"] == "failed"
    assert "rank 1" in view["reason"]

    ident = started(controller, repetitions=100)
    view = controller.post(f"/measurements/{ident}/cancel", wait_s=30)
    assert view["state"] == "cancelled"
    assert controller.get(f"/jobs/measure-{ident}")["state"] == "cancelled"
    ident = started(controller, "gpu0", "gpu1")  # nothing stays reserved
    assert ended(controller, ident)["state"] == "completed"
