import pytest

from testbed.demo import jobs


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller in memory has done everything by the next look."""
    monkeypatch.setattr(jobs, "LOOK_S", 0.0)
