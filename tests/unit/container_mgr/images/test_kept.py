from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from container_mgr.images.kept import YOUNGEST_S, KeepPolicy, KeptImages, PulledImage, to_remove
from tests.parts.agent.docker import IMAGE_ID, FakeDocker

DAY = 86400.0
NOW = 100 * DAY
OTHER = f"sha256:{'c' * 64}"
OLD = PulledImage(IMAGE_ID, 60, NOW - 20 * DAY)
NEWER = PulledImage(OTHER, 50, NOW - 2 * DAY)
YOUNG = PulledImage(OTHER, 50, NOW - YOUNGEST_S / 2)


def test_what_was_not_used_for_long_goes() -> None:
    policy = KeepPolicy(unused_s=14 * DAY)
    assert to_remove({"old": OLD, "newer": NEWER}, (), policy, NOW) == ["old"]
    assert to_remove({"old": OLD}, {IMAGE_ID}, policy, NOW) == []


def test_the_least_recently_used_go_until_the_rest_fits() -> None:
    both = {"newer": NEWER, "old": OLD}
    assert to_remove(both, (), KeepPolicy(space_bytes=110), NOW) == []
    assert to_remove(both, (), KeepPolicy(space_bytes=100), NOW) == ["old"]
    assert to_remove(both, {IMAGE_ID}, KeepPolicy(space_bytes=100), NOW) == ["newer"]
    assert to_remove(both, (), KeepPolicy(space_bytes=0), NOW) == ["old", "newer"]
    assert to_remove({"young": YOUNG}, (), KeepPolicy(space_bytes=0), NOW) == []


def test_two_names_of_one_image_count_once() -> None:
    two = {"a": OLD, "b": OLD}
    assert to_remove(two, (), KeepPolicy(space_bytes=60), NOW) == []
    assert to_remove(two, (), KeepPolicy(space_bytes=59), NOW) == ["a", "b"]


@given(
    st.dictionaries(
        st.text("abc", min_size=1, max_size=2),
        st.builds(PulledImage, st.sampled_from("xyz"), st.just(10), st.floats(0, NOW)),
    ),
    st.sets(st.sampled_from("xyz")),
    st.builds(KeepPolicy, st.none() | st.integers(0, 40), st.none() | st.floats(0, NOW)),
)
def test_an_image_in_use_or_young_never_goes(
    pulled: dict[str, PulledImage], in_use: set[str], policy: KeepPolicy
) -> None:
    gone = to_remove(pulled, in_use, policy, NOW)
    assert len(gone) == len(set(gone))
    for name in gone:
        assert pulled[name].id not in in_use
        assert NOW - pulled[name].used_at >= YOUNGEST_S
    if policy == KeepPolicy():
        assert gone == []


async def test_a_restarted_agent_knows_what_it_pulled(tmp_path: Path) -> None:
    docker, file, now = FakeDocker(tmp_path), tmp_path / "images.json", NOW
    docker.pulled = ["theirs:1", "ours:1"]
    policy = KeepPolicy(unused_s=14 * DAY)
    first = KeptImages(docker, file, policy, lambda: now)  # type: ignore[arg-type]
    await first.pulled("ours:1", IMAGE_ID, 60)
    again = KeptImages(docker, file, policy, lambda: now)  # type: ignore[arg-type]
    await again.load()
    await again.check()
    assert docker.pulled == ["theirs:1", "ours:1"]
    now += 15 * DAY
    await again.check()
    assert docker.pulled == ["theirs:1"]
    await again.check()
    assert docker.calls["remove_image"] == 1


async def test_a_container_keeps_its_image_young(tmp_path: Path) -> None:
    docker, now = FakeDocker(tmp_path), NOW
    docker.pulled = ["ours:1"]
    kept = KeptImages(
        docker,  # type: ignore[arg-type]
        tmp_path / "images.json",
        KeepPolicy(unused_s=14 * DAY),
        lambda: now,
    )
    await kept.pulled("ours:1", IMAGE_ID, 60)
    now += 15 * DAY
    kept.used(IMAGE_ID)  # a job is about to start
    await kept.check()
    assert docker.pulled == ["ours:1"]


async def test_a_lost_list_removes_nothing(tmp_path: Path) -> None:
    docker, file = FakeDocker(tmp_path), tmp_path / "images.json"
    docker.pulled = ["ours:1"]
    file.write_text("{torn", encoding="ascii")
    kept = KeptImages(docker, file, KeepPolicy(space_bytes=0), lambda: NOW)  # type: ignore[arg-type]
    await kept.load()
    await kept.check()
    assert docker.pulled == ["ours:1"]


async def test_an_image_under_the_same_name_that_is_not_ours_stays(tmp_path: Path) -> None:
    docker, now = FakeDocker(tmp_path), NOW
    docker.pulled = ["ours:1"]
    kept = KeptImages(docker, tmp_path / "images.json", KeepPolicy(unused_s=DAY), lambda: now)  # type: ignore[arg-type]
    await kept.pulled("ours:1", OTHER, 60)
    now += 15 * DAY
    await kept.check()
    assert docker.pulled == ["ours:1"]  # it is another image by now
