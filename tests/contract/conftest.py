from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.ocs_ssh import without_threads


@pytest.fixture(autouse=True)
def netconf(request: pytest.FixtureRequest) -> Iterator[None]:
    """NETCONF sessions in memory, except in real time."""
    if request.node.get_closest_marker("real_time"):
        yield
        return
    with without_threads():
        yield
