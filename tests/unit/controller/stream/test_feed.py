"""The live feed and its stream: readers resume, queues are bounded, a slow reader blocks none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from controller.api.routes.streams.events import _pieces
from controller.base.errors import ServiceError
from controller.schema.stream import ChangedView, ResyncView, SampleView
from controller.stream.feed import KEPT_FRAMES, QUEUE_FRAMES, Feed, Frame


def changed(name: str) -> ChangedView:
    return ChangedView(kind="job", name=name, epoch=1)


async def started(feed: Feed, last: str | None = None) -> tuple[AsyncIterator[Frame], object]:
    frames = aiter(feed.read(last))
    first = asyncio.ensure_future(anext(frames))
    for _ in range(5):
        await asyncio.sleep(0)
    return frames, first


async def test_a_reader_gets_the_frames_published_while_it_reads() -> None:
    feed = Feed()
    feed.publish("changed", changed("before"))
    frames, first = await started(feed)
    feed.publish("changed", changed("a"))
    feed.publish("sample", SampleView(time=1.0, jobs=[], containers=[], links=[]))
    got = [await first, await anext(frames)]  # type: ignore[misc]
    assert [f.type for f in got] == ["changed", "sample"]
    assert got[0].id is not None
    assert got[1].id is None
    await frames.aclose()  # type: ignore[attr-defined]
    assert feed.readers == 0


async def test_a_reader_continues_where_it_stopped() -> None:
    feed = Feed()
    frames, first = await started(feed)
    for name in "abc":
        feed.publish("changed", changed(name))
    seen = await first  # type: ignore[misc]
    await frames.aclose()  # type: ignore[attr-defined]
    again = aiter(feed.read(seen.id))
    names = [(await anext(again)).data.name for _ in range(2)]  # type: ignore[union-attr]
    assert names == ["b", "c"]


@pytest.mark.parametrize("last", ["other-1", "x", "-", "1", "a-99999999999999999999", "é-1"])
async def test_an_unknown_id_is_a_resync(last: str) -> None:
    feed = Feed()
    feed.publish("changed", changed("a"))
    assert [f.type for f in await feed.read(last).batch()] == ["resync"]


async def test_an_id_that_is_no_longer_kept_is_a_resync() -> None:
    feed = Feed()
    _frames, first = await started(feed)
    feed.publish("changed", changed("first"))
    seen = await first  # type: ignore[misc]
    for number in range(KEPT_FRAMES + 1):
        feed.publish("changed", changed(str(number)))
    assert [f.type for f in await feed.read(seen.id).batch()] == ["resync"]


async def test_only_a_slow_reader_loses_its_queue() -> None:
    feed = Feed()
    slow, first = await started(feed)
    quick, other = await started(feed)
    feed.publish("changed", changed("0"))
    await first  # type: ignore[misc]
    await other  # type: ignore[misc]
    for number in range(QUEUE_FRAMES + 1):
        feed.publish("changed", changed(str(number)))
        assert (await anext(quick)).data.name == str(number)  # type: ignore[union-attr]
    assert (await anext(slow)).type == "resync"
    feed.publish("changed", changed("on"))
    assert (await anext(slow)).data.name == "on"  # type: ignore[union-attr]


async def test_readers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.stream.feed.MAX_READERS", 1)
    feed = Feed()
    reader = feed.read(None)
    with pytest.raises(ServiceError, match="1 readers"):
        feed.read(None)
    reader.close()
    assert feed.readers == 0
    feed.read(None)


async def test_waiting_frames_become_one_piece_of_server_sent_events() -> None:
    feed = Feed()
    reader = feed.read(None)
    pieces = _pieces(reader)
    assert (await anext(pieces)).endswith(b"retry: 1000\n\n")
    feed.publish("changed", changed("red"))
    feed.publish("sample", SampleView(time=1.0, jobs=[], containers=[], links=[]))
    first, second, nothing = (await anext(pieces)).split(b"\n\n")
    ident, event, data = first.decode().split("\n")
    assert ident.startswith("id: ")
    assert event == "event: changed"
    assert data == 'data: {"kind":"job","name":"red","epoch":1}'
    assert second.startswith(b"event: sample\ndata: {")
    assert nothing == b""


async def test_a_reader_gets_frames_from_the_call_of_read_on() -> None:
    feed = Feed()
    reader = feed.read(None)
    feed.publish("changed", changed("early"))
    assert [item.data for item in await reader.batch()] == [changed("early")]


async def test_a_part_of_the_controller_gets_no_samples() -> None:
    """It is always connected, so samples, which hold an object per port, would be made in vain."""
    feed = Feed()
    follower = feed.follow()
    assert feed.readers == 0
    feed.publish("changed", changed("a"))
    assert [item.data for item in await follower.batch()] == [changed("a")]
    reader = feed.read(None)
    feed.publish("sample", SampleView(time=1.0, jobs=[], containers=[], links=[]))
    feed.publish("changed", changed("b"))
    assert [item.type for item in await reader.batch()] == ["sample", "changed"]
    assert [item.data for item in await follower.batch()] == [changed("b")]


async def test_parts_of_the_controller_get_every_frame_of_a_burst() -> None:
    """All frames are published before any of the parts runs."""
    feed = Feed()
    follower = feed.follow()
    names = [str(number) for number in range(QUEUE_FRAMES + 10)]
    for name in names:
        feed.publish("changed", changed(name))
    assert [item.data for item in await follower.batch()] == [changed(name) for name in names]


@pytest.mark.parametrize("inside", [False, True])
async def test_closing_the_feed_closes_its_readers(inside: bool) -> None:
    feed = Feed()
    reader = feed.follow() if inside else feed.read(None)
    waiting = asyncio.ensure_future(reader.batch())
    await asyncio.sleep(0)
    feed.close()
    async with asyncio.timeout(10):
        assert await waiting == []
    assert [item async for item in reader] == []


class OnlyResyncs:
    """Passes resync frames only; counts its calls."""

    key = "resyncs"

    def __init__(self) -> None:
        self.asked = 0

    def frame(self, item: Frame) -> Frame | None:
        self.asked += 1
        return item if item.type == "resync" else None


async def test_readers_with_the_same_key_share_cut_frames() -> None:
    """A frame is cut and encoded once for any number of readers; the last one ends the channel."""
    feed = Feed()
    cuts = [OnlyResyncs() for _ in range(3)]
    readers = [feed.read(None, cut) for cut in cuts]
    feed.publish("changed", changed("other"))
    feed.publish("resync", ResyncView(reason="x"))
    found = [(await reader.batch())[0] for reader in readers]
    assert [cut.asked for cut in cuts] == [2, 0, 0]
    assert all(item is found[0] for item in found)
    assert feed.readers == 3
    for reader in readers:
        reader.close()
    feed.publish("changed", changed("later"))
    feed.publish("changed", changed("last"))
    assert cuts[0].asked == 2


async def test_a_frame_that_is_cut_completely_wakes_no_reader() -> None:
    feed = Feed()
    reader = feed.read(None, OnlyResyncs())
    waiting = asyncio.ensure_future(reader.batch())
    feed.publish("changed", changed("other"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    feed.publish("resync", ResyncView(reason="x"))
    async with asyncio.timeout(10):
        assert [f.type for f in await waiting] == ["resync"]
