"""What can never work is refused at submit, with the field and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from controller.base.errors import ServiceError
from controller.jobs.checkpoints import check_checkpoints
from controller.schema.jobs import read_job
from controller.schema.submit.request import JobRequest
from sitefile import load_site
from tests.parts.sites import PAPER

SITE = load_site(PAPER)


def request(count: int = 4, copies: dict[str, Any] | None = None, **fields: Any) -> JobRequest:
    checkpoint = {"local": {"size_bytes": 1}, "copies": copies or {}}
    checkpoint |= fields.pop("checkpoint", {})
    return read_job({"name": "red", "count": count, "checkpoint": checkpoint, **fields})


REFUSED: list[tuple[JobRequest, str]] = [
    (request(checkpoint={"shared": {"store": "nowhere"}}), "store: site paper has no volume"),
    (request(checkpoint={"shared": {"store": "images"}}), "store: volume images is read-only"),
    (request(1, {"scheme": "partner"}), "scheme: partner needs a second rank"),
    (request(3, {"scheme": "xor"}), "set_size: a set of 4 needs as many ranks"),
    (request(4, {"scheme": "xor"}, checkpoint={"replicas": "identical"}), "replicas are identical"),
    (request(2, endpoints=["gpu0", "gpu1"]), "server srv0 holds 2 of 2 ranks"),
    (request(6, {"scheme": "xor", "set_size": 6}), "at most 1 of 6 ranks on one server"),
    (
        request(6, {"scheme": "xor", "set_size": 3, "apart": "aggregator"}),
        "apart: at most 2 of 6 ranks under one aggregator",
    ),
    (request(on_loss="shrink"), "on_loss: shrink"),
    (request(at_least=5), "at_least: 5 ranks are more than its 4"),
]


@pytest.mark.parametrize(("asked", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_what_can_never_work_is_refused(asked: JobRequest, why: str) -> None:
    with pytest.raises(ServiceError) as refused:
        check_checkpoints(SITE, asked)
    assert refused.value.code == "invalid" and refused.value.object == "job/red"
    assert why in refused.value.message and refused.value.hint


ACCEPTED = [
    request(1),
    request(6),
    request(6, {"scheme": "xor", "set_size": 3}),
    request(6, {"apart": "aggregator"}),
    request(2, endpoints=["gpu0", "gpu2"]),
    request(checkpoint={"shared": {"store": "results"}}),
    request(checkpoint={"complete": "dcp"}, on_loss="shrink", at_least=2),
    request(checkpoint={"replicas": "identical"}, on_loss="shrink"),
    request(spares=1, restart="never"),
    JobRequest(name="red", count=2),
]


@pytest.mark.parametrize("asked", ACCEPTED, ids=range(len(ACCEPTED)))
def test_what_can_work_is_accepted(asked: JobRequest) -> None:
    check_checkpoints(SITE, asked)
