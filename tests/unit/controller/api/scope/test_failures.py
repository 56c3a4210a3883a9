"""What readers of a project see of a failure: their own output, and nothing of other projects."""

from __future__ import annotations

from controller.api.scope.redact import Redactor
from controller.people.authz import Owned
from controller.schema.jobs import JobView
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack


async def test_a_failure_names_no_other_projects_job_and_no_address(rack: Rack) -> None:
    failure = {
        "rank": 0,
        "endpoint": "gpu0",
        "epoch": 7,
        "cause": "rank 0 exited with code 69: a container of job beta-blue occupies its NIC",
        "others": "",
        "lines": ["connecting to 10.77.0.2:2222 for job beta-blue"],
        "unread": "the output of rank 0 cannot be read: dial 10.9.8.7:7701",
    }
    ran = await submit(rack, "alpha-red", 1, project="alpha")
    view = JobView.model_validate(ran.model_dump() | {"state": "failed", "failure": failure})
    owned = Owned("alpha-red", "alpha", ("gpu0",), holding=False, ended=True)
    job = Redactor(frozenset({"alpha"}), {"alpha-red": owned}).view(view)
    assert job is not None
    shown = job.failure
    assert shown is not None
    assert "beta-blue" not in shown.cause
    assert "10.9.8.7" not in shown.unread
    assert shown.lines == failure["lines"]  # its own program wrote them
