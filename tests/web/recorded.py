"""A record of a job as ``lightloom report`` puts it into its page, with foreign texts."""

from __future__ import annotations

from typing import Any

from controller.schema.submit.request import JobRequest
from tests.parts.api import studied
from tests.parts.api.survival import RECOVERIES, checkpoints_view
from tests.parts.controller.rack import Rack

STUDIED = {
    "links": studied.links(("gpu0", "gpu1", "gpu2", "gpu3")),
    "collectives": studied.collectives(),
    "scaling": studied.scaling(),
    "storage": studied.storage(),
    "input": studied.loading(),
    "compare": studied.comparison(),
}
WRITTEN_AT = 1_780_000_000.0
Json = Any


def _document(view: Any) -> Json:
    return view.model_dump(mode="json", by_alias=True)


async def record(rack: Rack, said: str) -> Json:
    """Return a record of job ``red`` that failed once; ``said`` is what others wrote."""
    await rack.desks.jobs.submit(JobRequest(name="red", count=4))
    await rack.state("red", "running")
    failure = {
        "rank": 0, "endpoint": "gpu0", "epoch": 7, "exit_code": 137, "cause": f"cause {said}",
        "others": f"others {said}", "lines": [f"words {said}"], "unread": f"unread {said}",
    }  # fmt: skip
    job = _document(rack.desks.jobs.job("red")) | {
        "reason": f"reason {said}",
        "command": ["python", "train.py"],
        "image_digest": "sha256:abc",
        "failure": failure,
        "project": said,
    }
    job["ranks"][0]["exit_code"] = 137
    job["checkpoint"] = {
        "complete": "rename",
        "local": {"size_bytes": 2**30, "where": "memory", "keep": 2},
        "copies": {"scheme": "partner", "apart": "server"},
        "shared": None,
    }
    line = {"job": "red", "rank": 0, "endpoint": said, "server": "s0"} | {
        field: [1.0, None, 0.5]
        for field in ("rx_bps", "tx_bps", "utilisation", "temperature_c", "power_w")
    }
    times = [WRITTEN_AT - 4, WRITTEN_AT - 2, WRITTEN_AT]
    own = "/jobs/red"
    answers = {
        own: job,
        "/series": {"interval_s": 2.0, "times": times, "containers": [line], "markers": []},
        f"{own}/comms": _document(studied.comms()),
        f"{own}/checkpoints": _document(checkpoints_view(job["endpoints"])),
        f"{own}/recoveries": _document(RECOVERIES),
        "/predictions": {"items": [_document(p) for p in studied.predictions("red")]},
        "/advice": _document(studied.advice("red", "red")),
    }
    measured = [
        _document(m) | {"id": f"m{n}", "submitted_at": WRITTEN_AT - 60}
        for n, m in enumerate(STUDIED.values())
    ]
    return {
        "job": "red",
        "written_at": WRITTEN_AT,
        "written": "2026-11-30 12:00:00",
        "answers": answers | {f"/measurements/{m['id']}": m for m in measured},
        "measurements": [m["id"] for m in measured],
        "events": [
            {"object": "job/red", "time": WRITTEN_AT - n, "severity": "info", "reason": "Some"}
            | {"message": f"message {n} {said}"}
            for n in range(20)
        ],
        "moves": [
            {"id": "t3", "started_at": WRITTEN_AT - 9, "cause": "regroup", "state": "committed"}
            | {"result": "done", "error": "", "dark_time_s": {"gpu0": 0.25}, "jobs": ["red"]}
            | {"moves": [{"endpoint": "gpu0", "from": "as0", "to": "as1"}]}
        ],
        "output": [
            {"rank": rank, "time": WRITTEN_AT, "stream": "stdout", "text": f"line {said}"}
            for rank in (0, 1)
        ],
        "unread": [f"advice: {said}"],
    }
