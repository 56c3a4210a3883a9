import pytest

from testbed.demo import jobs


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip waits: an in-memory controller has finished everything by the next poll."""
    monkeypatch.setattr(jobs, "LOOK_S", 0.0)
