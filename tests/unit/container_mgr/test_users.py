from __future__ import annotations

import pytest

from container_mgr.users import DEFAULT, DEFAULT_ID, RankUser, RankUsers, parse_range, parse_user
from container_mgr.values import AgentError


def test_a_rank_without_a_user_has_the_default() -> None:
    assert DEFAULT.choose("ll-red-0-1", None, None) == RankUser(DEFAULT_ID, DEFAULT_ID)
    assert DEFAULT.choose("ll-red-0-1", 5000, None) == RankUser(5000, DEFAULT_ID)
    assert DEFAULT.choose("ll-red-0-1", DEFAULT_ID, 5000) == RankUser(DEFAULT_ID, 5000)


@pytest.mark.parametrize(("uid", "gid"), [(0, 5000), (5000, 0), (0, None), (None, 0)])
def test_a_rank_is_never_root(uid: int | None, gid: int | None) -> None:
    with pytest.raises(AgentError, match="0 is root's") as refused:
        RankUsers(RankUser(5000, 5000), 0, 10).choose("ll-red-0-1", uid, gid)
    assert refused.value.code == "invalid"


@pytest.mark.parametrize("number", [1, 999, 60001, 2**31])
def test_a_user_out_of_bounds_is_named(number: int) -> None:
    for ids in ((number, None), (None, number)):
        with pytest.raises(AgentError, match=f"{number} is not one of 1000 to 60000") as refused:
            DEFAULT.choose("ll-red-0-1", *ids)
        assert refused.value.code == "forbidden"


def test_users_and_ranges_are_read() -> None:
    assert parse_user("1000") == RankUser(1000, 1000)
    assert parse_user("1000:2000") == RankUser(1000, 2000)
    assert parse_range("1000-60000") == (1000, 60000)


@pytest.mark.parametrize("text", ["", "0", "1:0", "0:1", "root", "1:", "-1", "1:2:3", "3000000000"])
def test_a_user_that_cannot_be(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_user(text)


@pytest.mark.parametrize("text", ["", "1", "0-5", "9-5", "a-b", "1-2-3", "1-3000000000"])
def test_a_range_that_cannot_be(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_range(text)


def test_the_containers_accounts_have_the_user_and_no_other_group() -> None:
    user = RankUser(5000, 6000)
    assert f"{user.name}:x:5000:6000::/tmp:/bin/sh" in user.passwd("/tmp").splitlines()
    groups = [line.split(":") for line in user.group().splitlines()]
    assert [(name, members) for name, _, gid, members in groups if gid == "6000"] == [("u5000", "")]
    assert not any(name.isdecimal() for name, *_ in groups)
