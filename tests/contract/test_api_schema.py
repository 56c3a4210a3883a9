"""Schemathesis: the API does what its published schema says, for good requests and bad ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from controller.api.gate.pace import RateLimit
from tests.integration.waiting import until
from tests.parts.api.apps import app_of
from tests.parts.api.people import PLENTY, Site, people_site

EXAMPLES = 12
"""Requests an operation and phase; all together take about a minute."""


APP = app_of(rate_limit=RateLimit(changes=PLENTY, reads=PLENTY, failures=PLENTY))
# What is possible by the schema may still not be possible here: an epoch that is gone (412), a
# job larger than the site, a token for a project that is not there (422).
HERE = ["2xx", 401, 403, 404, 409, 412, 429]
REFUSED = [400, 401, 403, 404, 405, 409, 412, 413, 415, 422, 429]
JUDGED = [
    "/jobs",
    "/submissions",
    "/tokens",
    "/projects/{name}",
    "/transactions",
    "/rollouts",
    "/endpoints/{name}/attachment",
    "/allocation",
    "/usage",
    "/plans",
    "/measurements",
    "/imports",
]
CONFIG = schemathesis.Config.from_dict(
    {
        # No text may hold a NUL (test_bad_input); a schema would say so at every text.
        "generation": {"allow-x00": False},
        "checks": {
            "positive_data_acceptance": {"expected-statuses": HERE},
            "negative_data_rejection": {"expected-statuses": REFUSED},
        },
        "operations": [
            {
                "include-path": f"/api/v1{path}",
                "checks": {"positive_data_acceptance": {"expected-statuses": [*HERE, 422]}},
            }
            for path in JUDGED
        ],
    }
)
APP.openapi()  # made here: schemathesis waits ten seconds at most for a machine under load
# The stream never ends by design; tests/unit/controller/stream/test_feed.py reads it.
schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", APP, config=CONFIG).exclude(
    path="/api/v1/stream"
)


async def _entered(stack: AsyncExitStack, directory: Path) -> Site:
    return await stack.enter_async_context(people_site(directory))


@pytest.fixture(scope="module", autouse=True)
def site() -> Iterator[Site]:
    """Put people behind the application whose schema was read."""
    with TemporaryDirectory() as directory, asyncio.Runner() as runner:
        stack = AsyncExitStack()
        made = runner.run(_entered(stack, Path(directory)))
        for part in ("desks", "access"):
            setattr(APP.state, part, getattr(made.app.state, part))
        yield made
        # Requests ran in schemathesis' loop; what it still writes cannot be awaited in this one.
        until(lambda: made.audit._writing is None, bool, limit_s=30.0)
        runner.run(stack.aclose())


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_operation_keeps_its_promise(case: schemathesis.Case, site: Site) -> None:
    case.call_and_validate(headers={"Authorization": f"Bearer {site.secrets['admin']}"})
