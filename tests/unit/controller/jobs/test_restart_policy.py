from __future__ import annotations

import pytest

from controller.jobs.restarts import RestartPolicy


@pytest.mark.parametrize(
    ("text", "times"),
    [("never", 0), ("on-failure", 3), ("on-failure:1", 1), ("on-failure:999", 999)],
)
def test_valid_policies(text: str, times: int) -> None:
    assert RestartPolicy.parse(text) == RestartPolicy(times)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "always",
        "on-failure:0",
        "on-failure:",
        "on-failure:-1",
        "on-failure:1000",
        "never:2",
        "never\n",
    ],
)
def test_invalid_policies(text: str) -> None:
    with pytest.raises(ValueError, match="neither never nor"):
        RestartPolicy.parse(text)


def test_the_wait_doubles_up_to_a_minute_and_ends() -> None:
    policy = RestartPolicy(8)
    assert [policy.wait_s(n) for n in range(1, 10)] == [1, 2, 4, 8, 16, 32, 60, 60, None]
    assert RestartPolicy(0).wait_s(1) is None
